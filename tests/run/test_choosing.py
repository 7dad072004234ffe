"""Families keep panes or single values, as the measured rate tells, and no record is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.operators.windows import family, sliding
from millstream.ops.windows.rates import PANES, VALUES, Rate, decide, flips_at, sides
from millstream.plan.planner import sketch
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same
from tests.run.test_sliding import AGGREGATES, JOBS, build, drive, live

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
QUICK = settings(max_examples=4, derandomize=True)
LONG = settings(max_examples=1_500)
WINDOWS = [(8, 1), (12, 1), (9, 3), (4, 2), (5, 5), (30, 2), (3, 1)]

switched = st.tuples(
    st.lists(
        st.tuples(st.sampled_from(sorted({**AGGREGATES, **JOBS})), st.sampled_from(WINDOWS)),
        min_size=1,
        max_size=3,
    ),
    live(),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 2, 4]),
    st.dictionaries(st.integers(1, 39), st.sampled_from([1, 2, 3]), max_size=4),
    st.lists(st.booleans(), min_size=5, max_size=45),
    st.sampled_from([0, 4]),
)


def check_switched(run: Any) -> None:
    """Before every batch something decides anew what to keep: not the rate, but a list of coins."""
    jobs, batches, lateness, parallelism, stops, coins, gain = run

    def tossed(family: Any, manifest: Any) -> bool:
        return coins[(manifest.batch + 1) % len(coins)]

    expected = reference(build(jobs, lateness), batches=[{"in": rows} for rows in batches if rows])
    with (
        patch.object(family, "single_values", tossed),
        patch.object(sliding, "_GAIN", gain),
        patch.object(sliding, "_GAIN_STACKS", gain),
    ):
        found, _ = drive(build(jobs, lateness), batches, parallelism, stops)
    assert found.keys() == expected.keys()
    for sink, rows in expected.items():
        assert_same(found[sink], rows, scale=1.0, what=sink)


@QUICK
@given(switched)
def test_forced_switches_lose_and_double_nothing(run: Any) -> None:
    check_switched(run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(switched)
def test_many_forced_switches_lose_and_double_nothing(run: Any) -> None:
    check_switched(run)


# -- the measured rate ----------------------------------------------------------------------------


def flow_of(*windows: Any) -> ms.Flow:
    flow = ms.Flow("rates")
    source = flow.source(
        ms.Files("x", schema="ts timestamp, k bigint, v bigint", time="ts", lateness="0s"),
        name="in",
    )
    for number, window in enumerate(windows):
        stream = source.key_by("k").window(window).agg(high=ms.max("v"), n=ms.count())
        stream.named(f"w{number}").sink(ms.Memory(), name=f"out{number}")
    return flow


def values(start: int, stop: int, every: float, keys: int = 3) -> list[dict[str, Any]]:
    """A value of each key every so many seconds."""
    count = int((stop - start) / every)
    return [
        {
            "ts": BEGIN + timedelta(seconds=start + i * every, milliseconds=k),
            "k": k,
            "v": (i * 31 + k) % 17,
        }
        for i in range(count)
        for k in range(keys)
    ]


def batches_of(*pieces: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    rows = [row for piece in pieces for row in piece]
    return [rows[i : i + 30] for i in range(0, len(rows), 30)]


def test_the_rate_is_measured_and_switches_there_and_back() -> None:
    sparse, dense = values(0, 3000, 20), values(3000, 3300, 0.5)
    again = values(3300, 6000, 20)
    batches = batches_of(sparse, dense, again)
    flow = flow_of(ms.sliding("60s", "2s"))
    kept: list[str] = []
    at: list[int] = []
    with Driver(flow) as driver:
        (family,) = sketch("rates", flow.nodes).families
        for number, rows in enumerate(batches):
            driver.push("in", rows).step()
            rate = driver.engine.manifest.rates[family]
            if not kept or rate["kept"] != kept[-1]:
                kept.append(rate["kept"])
                at.append(rate["since"])
                assert rate["since"] in (0, number + 1)
            if number % 7 == 0:
                driver.restart()
            measured = Rate(**rate)
            if at[-1] == rate["since"] and rows[-1]["ts"] < sparse[-1]["ts"] and number > 10:
                assert measured.per_key == pytest.approx(1 / 20, rel=0.35)
        driver.end()
        found = driver.output("out0")
    assert kept == [PANES, VALUES, PANES, VALUES]
    rows = [row for part in batches for row in part]
    assert_same(found, reference(flow_of(ms.sliding("60s", "2s")), {"in": rows})["out0"])


def test_bursts_keep_panes_although_the_rate_is_low() -> None:
    """Panes with several values each pay off, however many others are empty."""
    bursts = [dict(row, v=i) for row in values(0, 3000, 50) for i in range(8)]
    flow = flow_of(ms.sliding("100s", "1s"))
    with Driver(flow) as driver:
        for number in range(0, len(bursts), 96):
            driver.push("in", bursts[number : number + 96]).step()
        (rate,) = driver.engine.manifest.rates.values()
    measured = Rate(**rate)
    assert measured.per_key < 0.5 and measured.per_pane > 4
    assert measured.kept == PANES


def family_of(*windows: Any) -> Any:
    (family,) = sketch("rates", flow_of(*windows).nodes).families.values()
    return family


def test_the_inequality_is_that_of_the_paper() -> None:
    family = family_of(ms.sliding("10m", "1m"))
    assert sides(family, 0.1) == pytest.approx((0.1 * (600 - 60), 10))
    assert flips_at(family) == pytest.approx(10 / 540)
    assert flips_at(family_of(ms.tumbling("1m"))) is None


def test_windows_that_share_panes_decide_together() -> None:
    family = family_of(ms.sliding("5m", "1m"), ms.sliding("10m", "1m"))
    gain, panes = sides(family, 1.0)
    assert gain == pytest.approx(5 + 10 - 1)
    assert panes == pytest.approx(5 / 60 + 10 / 60)


def test_a_switch_has_to_be_worth_it() -> None:
    family = family_of(ms.sliding("10m", "1m"))

    def kept(now: str, share: float) -> str:
        """What is kept at a rate that is a share of the one at which both sides are equal."""
        rate = flips_at(family) or 0.0
        measured = Rate(now, 3, rate * share * 6000, rate * share * 6000, 6000, 600)
        return decide(family, measured, 9).kept

    assert [kept(PANES, share) for share in (0.7, 0.9, 1.1, 1.3)] == [VALUES, PANES, PANES, PANES]
    assert [kept(VALUES, share) for share in (0.7, 0.9, 1.1, 1.3)] == [VALUES] * 3 + [PANES]


def test_values_that_came_before_their_time_passed_count_for_it() -> None:
    """As of a file that is read at once, and whose windows leave when it has been silent."""
    rate = Rate().after(1000, 0, 0.0, 0.0, 600.0).after(0, 100, 7200.0, 3600.0, 600.0)
    assert (rate.per_pane, rate.per_key) == (10.0, 1000 / 7200)
    again = rate.after(500, 0, 0.0, 0.0, 600.0)
    assert again.per_pane == 10.0  # no time has passed in which they came
    assert again.after(500, 100, 7200.0, 36000.0, 600.0).per_pane == pytest.approx(10.0)


def test_nothing_is_decided_before_a_window_was_measured() -> None:
    family = family_of(ms.sliding("10m", "1m"))
    assert decide(family, Rate(PANES, 0, 1, 1, 599, 599), 9).kept == PANES
    assert decide(family, Rate(PANES, 0, 1, 1, 601, 601), 9).kept == VALUES
