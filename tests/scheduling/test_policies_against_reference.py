"""Whoever is served first and whoever has to wait, results are those of a plain interpreter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver, reference
from tests.differential import test_driver_against_reference as windows
from tests.differential.comparing import assert_same
from tests.scheduling.pressing import budgets, policies, pressed, seconds
from tests.updates import test_driver_against_reference as updaters

QUICK = settings(max_examples=12, derandomize=True)
FEW = settings(QUICK, max_examples=5)
LONG = settings(max_examples=1_000)

any_windows = st.one_of(windows.runs, windows.runs_of_kinds, windows.runs_of_changes)


def check(run: Any, of: Any, policy: Any, room: float, budget: Any) -> None:
    with pressed(*budget):
        of.check(*run, scheduler=policy, batch_seconds=room)


def check_updaters(run: Any, policy: Any, room: float, budget: Any) -> None:
    assume(not hears_what_is_held(run[0]))
    check(run, updaters, policy, room, budget)


def hears_what_is_held(recipe: Any) -> bool:
    """Whether an updater in the order of arrival gets results, which come when somebody let them.

    What it makes of them depends on that, as it does on batches.
    """
    return any(
        not feed.origin.startswith("in") or any("window" in step for step in feed.steps)
        for node in recipe.updaters
        if node.order == "arrival" and not node.merge
        for feed in node.feeds
    )


@QUICK
@given(any_windows, policies, seconds, budgets)
def test_windows_do_not_depend_on_who_is_served_first(
    run: Any, policy: Any, room: float, budget: Any
) -> None:
    check(run, windows, policy, room, budget)


@QUICK
@given(updaters.runs, policies, seconds, budgets)
def test_updaters_and_cycles_do_not_either(run: Any, policy: Any, room: float, budget: Any) -> None:
    check_updaters(run, policy, room, budget)


@pytest.mark.long
@pytest.mark.timeout(7200)
@LONG
@given(st.one_of(any_windows, windows.runs_over_changes), policies, seconds, budgets)
def test_very_many_windows_do_not(run: Any, policy: Any, room: float, budget: Any) -> None:
    check(run, windows, policy, room, budget)


@pytest.mark.long
@pytest.mark.timeout(7200)
@LONG
@given(updaters.runs, policies, seconds, budgets)
def test_very_many_updaters_and_cycles_do_not(
    run: Any, policy: Any, room: float, budget: Any
) -> None:
    check_updaters(run, policy, room, budget)


# -- rows that wait in joins and comparisons ----------------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "ts timestamp, k bigint, v bigint"
ROW = st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 3), st.integers(0, 2))
BATCHES = st.lists(st.tuples(st.lists(ROW, max_size=8), st.booleans()), min_size=2, max_size=6)


def waiting_flow() -> ms.Flow:
    """Steps whose rows wait for the watermark, and windows behind some of them."""
    flow = ms.Flow("waiting")
    left, right = (
        flow.source(ms.Generator(tuple, time="ts", lateness="0s", schema=SCHEMA), name=name)
        for name in ("left", "right")
    )
    results = {
        "asof": left.join(right, on="k", how="asof", suffix="_r"),
        "semi": left.join(right, on="k", how="semi"),
        "near": left.join(right, on="k", how="full", within="2s", suffix="_r"),
        "once": left.dedup("k", within="3s"),
        "kinds": left.distinct("k", "v"),
        "both": left.select("k", "v").intersect(right.select("k", "v")),
    }
    for name, stream in results.items():
        stream.sink(ms.Memory(), name=name)
    counts = results["once"].key_by("k").window(ms.sliding("6s", "2s")).agg(n=ms.count())
    counts.sink(ms.Memory(), name="counts")
    return flow


def check_waiting(batches: Any, policy: Any, room: float, budget: Any) -> None:
    """The reference knows the columns of a side by its records, so each has at least one."""
    given_rows: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    both = ([("left", 0, 0), ("right", 1, 0)], False)
    second = 0
    with (
        pressed(*budget),
        Driver(waiting_flow(), scheduler=policy, batch_seconds=room, parallelism=2) as driver,
    ):
        for rows, again in (both, *batches):
            for side, k, v in rows:
                second += 1
                row = {"ts": START + timedelta(seconds=second), "k": k, "v": v}
                given_rows[side].append(row)
                driver.push(side, [row])
            driver.step()
            if again:
                driver.restart()
        driver.end()
        expected = reference(waiting_flow(), given_rows)
        for sink, rows in expected.items():
            assert_same(driver.output(sink), rows, what=sink)


@FEW
@given(BATCHES, policies, seconds, budgets)
def test_rows_that_wait_elsewhere_do_not_either(
    batches: Any, policy: Any, room: float, budget: Any
) -> None:
    check_waiting(batches, policy, room, budget)


@pytest.mark.long
@pytest.mark.timeout(7200)
@LONG
@given(BATCHES, policies, seconds, budgets)
def test_very_many_rows_that_wait_elsewhere_do_not(
    batches: Any, policy: Any, room: float, budget: Any
) -> None:
    check_waiting(batches, policy, room, budget)
