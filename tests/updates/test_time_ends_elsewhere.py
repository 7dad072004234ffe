"""Where time ends at steps other than updaters, and behind steps that give records their times.

It follows from the records of the sources above a step, never from those of others, from batches or
from the clock on the wall.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, k string, v bigint"


def records(*events: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=at), "k": k, "v": round(at)} for at, k in events]


# -- two sources that end at different times ------------------------------------------------------


def deduplicated(left: ms.Stream, right: ms.Stream) -> ms.Stream:
    return left.dedup("k", within="20s")


def nearest(left: ms.Stream, right: ms.Stream) -> ms.Stream:
    return left.join(right, on="k", within="20s", suffix="_r")


def as_of(left: ms.Stream, right: ms.Stream) -> ms.Stream:
    return left.join(right, on="k", how="asof", within="20s", suffix="_r")


def beside(step: Callable[[ms.Stream, ms.Stream], ms.Stream]) -> ms.Flow:
    """A step over one or two sources, beside another that has nothing to do with it."""
    flow = ms.Flow("beside")
    left, right, other = (
        flow.source(ms.Generator(tuple, time="ts", lateness="0s", schema=SCHEMA), name=name)
        for name in ("left", "right", "other")
    )
    step(left, right).sink(ms.Memory(), name="out")
    other.sink(ms.Memory(), name="others")
    return flow


@pytest.mark.parametrize("step", [deduplicated, nearest, as_of])
def test_a_run_that_goes_on_knows_what_it_knew_however_far_other_sources_came(step: Any) -> None:
    first = {
        "left": records((1, "a"), (5, "b")),
        "right": records((2, "b"), (6, "a")),
        "other": records((900, "c")),
    }
    then = {"left": records((9, "a"), (12, "b"), (40, "a")), "right": records((11, "b"), (41, "a"))}
    with Driver(beside(step)) as driver:
        for name, rows in first.items():
            driver.push(name, rows)
        driver.end().restart()
        for name, rows in then.items():
            driver.push(name, rows)
        driver.end()
        found = driver.output("out")
    whole = {name: rows + then.get(name, []) for name, rows in first.items()}
    expected = reference(beside(step), whole)["out"]
    assert_same(found, expected, what=step.__name__)
    assert expected


# -- times that at() gives ------------------------------------------------------------------------


def wind_up(event: Any, slate: Any, ctx: Any) -> None:
    ctx.timer(after="1s")


def tick(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
    ctx.timer(after="1s")
    return {"at": event.ts}


def timed_later() -> ms.Flow:
    """Steps behind at(), over a source whose own times say nothing of its records."""
    flow = ms.Flow("later")
    timed = flow.source(ms.Files("in.csv", schema=SCHEMA), name="in").at("ts")
    timed.key_by("k").update(wind_up, name="u", on_timer=tick).sink(ms.Memory(), name="ticks")
    timed.last("4s").key_by("k").agg(n=ms.count()).sink(ms.Memory(), name="last")
    counts = timed.key_by("k").window(ms.count_window(2, 2)).agg(n=ms.count())
    counts.sink(ms.Memory(), name="counts")
    return flow


def integrated(changes: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in changes:
        if row["op"] == "-":
            del found[row["k"]]
        else:
            found[row["k"]] = row["n"]
    return found


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("steps", [False, True])
def test_behind_at_time_ends_with_the_latest_that_it_gave(steps: bool, parallelism: int) -> None:
    with Driver(timed_later(), parallelism=parallelism) as driver:
        for row in records((0, "a"), (7, "a"), (3, "b"), (9, "c"), (8, "a")):
            driver.push("in", [row])
            if steps:
                driver.step()
                driver.restart()
        driver.end()
        ticks = sorted(row["at"] for row in driver.output("ticks"))
        last = integrated(driver.output("last"))
        ends = sorted(row["window_end"] for row in driver.output("counts"))
    assert max(ticks) == START + timedelta(seconds=10) and len(ticks) == 10 + 7 + 1
    assert last == {"a": 2, "c": 1}
    assert max(ends) <= START + timedelta(seconds=9, microseconds=1)


@pytest.mark.parametrize("lateness", ["0s", "2s", None])
def test_the_plain_interpreter_says_the_same_of_times_that_are_given(lateness: str | None) -> None:
    """Times two seconds later than those of the source, however it is cut."""

    def flow() -> ms.Flow:
        made = ms.Flow("given")
        files = ms.Files("in.csv", time="ts", lateness=lateness, schema=SCHEMA)
        source = made.source(files, name="in")
        timed = source.at(lambda row: row["ts"] + timedelta(seconds=2), behind="1s")
        ticks = timed.key_by("k").update(wind_up, name="u", on_timer=tick, ttl="3s")
        ticks.sink(ms.Memory(), name="ticks")
        return made

    given = records((0, "a"), (1, "b"), (6, "a"), (8, "b"), (9, "c"))
    expected = reference(flow(), {"in": given})
    assert len(expected["ticks"]) == 10 + 9 + 1  # up to 12 s, set at 11 s
    for cuts in ((), (1, 2, 3, 4), (3,)):
        with Driver(flow()) as driver:
            for since, until in zip((0, *cuts), (*cuts, 5), strict=True):
                driver.push("in", given[since:until]).step()
            driver.end()
            assert_same(driver.output("ticks"), expected["ticks"], what="ticks")
            assert driver.slates("u") == expected.slates["u"]


# -- what older versions left ---------------------------------------------------------------------


def test_a_checkpoint_whose_steps_expect_rows_at_a_time_that_never_comes_settles() -> None:
    """A queue without rows once said 2**61, which is before the end of all input."""

    def flow() -> ms.Flow:
        made = beside(deduplicated)
        left = next(one for one in made.nodes if one.name == "left")
        ms.Stream(made, left).key_by("k").update(wind_up, name="u", on_timer=tick)
        return made

    with Driver(flow()) as driver:
        driver.push("left", records((1, "a"))).push("other", records((1, "a"))).step()
        name = next(iter(driver.engine.manifest.memos))
        driver.engine.manifest.memos[name]["next"] = 2**61
        driver.engine.manifest.due["u"] = (2**61, 2**61)
        for source in ("left", "right"):
            driver.engine.trackers[source].ended = True
        assert [driver.step() for _ in range(4)] == [True, False, False, False]
        driver.push("other", records((50, "a"))).end()
        assert driver.engine.manifest.complete
