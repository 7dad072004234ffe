"""A window or an aggregate added to a running flow is filled from the panes that are stored."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import CheckpointError
from millstream.testing import Driver

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, k string, v bigint"


def records(seconds: range) -> list[dict[str, Any]]:
    rng = random.Random(seconds.start)
    return [
        {"ts": BEGIN + timedelta(seconds=s), "k": rng.choice("ab"), "v": rng.randint(0, 9)}
        for s in seconds
    ]


def flow(*windows: tuple[str, Any, dict[str, Any]]) -> ms.Flow:
    made = ms.Flow("grows")
    files = ms.Files("x", schema=SCHEMA, time="ts", lateness="0s", follow=True)
    keyed = made.source(files, name="in").key_by("k")
    for name, window, aggs in windows:
        keyed.window(window).agg(**aggs).named(name).sink(ms.Memory(), name=f"{name} out")
    return made


def totals(rows: list[dict[str, Any]], size: int, slide: int) -> dict[Any, tuple[int, int]]:
    """(key, window start) -> count and sum, by brute force."""
    found: dict[Any, tuple[int, int]] = {}
    for row in rows:
        second = int((row["ts"] - BEGIN).total_seconds())
        for start in range(second - second % slide, second - size, -slide):
            name = (row["k"], BEGIN + timedelta(seconds=start))
            n, total = found.get(name, (0, 0))
            found[name] = (n + 1, total + row["v"])
    return found


def test_a_window_is_filled_from_stored_panes(tmp_path: Path) -> None:
    old = ("old", ms.sliding("60s", "10s"), {"n": ms.count(), "total": ms.sum("v")})
    new = ("new", ms.sliding("40s", "10s"), {"total": ms.sum("v")})
    before, after = records(range(100)), records(range(100, 200))
    with Driver(flow(old), checkpoint=tmp_path) as driver:
        driver.push("in", before).step()
    with Driver(flow(old, new), checkpoint=tmp_path, parallelism=2) as driver:
        assert any("filled from stored panes" in note for note in driver.engine.notes)
        driver.push("in", after).step()
        driver.restart()
        driver.end()
        out = driver.output("new out")
    want = totals(before + after, 40, 10)
    got = {(r["k"], r["window_start"]): r["total"] for r in out}
    assert got == {n: want[n][1] for n in got}
    # The first window the new one gives reaches back to before it existed.
    assert min(start for _, start in got) <= BEGIN + timedelta(seconds=50)
    assert max(start for _, start in got) == max(start for _, start in want)


def test_an_aggregate_is_filled_if_its_state_is_known_and_null_until_then(tmp_path: Path) -> None:
    window = ms.tumbling("60s")
    old = ("old", window, {"mean": ms.mean("v")})
    grown = ("old", window, {"mean": ms.mean("v"), "high": ms.max("v")})
    before, after = records(range(90)), records(range(90, 240))
    with Driver(flow(old), checkpoint=tmp_path) as driver:
        driver.push("in", before).step()
    with Driver(flow(grown), checkpoint=tmp_path) as driver:
        assert any("high is null for windows" in note for note in driver.engine.notes)
        driver.push("in", after).step()
        driver.end()
        out = driver.output()
    for row in out:
        held = [
            r["v"]
            for r in before + after
            if r["k"] == row["k"] and row["window_start"] <= r["ts"] < row["window_end"]
        ]
        assert row["mean"] == pytest.approx(sum(held) / len(held))
        complete = row["window_start"] >= BEGIN + timedelta(seconds=90)
        assert row["high"] == (max(held) if complete else None)
    assert any(row["high"] is not None for row in out)


def test_what_does_not_fit_the_stored_panes_begins_afresh(tmp_path: Path) -> None:
    old = ("old", ms.tumbling("60s"), {"n": ms.count()})
    odd = ("odd", ms.tumbling("45s"), {"n": ms.count()})
    before, after = records(range(100)), records(range(100, 300))
    with Driver(flow(old), checkpoint=tmp_path) as driver:
        driver.push("in", before).step()
    with Driver(flow(old, odd), checkpoint=tmp_path) as driver:
        assert any("odd is new (not filled)" in note for note in driver.engine.notes)
        driver.push("in", after).step()
        driver.end()
        odd_out, old_out = driver.output("odd out"), driver.output("old out")
    want = totals(before + after, 45, 45)
    assert odd_out and all(r["n"] == want[r["k"], r["window_start"]][0] for r in odd_out)
    known = totals(before + after, 60, 60)
    assert all(r["n"] == known[r["k"], r["window_start"]][0] for r in old_out)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (("old", ms.tumbling("30s"), {"n": ms.count()}), "window was"),
        (("old", ms.tumbling("60s"), {"n": ms.sum("v")}), "aggregates was"),
        (("other", ms.tumbling("60s"), {"n": ms.count()}), "operator 'old' is gone"),
    ],
)
def test_other_changes_are_refused(now: Any, says: str, tmp_path: Path) -> None:
    with Driver(flow(("old", ms.tumbling("60s"), {"n": ms.count()})), checkpoint=tmp_path) as d:
        d.push("in", records(range(70))).step()
    with pytest.raises(CheckpointError, match=says):
        Driver(flow(now), checkpoint=tmp_path)
