"""What a checkpoint adds to the plan: the figures of its last committed batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.ops.windows.rates import flips_at, has_choice
from millstream.plan.figures import moment
from millstream.plan.planner import sketch
from millstream.testing import Driver


class Product(ms.Aggregate):
    def zero(self) -> float:
        return 1.0

    def add(self, state: float, value: float) -> float:
        return state * value

    def combine(self, left: float, right: float) -> float:
        return left * right


def build() -> ms.Flow:
    flow = ms.Flow("prices")
    ticks = flow.source(ms.Generator(list, time="ts", lateness="10s"), name="ticks")
    keyed = ticks.where("price > 0").key_by("symbol")
    slow = keyed.window(ms.sliding("10m", "1m")).agg(avg=ms.mean("price")).named("slow")
    fast = keyed.window(ms.sliding("5m", "1m")).agg(low=ms.min("price"), p=Product("price"))
    slow.sink(ms.Memory(), name="slow out")
    fast.named("fast").sink(ms.Memory(), name="fast out")
    slow.late().sink(ms.Memory(), name="too late")
    return flow


def minute(number: int) -> list[dict[str, Any]]:
    return [
        {"ts": f"2026-01-05T09:{number:02d}:{s:02d}Z", "symbol": "AB"[s % 2], "price": 1.0 + s}
        for s in range(0, 60, 5)
    ]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(build(), checkpoint=tmp_path / "ck", now=1_800_000_000.0) as driver:
        yield driver


def told(tmp_path: Path) -> list[str]:
    return build().explain(tmp_path / "ck").splitlines()


def test_before_the_first_batch(driver: Driver, tmp_path: Path) -> None:
    lines = told(tmp_path)
    assert lines[0] == "flow prices, no batch committed yet"
    assert lines[1:] == build().explain().splitlines()[1:]


def test_figures_of_the_last_batch(driver: Driver, tmp_path: Path) -> None:
    for number in range(20):
        driver.push("ticks", minute(number)).advance("2s").step()
    driver.push("ticks", [*minute(20), *minute(1)[:3]]).advance("2s").step()
    lines = told(tmp_path)
    assert lines[0] == "flow prices, as of batch 20 of 2027-01-15 08:00:42Z"
    at = lines.index("  ticks = Generator(time ts, lateness 10s)")
    assert lines[at + 1] == (
        "    so far: 255 in, 255 aggregated, 15 of them in the last batch (7.5 a second); "
        "watermark 2026-01-05T09:20:45Z"
    )
    own = [line.strip() for line in lines]
    slow = own[own.index("slow = key by symbol, window sliding(10m, 1m) <- where") :]
    so_far = next(line for line in slow if line.startswith("so far"))
    assert "255 in, 252 aggregated, 3 late" in so_far
    windows = next(line for line in slow if line.startswith("windows"))
    assert windows == (
        f"windows: {len(driver.output('slow out'))} results, watermark 2026-01-05T09:20:45Z, "
        "left until 2026-01-05T09:20:00Z, slid last by "
        f"{driver.engine.manifest.strategies['slow']}"
    )


def test_what_is_kept_is_told_before_and_while_it_is_measured(
    driver: Driver, tmp_path: Path
) -> None:
    """Two windows share their panes: 12 values a minute of 2 keys are 0.1 per second and key."""
    before = [line.strip() for line in told(tmp_path) if "keeps:" in line]
    assert before == [
        "keeps: panes until a rate is measured, then single values if t*(sum of w/s - 1) <= sum "
        "of w/gcd/s, below 0.0179 values per second and key, and a pane that has any has fewer "
        "than 1.5"
    ]
    for number in range(40):
        driver.push("ticks", minute(number)).advance("2s").step()
    (now,) = [line.strip() for line in told(tmp_path) if "keeps:" in line]
    (rate,) = driver.engine.manifest.rates.values()
    shown = re.fullmatch(
        r"keeps: panes, measured ([\d.]+) values per second and key: t\*\(sum of w/s - 1\) = "
        r"([\d.]+) > sum of w/gcd/s = 0.25; ([\d.]+) values per pane that has any \(panes from "
        r"1.5 on\)",
        now,
    )
    assert shown is not None, now
    per_key, gain, per_pane = map(float, shown.groups())
    assert per_key == pytest.approx(0.1, rel=0.1)
    assert gain == pytest.approx(14 * per_key, rel=0.01)
    assert per_pane == pytest.approx(6, rel=0.1)
    assert rate["kept"] == "panes" and rate["since"] == 0


def test_stored_rows_are_those_there_are(driver: Driver, tmp_path: Path) -> None:
    for number in range(12):
        driver.push("ticks", minute(number)).step()
    (line,) = [line for line in told(tmp_path) if line.strip().startswith("stored:")]
    rows = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) rows", line)]
    assert sum(rows) == len(driver.state("slow")) > 0


def test_nothing_is_stored_at_the_end(driver: Driver, tmp_path: Path) -> None:
    driver.push("ticks", minute(0)).step()
    driver.end()
    lines = told(tmp_path)
    assert lines[0].endswith(", complete")
    assert any("watermark the end" in line for line in lines)


def test_looking_changes_nothing(driver: Driver, tmp_path: Path) -> None:
    driver.push("ticks", minute(0)).step()
    before = {p: p.read_bytes() for p in sorted((tmp_path / "ck").rglob("*")) if p.is_file()}
    build().explain(tmp_path / "ck")
    build().picture(tmp_path / "plan.svg", tmp_path / "ck")
    after = {p: p.read_bytes() for p in sorted((tmp_path / "ck").rglob("*")) if p.is_file()}
    assert before == after


def test_a_checkpoint_of_another_flow_is_refused(driver: Driver, tmp_path: Path) -> None:
    driver.push("ticks", minute(0)).step()
    other = ms.Flow("other")
    other.source(ms.Rate(1.0, limit=1)).sink(ms.Memory())
    with pytest.raises(ms.CheckpointError, match="belongs to flow 'prices', this is 'other'"):
        other.explain(tmp_path / "ck")


def test_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ms.CheckpointError, match="there is no checkpoint"):
        build().explain(tmp_path / "nowhere")
    with pytest.raises(ms.CheckpointError, match="is not a checkpoint"):
        build().explain(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("window", "above"),
    [
        (ms.sliding("10m", "1m"), 10 / 540),
        (ms.sliding("90s", "1m"), 3 / 30),  # panes of 30 s
        (ms.tumbling("1m"), None),
        (ms.hopping("1m", "5m"), None),
        (ms.session("1m"), None),
        (ms.count_window(10, 1), None),
    ],
    ids=str,
)
def test_where_panes_pay_off(window: Any, above: float | None) -> None:
    flow = ms.Flow("x")
    flow.source(ms.Rate(1.0)).key_by("value").window(window).agg(n=ms.count()).sink(ms.Memory())
    (family,) = sketch("x", flow.nodes).families.values()
    found = flips_at(family) if has_choice(family) else None
    assert found == (None if above is None else pytest.approx(above))


def test_moments() -> None:
    assert moment(0) == "1970-01-01T00:00:00Z"
    assert moment(1_500_000) == "1970-01-01T00:00:01.500Z"
    assert moment(1) == "1970-01-01T00:00:00.000001Z"
    assert moment(2**62) == "the end"
    assert moment(-(2**62)) == "none yet"
    assert moment(2**60) == f"{2**60} us"
