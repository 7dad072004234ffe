"""`millstream run a.py b.py`: several flows, one Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_errors import told

FLOW = """
    import millstream as ms

    flow = ms.Flow("{name}")
    trades = flow.source(ms.Files("trades.csv", time="ts"))
    trades.map({fn}).key_by("symbol").window(ms.tumbling("1m")).agg(n=ms.count()).sink(
        ms.Jsonl("out/{name}")
    )
"""


def app(here: Any, name: str, fn: str = "lambda record: record") -> str:
    return str(here.file(f"{name}.py", FLOW.format(name=name, fn=fn)))


def counted(place: Path) -> int:
    parts = [part.read_text().splitlines() for part in place.glob("part-*")]
    return sum(json.loads(line)["n"] for lines in parts for line in lines)


@pytest.mark.spark
def test_flows_of_several_files(here: Any) -> None:
    """One fails: it is said at once and at the end, the others are complete, the code is 1."""
    bad = app(here, "bad", "lambda record: [][0]")
    files = [app(here, "left"), app(here, "right"), bad]
    result = here.run("run", *files, "--checkpoint", "ck", "--dead-letter-limit", "0")
    assert result.code == 1
    assert "error: 1 of 3 flows failed, the others did not. 'bad': " in result.err
    assert "left: complete: 1 batch, 600 records, " in result.out
    assert "Traceback" not in result.err and "\x1b" not in result.out
    for name in ("left", "right"):
        assert counted(here.path / "out" / name) == 600
        assert (here.path / "ck" / name / "flow.json").exists()


def test_what_cannot_run_together(here: Any) -> None:
    one, two = app(here, "one"), app(here, "two")
    copy = here.file("copy.py", (here.path / one).read_text())
    told(here.run("run", one, copy), 2, "two flows are named 'one'")
    told(here.run("run", one, two, "--flow", "one"), 2, "--flow: only with one file")
    told(here.run("run", one, two, "--snapshots", "10%"), 2, "only with one file")
    none = here.file("none.py", "x = 1\n")
    told(here.run("run", one, none), 2, "none.py has no flow at module level")
    same = FLOW.format(name="three", fn="dict").replace("out/three", "out/one")
    told(here.run("run", one, here.file("three.py", same)), 2, "both write to out/one")
    column = (
        FLOW.format(name="four", fn="dict").replace(".map(dict)", "").replace("symbol", "symbl")
    )
    told(here.run("run", one, here.file("four.py", column)), 2, "flow 'four': ", "symbl")
    assert not (here.path / "out").exists()
    looped = (here.path / one).read_text() + "\nms.run_all(flow)\n"
    told(here.run("run", here.file("looped.py", looped)), 2, "runs flow 'one' while it is loaded")
