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


def flow(*windows: tuple[str, Any, dict[str, Any]], bounded: bool = False) -> ms.Flow:
    made = ms.Flow("grows")
    lateness = None if bounded else "0s"
    files = ms.Files("x", schema=SCHEMA, time="ts", lateness=lateness, follow=not bounded)
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


@pytest.mark.parametrize("timed_later", [False, True])
def test_where_it_begins_is_up_to_its_own_sources(timed_later: bool) -> None:
    """Not to others that have come further, nor to the clock when files were read."""

    def beside(*windows: tuple[str, str]) -> ms.Flow:
        made = ms.Flow("beside")
        when: dict[str, Any] = {} if timed_later else {"time": "ts"}
        source = made.source(ms.Files("x", schema=SCHEMA, **when), name="in")
        source = source.at("ts") if timed_later else source
        for name, size in windows:
            counts = source.key_by("k").window(ms.tumbling(size)).agg(n=ms.count())
            counts.named(name).sink(ms.Memory(), name=f"{name} out")
        other = made.source(ms.Generator(tuple, time="ts", schema=SCHEMA), name="other")
        other.sink(ms.Memory(), name="others")
        return made

    with Driver(beside(("old", "10s"))) as driver:
        driver.push("in", records(range(4))).push("other", records(range(900, 901))).step()
        driver.replace(beside(("old", "10s"), ("new", "5s")))
        driver.push("in", records(range(4, 30))).end()
        found = sorted((row["window_start"] - BEGIN).seconds for row in driver.output("new out"))
        assert set(found) == set(range(5, 30, 5))


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
        (("other", ms.tumbling("60s"), {"n": ms.count()}), "operator 'old' is gone.*remove=.*old"),
        (("old", ms.tumbling("60s"), {"m": ms.count()}), "aggregate 'old.n' is gone"),
    ],
)
def test_other_changes_are_refused(now: Any, says: str, tmp_path: Path) -> None:
    with Driver(flow(("old", ms.tumbling("60s"), {"n": ms.count()})), checkpoint=tmp_path) as d:
        d.push("in", records(range(70))).step()
    with pytest.raises(CheckpointError, match=says):
        Driver(flow(now), checkpoint=tmp_path)


HOPPING = ("old", ms.hopping("10s", "30s"), {"n": ms.count()})
STEPPING = [
    ("old", ms.tumbling("60s"), {"n": ms.count()}),
    ("finer", ms.sliding("20s", "10s"), {"n": ms.count()}),
]
LISTING = [
    ("old", ms.sliding("80s", "10s"), {"n": ms.count()}),
    ("lists", ms.tumbling("10s"), {"all": ms.collect("v")}),
]


@pytest.mark.parametrize(
    ("before", "new"),
    [
        ([HOPPING], ("new", ms.tumbling("30s"), {"n": ms.count()})),
        (STEPPING, ("new", ms.sliding("40s", "10s"), {"n": ms.count()})),
        (LISTING, ("new", ms.tumbling("40s"), {"all": ms.collect("v")})),
        (LISTING, ("new", ms.tumbling("40s"), {"all": ms.collect("k")})),
    ],
    ids=["gaps", "steps", "values", "columns"],
)
def test_only_what_is_stored_is_taken_for_whole(
    before: list[Any], new: Any, tmp_path: Path
) -> None:
    pieces = [records(range(s, s + 10)) for s in range(0, 240, 10)]
    with Driver(flow(*before), checkpoint=tmp_path) as driver:
        for piece in pieces[:11]:
            driver.push("in", piece).step()
    with Driver(flow(*before, new), checkpoint=tmp_path) as driver:
        for piece in pieces[11:]:
            driver.push("in", piece).step()
        driver.end()
        out = driver.output("new out")
    size = new[1].span.size // 1_000_000
    want = totals([row for piece in pieces for row in piece], size, new[1].span.slide // 1_000_000)
    for row in out:
        found = row["n"] if "n" in row else len(row["all"])
        assert found == want[row["k"], row["window_start"]][0]
    assert out


def test_a_window_added_before_any_has_left_has_everything(tmp_path: Path) -> None:
    old = ("old", ms.tumbling("100s"), {"n": ms.count()})
    new = ("new", ms.tumbling("200s"), {"n": ms.count()})
    with Driver(flow(old, bounded=True), checkpoint=tmp_path) as driver:
        driver.push("in", records(range(50))).step()
    with Driver(flow(old, new, bounded=True), checkpoint=tmp_path) as driver:
        assert "new is new (filled from stored panes): all of them are there" in driver.engine.notes
        driver.push("in", records(range(50, 150))).end()
        assert sum(row["n"] for row in driver.output("new out")) == 150


def test_what_is_gone_is_dropped_if_that_is_said(tmp_path: Path) -> None:
    old = ("old", ms.tumbling("60s"), {"n": ms.count(), "total": ms.sum("v")})
    other = ("other", ms.tumbling("60s"), {"n": ms.count()})
    less = ("old", ms.tumbling("60s"), {"n": ms.count()})
    with Driver(flow(old, other), checkpoint=tmp_path) as driver:
        driver.push("in", records(range(70))).step()
    with pytest.raises(ms.ConfigError, match="the flow still has it"):
        Driver(flow(old, other), checkpoint=tmp_path, remove=["other"])
    gone = ["other", "old.total"]
    with Driver(flow(less), checkpoint=tmp_path, remove=gone) as driver:
        assert "other is removed, and what was stored for it is dropped" in driver.engine.notes
        assert "old: total is no longer computed" in driver.engine.notes
        driver.push("in", records(range(70, 100))).end()
        assert sum(row["n"] for row in driver.output()) == 40  # the window that has not left yet
