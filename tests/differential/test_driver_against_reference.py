"""The engine gives what a plain interpreter gives, however the input is cut and restarted."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.records import as_json
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same, assert_windows_ascend, magnitude, tidy
from tests.differential.flows import (
    Input,
    Recipe,
    inputs,
    kind_of,
    recipes,
    recipes_of_changes,
    recipes_of_kinds,
    recipes_over_changes,
)

QUICK = settings(max_examples=15, derandomize=True)
FEW = settings(QUICK, max_examples=6)
LONG = settings(max_examples=2_000)


def drive(
    recipe: Recipe, given: Input, parallelism: int, stops: dict[int, int], **options: Any
) -> dict[str, Any]:
    """Run a flow; before some batches stop and go on from the checkpoint with other parallelism."""
    flow = recipe.build()
    out: dict[str, Any] = {}  # per sink a list of what each batch gave
    with tempfile.TemporaryDirectory(prefix="millstream-") as place:
        options = {"checkpoint": place, "dead_letter_limit": 1.0, **options}
        driver = Driver(flow, parallelism=parallelism, **options)
        sinks = list(driver._sinks)
        for number, pieces in enumerate(given.batches):
            if number in stops:
                driver.close()
                driver = Driver(flow, parallelism=stops[number], **options)
            for source, rows in pieces:
                driver.push(source, rows)
            _take(driver, sinks, out, driver.step)
        _take(driver, sinks, out, driver.end)
        driver.close()
    return out


def _take(driver: Driver, sinks: list[str], out: dict[str, Any], run: Any) -> None:
    before = {sink: len(driver.output(sink)) for sink in sinks}
    run()
    for sink in sinks:
        out.setdefault(sink, []).append(driver.output(sink)[before[sink] :])


def check(
    recipe: Recipe, given: Input, parallelism: int, stops: dict[int, int], **options: Any
) -> None:
    batches = given.flat()
    expected = reference(recipe.build(), batches=batches)
    given_out = drive(recipe, given, parallelism, stops, **options)
    assert given_out.keys() == expected.keys()
    found = {sink: [row for rows in given_out[sink] for row in rows] for sink in given_out}
    for sink, rows in expected.items():
        if sink == "late" and recipe.job.kind == "map_reduce":
            rows = [{name: as_json(value) for name, value in row.items()} for row in rows]
        if sink == "out" and recipe.job.emit.get("emit") == "early":
            found[sink] = last_revisions(recipe, found[sink])
        elif sink == "out" and recipe.job.emit:
            found[sink] = sum_of_changes(recipe.job.kind, recipe.job.keys, given_out[sink])
        elif sink == "then" and recipe.then_emit:
            job = "map_reduce" if recipe.job.kind == "map_reduce" else recipe.second
            found[sink] = sum_of_changes(job, recipe.job.keys, given_out[sink])
        assert_same(found[sink], rows, scale=magnitude(batches), what=sink)
    if kind_of(recipe.job.window) in ("plain", "landmark") and not recipe.job.emit:
        assert_windows_ascend(found["out"])


def last_revisions(recipe: Recipe, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a stream of early results comes to, without the marks."""
    kind = kind_of(recipe.job.window)
    revisions: dict[str, list[tuple[int, bool]]] = {}
    for row in rows:
        at = ("window_start", "window_end") if kind in ("plain", "landmark") else ("window_start",)
        revisions.setdefault(_name(recipe.job.kind, recipe.job.keys, row, *at), []).append(
            (row["revision"], row["final"])
        )
    if kind in ("plain", "landmark"):
        for known in revisions.values():  # one by one, and nothing after the last
            assert sorted(set(known)) == list(dict.fromkeys(known))
            assert [number for number, _ in dict.fromkeys(known)] == list(range(len(set(known))))
            assert not any(final for _, final in list(dict.fromkeys(known))[:-1])
    return [_without(row, "revision") for row in rows if row["final"]]


def sum_of_changes(
    job: str, keys: tuple[str, ...], batches: list[list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """What a stream of changes comes to, without the marks."""
    current: dict[str, list[dict[str, Any]]] = {}
    for rows in batches:
        updated: set[str] = set()
        for row in rows:
            name = _name(job, keys, row, "window_start", "window_end")
            plain = _without(row, "op")
            if row["op"] == "-":
                held = current[name]
                held.remove(next(one for one in held if repr(tidy([one])) == repr(tidy([plain]))))
            elif row["op"] == "u" and name not in updated:
                assert current[name]
                current[name] = [plain]
                updated.add(name)
            else:
                current.setdefault(name, []).append(plain)
    return [row for rows in current.values() for row in rows]


def _name(job: str, keys: tuple[str, ...], row: dict[str, Any], *bounds: str) -> str:
    named = ("key",) if job == "map_reduce" else keys
    return repr(([_plain(row.get(key)) for key in named], *(row.get(at) for at in bounds)))


def _plain(key: Any) -> Any:
    """2 and -0.0 are the same keys as 2.0 and 0.0."""
    return key + 0.0 if type(key) in (int, float) else key


def _without(row: dict[str, Any], mark: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != mark}


def runs_of(some: Any, least: int = 0) -> Any:
    """A flow, its input, and how it is run."""
    return st.integers(1, 2).flatmap(
        lambda sources: st.tuples(
            some(sources=sources),
            inputs(sources, least=least),
            st.sampled_from([1, 2, 4]),
            st.dictionaries(st.integers(1, 3), st.sampled_from([1, 2, 4]), max_size=2),
        )
    )


runs, runs_of_kinds = runs_of(recipes), runs_of(recipes_of_kinds)
runs_of_changes = runs_of(recipes_of_changes, least=2)
runs_over_changes = runs_of(recipes_over_changes, least=4)


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


@FEW
@given(runs_over_changes)
def test_jobs_over_changes_give_what_they_give_over_final_results(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(runs_over_changes)
def test_many_jobs_over_changes_give_what_they_give_over_final_results(run: Any) -> None:
    check(*run)
