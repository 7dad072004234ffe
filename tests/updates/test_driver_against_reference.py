"""Updaters give what a plain interpreter gives, however the input is cut and restarted."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Driver, reference
from tests.differential.comparing import assert_same
from tests.updates.flows import Batches, Recipe, inputs, recipes

QUICK = settings(max_examples=8, derandomize=True)
LONG = settings(max_examples=10_000)
FREELY: dict[str, Any] = {"dead_letter_limit": 1.0}


class Found:
    """What a run gave: rows per sink, slates per updater, accounts and dead letters per step."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.slates: dict[str, dict[Any, Any]] = {}
        self.ledger: dict[str, dict[str, int]] = {}
        self.dead: Counter[str] = Counter()

    def take(self, driver: Driver) -> None:
        for sink in driver._sinks:
            self.rows.setdefault(sink, []).extend(driver.output(sink))


def drive(
    recipe: Recipe, batches: Batches, parallelism: int, stops: dict[int, int], **options: Any
) -> Found:
    """Run a flow; before some batches stop and go on from the checkpoint with other parallelism."""
    found = Found()
    flow = recipe.build()
    with tempfile.TemporaryDirectory(prefix="millstream-") as place:

        def start(parallelism: int) -> Driver:
            return Driver(flow, parallelism=parallelism, checkpoint=place, **FREELY, **options)

        try:
            driver = start(parallelism)
        except ms.ConfigError as error:
            if "cycle" in str(error):  # windows, merge and two orders are refused there
                reject()
            raise
        for number, pieces in enumerate(batches):
            if number in stops:
                found.take(driver)
                driver.close()
                driver = start(stops[number])
            for source, rows in pieces.items():
                driver.push(source, rows)
            driver.step()
        driver.end()
        found.take(driver)
        for number in range(len(recipe.updaters)):
            found.slates[f"u{number}"] = driver.slates(f"u{number}")
        found.ledger = driver.ledger
        found.dead = Counter(letter["operator"] for letter in driver.dead)
        driver.close()
    return found


def check(
    recipe: Recipe,
    batches: Batches,
    parallelism: int,
    stops: dict[int, int],
    shards: int,
    **options: Any,
) -> None:
    found = drive(recipe, batches, parallelism, stops, shards=shards, **options)
    expected = reference(recipe.build(), batches=batches)
    assert found.rows.keys() == expected.keys()
    for sink, rows in expected.items():
        assert_same(found.rows[sink], rows, what=sink)
    assert found.slates == expected.slates
    for name, counts in expected.counts.items():
        account = found.ledger.get(name, {})
        for what in ("offered", "diverted", "late"):
            assert account.get(what, 0) == counts.get(what, 0), (name, what)
        assert found.dead[name] == counts.get("dead", 0) + counts.get("failed", 0), name


runs = st.integers(1, 2).flatmap(
    lambda sources: st.tuples(
        recipes(sources),
        inputs(sources),
        st.sampled_from([1, 2, 3]),
        st.dictionaries(st.integers(1, 3), st.sampled_from([1, 2, 3]), max_size=2),
        st.sampled_from([1, 3, 8]),
    )
)


@QUICK
@given(runs)
def test_random_updaters_give_what_the_reference_gives(run: Any) -> None:
    check(*run)


@pytest.mark.long
@pytest.mark.timeout(7200)
@LONG
@given(runs)
def test_many_random_updaters_give_what_the_reference_gives(run: Any) -> None:
    check(*run)
