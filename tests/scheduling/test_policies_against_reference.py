"""Whoever is served first and whoever has to wait, results are those of a plain interpreter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differential import test_driver_against_reference as windows
from tests.scheduling.pressing import budgets, policies, pressed, seconds
from tests.updates import test_driver_against_reference as updaters

QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
LONG = settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))

any_windows = st.one_of(windows.runs, windows.runs_of_kinds, windows.runs_of_changes)


def check(run: Any, of: Any, policy: Any, room: float, budget: Any) -> None:
    with pressed(*budget):
        of.check(*run, scheduler=policy, batch_seconds=room)


@QUICK
@given(any_windows, policies, seconds, budgets)
def test_windows_do_not_depend_on_who_is_served_first(
    run: Any, policy: Any, room: float, budget: Any
) -> None:
    check(run, windows, policy, room, budget)


@QUICK
@given(updaters.runs, policies, seconds, budgets)
def test_updaters_and_cycles_do_not_either(run: Any, policy: Any, room: float, budget: Any) -> None:
    check(run, updaters, policy, room, budget)


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
    check(run, updaters, policy, room, budget)
