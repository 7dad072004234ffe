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
