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
from tests.differential.flows import Input, Recipe, inputs, recipes

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
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
        assert_same(found[sink], rows, scale=magnitude(batches), what=sink)
    assert_windows_ascend(found["out"])


runs = st.integers(1, 2).flatmap(
    lambda sources: st.tuples(
        recipes(sources=sources),
        inputs(sources),
        st.sampled_from([1, 2, 4]),
        st.dictionaries(st.integers(1, 3), st.sampled_from([1, 2, 4]), max_size=2),
    )
)


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
