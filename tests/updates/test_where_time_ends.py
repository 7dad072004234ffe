"""Where time stands once all input was read: no setting decides which slates are left.

Event time ends one microsecond after the latest record. What timers set off beyond that is done,
but it lets no slate expire.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference

START = datetime(2026, 1, 1, tzinfo=UTC)


def records(*events: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"ts": START + timedelta(seconds=second), "k": key} for second, key in events]


def source(flow: ms.Flow, lateness: str = "1s") -> ms.Stream:
    return flow.source(ms.Generator(list, time="ts", lateness=lateness), name="in")


def count(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1
    if event.key in ("a", "b"):
        ctx.timer(after="10s")


def rung(event: Any, slate: Any, ctx: Any) -> None:
    ctx.publish("round", event.key + "x", 1)


def cycle() -> ms.Flow:
    flow = ms.Flow("cycle")
    around = flow.stream("round").key_by("key")
    source(flow).key_by("k").union(around).update(count, name="u", ttl="5s", on_timer=rung)
    return flow


@pytest.mark.parametrize("most", [1, 2, 200_000])
def test_a_cycle_done_in_several_batches_lets_no_slate_expire(most: int) -> None:
    given = records((0, "a"), (1, "b"), (2, "c"))
    with Driver(cycle(), cycle_events=most) as driver:
        driver.push("in", given).step()
        driver.end()
        assert sorted(driver.slates("u")) == ["a", "ax", "b", "bx", "c"]
        assert driver.engine.manifest.complete
    assert sorted(reference(cycle(), {"in": given}).slates["u"]) == ["a", "ax", "b", "bx", "c"]


def test_restarts_in_between_change_nothing() -> None:
    with Driver(cycle(), cycle_events=1) as driver:
        driver.push("in", records((0, "a"), (1, "b"), (2, "c"))).step()
        driver.engine.trackers["in"].ended = True
        for _ in range(20):
            driver.step()
            driver.restart()
            driver.engine.trackers["in"].ended = True
        assert driver.engine.manifest.complete
        assert sorted(driver.slates("u")) == ["a", "ax", "b", "bx", "c"]


def over_minutes() -> ms.Flow:
    """An updater over results, whose times lie far beyond those of the records."""
    flow = ms.Flow("minutes")
    counted = source(flow, "0s").key_by("k").window(ms.tumbling("1m")).agg(n=ms.count())
    counted.key_by("k").update(lambda e, slate, ctx: slate.update(n=1), name="u", ttl="30s")
    return flow


@pytest.mark.parametrize("rows", [1, 100_000])
@pytest.mark.parametrize("steps", [False, True])
def test_results_beyond_the_last_record_are_treated_alike_whatever_the_batches(
    rows: int, steps: bool
) -> None:
    given = records((0, "a"), (30, "b"), (61, "c"), (62, "d"), (63, "e"))
    with Driver(over_minutes(), batch_rows=rows) as driver:
        for one in given:
            driver.push("in", [one])
            if steps:
                driver.step()
        driver.end()
        found = sorted(driver.slates("u"))
    assert found == sorted(reference(over_minutes(), {"in": given}).slates["u"])


def ticking() -> ms.Flow:
    """A timer that renews itself over one of two sources."""

    def wind_up(event: Any, slate: Any, ctx: Any) -> None:
        ctx.timer(after="1s")

    def tick(event: Any, slate: Any, ctx: Any) -> dict[str, Any]:
        ctx.timer(after="1s")
        return {"at": event.ts}

    flow = ms.Flow("ticking")
    ticks = source(flow).key_by("k").update(wind_up, name="u", on_timer=tick)
    ticks.sink(ms.Memory(), name="ticks")
    other = flow.source(ms.Generator(list, time="ts", lateness="0s"), name="other")
    other.sink(ms.Memory(), name="others")
    return flow


@pytest.mark.parametrize("first", ["in", "other", None])
def test_time_ends_with_the_sources_above_a_step_whichever_is_read_first(first: str | None) -> None:
    given = {"in": records((0, "a"), (5, "a")), "other": records((0, "b"), (60, "b"))}
    with Driver(ticking()) as driver:
        for name in [first] if first else []:
            driver.push(name, given[name]).end(name)
        for name in given.keys() - {first}:
            driver.push(name, given[name])
        driver.end()
        assert len(driver.output("ticks")) == 6
    assert len(reference(ticking(), given)["ticks"]) == 6


def test_an_updater_whose_source_has_ended_wakes_nobody() -> None:
    with Driver(ticking()) as driver:
        driver.push("in", records((0, "a"), (5, "a"))).push("other", records((0, "b"))).step()
        driver.engine.trackers["in"].ended = True
        assert [driver.step() for _ in range(4)] == [True, False, False, False]
        driver.push("other", records((60, "b"))).end()
        assert len(driver.output("ticks")) == 6
