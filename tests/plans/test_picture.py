"""The picture of a plan: valid, harmless, and nothing on top of anything else."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.plan.layout import Box, Space, arrange
from millstream.plan.picture import draw
from millstream.plan.svg import clean
from millstream.testing import Driver

SVG = "{http://www.w3.org/2000/svg}"
EVIL = """<script>alert("1")</script>&'\x00\x1b\u202e]]>"""


def drawn(flow: ms.Flow, checkpoint: Path | None = None) -> ET.Element:
    return ET.fromstring(draw(flow.name, flow.nodes, checkpoint))


def texts(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def forked() -> ms.Flow:
    flow = ms.Flow("forked")
    ticks = flow.source(ms.Files("in/", time="ts", lateness="5s"), name="ticks")
    keyed = ticks.where("price > 0").key_by("symbol")
    fast = keyed.window(ms.sliding("5m", "1m")).agg(avg=ms.mean("price")).named("fast")
    slow = keyed.window(ms.sliding("10m", "1m")).agg(avg=ms.mean("price")).named("slow")
    both = fast.union(slow).key_by("symbol").window(ms.tumbling("1m")).agg(n=ms.count())
    both.named("both").sink(ms.Memory(), name="out")
    slow.late().sink(ms.Jsonl("late/"), name="too late")
    ticks.sink(ms.Parquet("all/"), name="archive")
    return flow


def test_everything_is_on_it() -> None:
    flow = forked()
    found = texts(drawn(flow))
    for node in flow.nodes:
        assert node.name in found
    assert {"forked", "stage 0", "stage 1", "stage 2", "panes of 1m, shared"} <= set(found)
    assert {"running values, else blocks", "blocks", "where price > 0"} <= set(found)


def test_it_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    path = forked().picture(tmp_path / "new" / "plan.svg")
    assert path == tmp_path / "new" / "plan.svg"
    assert ET.parse(path).getroot().tag == f"{SVG}svg"


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ms.ConfigError, match=r"must end in \.svg"):
        forked().picture(tmp_path / "plan.png")
    with pytest.raises(ms.ConfigError, match="cannot be written"):
        forked().picture("/proc/nothing/plan.svg")


def test_the_same_flow_gives_the_same_picture() -> None:
    assert draw("x", forked().nodes) == draw("x", forked().nodes)


def test_hostile_text_is_only_text() -> None:
    def evil(row: dict[str, Any]) -> dict[str, Any]:
        return row

    evil.__qualname__ = EVIL
    flow = ms.Flow("hostile")
    source = flow.source(ms.Files(f"in/{EVIL[:24]}", time="<b>", lateness="1s"), name="s")
    keyed = source.map(evil).where("x <> '<!--&\"-->'").key_by(EVIL)
    keyed.window(ms.tumbling("1m")).agg(**{f"sum {EVIL}": ms.sum(EVIL)}).sink(ms.Call(evil))
    root = drawn(flow)
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
        *("svg", "title", "rect", "text", "path", "g")
    }
    names = {name for node in root.iter() for name in node.attrib}
    assert not any(name.startswith("on") or "href" in name for name in names)
    assert any("<script>" in text for text in texts(root))
    assert not any(c in "".join(texts(root)) for c in "\x00\x1b\u202e")


def test_clean() -> None:
    assert clean("a\n b\t c") == "a b c"
    assert clean("\ud800\u0007x") == "\ufffd\ufffdx"


def test_figures_are_on_it(tmp_path: Path) -> None:
    flow = ms.Flow("live")
    ticks = flow.source(ms.Generator(list, time="ts", lateness="0s"), name="ticks")
    ticks.key_by("k").window(ms.tumbling("1m")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path / "ck", now=1_800_000_000.0) as driver:
        for number in (1, 2):
            rows = [{"ts": f"2026-01-05T09:{number:02d}:{s:02d}Z", "k": "a"} for s in range(60)]
            driver.push("ticks", rows).advance("2s").step()
        found = texts(drawn(flow, tmp_path / "ck"))
    assert "as of batch 1 of 2027-01-15 08:00:04Z" in found
    assert "120 in, 30/s" in found
    assert "left until 2026-01-05T09:02:00Z" in found
    assert any(text.startswith("stored for agg: ") for text in found)


@pytest.mark.parametrize("seed", range(30))
def test_boxes_never_overlap_and_edges_go_right(seed: int) -> None:
    dice = random.Random(seed)
    boxes = [Box("0", 80, 40, 0)]
    edges = []
    for number in range(1, dice.randint(2, 40)):
        above = dice.sample(boxes, min(len(boxes), dice.randint(1, 3)))
        column = max(box.column for box in above) + 1
        group = f"g{column}" if dice.random() < 0.3 else ""
        boxes.append(Box(str(number), dice.randint(60, 250), dice.randint(30, 160), column, group))
        edges.extend((box.name, str(number)) for box in above)
    stages = {box.column: box.column // 3 for box in boxes}
    layout = arrange(boxes, edges, stages, Space(), 80, 40)
    at = {box.name: box for box in boxes}
    for a, b in itertools.combinations(boxes, 2):
        apart = (
            a.x + a.width <= b.x
            or b.x + b.width <= a.x
            or a.y + a.height <= b.y
            or b.y + b.height <= a.y
        )
        assert apart, (a, b)
    for one, other in edges:
        assert at[one].x + at[one].width < at[other].x
        for column, height in layout.passes[one, other]:  # no edge runs through a box
            inside = [
                box for box in boxes if box.column == column and box.y < height < box.y + box.height
            ]
            assert not inside
    for box in boxes:
        assert box.x >= 40 and box.x + box.width <= layout.right
        assert box.y >= 80 - 1e-6 and box.y + box.height <= layout.bottom + 1e-6
