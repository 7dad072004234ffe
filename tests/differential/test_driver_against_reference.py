"""The engine gives what a plain interpreter gives, however the input is cut and restarted."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.ops.records import as_json
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same, assert_windows_ascend, magnitude
from tests.differential.flows import (
    Input,
    Recipe,
    inputs,
    kind_of,
    recipes,
    recipes_of_changes,
    recipes_of_kinds,
)

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
FEW = settings(QUICK, max_examples=30)
LONG = settings(max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))


def drive(recipe: Recipe, given: Input, parallelism: int, stops: dict[int, int]) -> dict[str, Any]:
    """Run a flow; before some batches stop and go on from the checkpoint with other parallelism."""
    flow = recipe.build()
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="millstream-") as place:
        driver = Driver(flow, parallelism=parallelism, checkpoint=place)
        sinks = list(driver._sinks)
        for number, pieces in enumerate(given.batches):
            if number in stops:
                _take(driver, sinks, out)
                driver.close()
                driver = Driver(flow, parallelism=stops[number], checkpoint=place)
            for source, rows in pieces:
                driver.push(source, rows)
            driver.step()
        driver.end()
        _take(driver, sinks, out)
        driver.close()
    return out


def _take(driver: Driver, sinks: list[str], out: dict[str, Any]) -> None:
    for sink in sinks:
        out.setdefault(sink, []).extend(driver.output(sink))


def check(recipe: Recipe, given: Input, parallelism: int, stops: dict[int, int]) -> None:
    batches = given.flat()
    expected = reference(recipe.build(), batches=batches)
    found = drive(recipe, given, parallelism, stops)
    assert found.keys() == expected.keys()
    for sink, rows in expected.items():
        if sink == "late" and recipe.job.kind == "map_reduce":
            rows = [{name: as_json(value) for name, value in row.items()} for row in rows]
        if sink == "out" and recipe.job.emit:
            found[sink] = final_rows(recipe, found[sink])
        assert_same(found[sink], rows, scale=magnitude(batches), what=sink)
    if kind_of(recipe.job.window) in ("plain", "landmark") and not recipe.job.emit:
        assert_windows_ascend(found["out"])


def final_rows(recipe: Recipe, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a stream of early results or changes comes to, without the marks."""
    if recipe.job.emit["emit"] == "early":
        return [_without(row, "revision") for row in rows if row["final"]]
    keys = ("key",) if recipe.job.kind == "map_reduce" else recipe.job.keys
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = repr(([_plain(row.get(key)) for key in keys], row["window_end"]))
        assert row["op"] == ("u" if name in last else "+")
        last[name] = _without(row, "op")
    return list(last.values())


def _plain(key: Any) -> Any:
    """2 and -0.0 are the same keys as 2.0 and 0.0."""
    return key + 0.0 if type(key) in (int, float) else key


def _without(row: dict[str, Any], mark: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != mark}


def runs_of(some: Any) -> Any:
    """A flow, its input, and how it is run."""
    return st.integers(1, 2).flatmap(
        lambda sources: st.tuples(
            some(sources=sources),
            inputs(sources),
            st.sampled_from([1, 2, 4]),
            st.dictionaries(st.integers(1, 3), st.sampled_from([1, 2, 4]), max_size=2),
        )
    )


runs, runs_of_kinds = runs_of(recipes), runs_of(recipes_of_kinds)
runs_of_changes = runs_of(recipes_of_changes)


@QUICK
@given(runs)
def test_random_flows_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(runs)
def test_many_random_flows_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@FEW
@given(runs_of_kinds)
def test_other_kinds_of_windows_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(runs_of_kinds)
def test_many_other_kinds_of_windows_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@FEW
@given(runs_of_changes)
def test_early_results_and_changes_come_to_what_the_reference_gives(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(runs_of_changes)
def test_many_early_results_and_changes_come_to_what_the_reference_gives(run: Any) -> None:
    check(*run)
