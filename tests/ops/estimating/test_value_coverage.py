"""How often bounds of quantiles and of numbers of different values contain the exact answer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from millstream.ops.estimating.estimates import Confidence
from millstream.ops.estimating.incidence import Incidence
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import Blocks
from millstream.ops.estimating.ranks import Ranks, picked
from tests.ops.estimating.inputs import GROUPS, ORDERS, Input, make

MARKS = (0.05, 0.1, 0.25, 0.5, 0.75)
SHARES = (0.1, 0.5, 0.9)


def ids(data: Input) -> np.ndarray:
    return np.floor(data.value * 200).astype(np.uint64)


def answers(data: Input) -> dict[str, np.ndarray]:
    mine = [data.group == g for g in range(GROUPS)]
    found = {
        f"quantile {q}": np.array([np.quantile(data.value[one], q) for one in mine]) for q in SHARES
    }
    return {**found, "distinct": np.array([len(np.unique(ids(data)[one])) for one in mine])}


def one_run(data: Input, seed: int, promise: str, right: Counter[str], given: Counter[str]) -> None:
    exact, values = answers(data), ids(data)
    order = np.random.default_rng([seed, 7]).permutation(len(data.sizes))
    blocks, done = Blocks(len(data.sizes), data.sizes.sum()), 0
    ranks, incidence = {f"quantile {q}": Ranks(q) for q in SHARES}, Incidence()
    always = {name: np.ones(GROUPS, bool) for name in exact}
    for look, mark in enumerate(MARKS, 1):
        new = order[done : (done := int(np.ceil(mark * len(order))))]
        blocks.add(data.sizes[new])
        for block in new.tolist():
            at = data.block(block)
            group, value = data.group[at], data.value[at]
            rows, weights = picked(group, value, GROUPS, block)
            for one in ranks.values():
                one.add(group[rows], np.full(len(rows), block), value[rows], weights)
            pairs = np.unique(np.stack([group.astype(np.uint64), values[at]]), axis=1)
            incidence.add(pairs[0].astype(np.int64), np.full(len(pairs[0]), block), pairs[1])
        sure = Confidence(0.95, promise, look)
        for name, kept in {**ranks, "distinct": incidence}.items():
            found = kept.estimates(GROUPS, blocks, sure)
            said = ~(np.isnan(found.lower) & np.isnan(found.upper)) & ~np.isnan(found.value)
            inside = ~((exact[name] < found.lower) | (exact[name] > found.upper))
            given[name] += int(said.sum())
            right[name] += int((said & inside).sum())
            always[name] &= inside | ~said
    for name, held in always.items():
        right[f"{name}, whole paths"] += int(held.sum()) if promise == ANYTIME else GROUPS
        given[f"{name}, whole paths"] += GROUPS


def check(order: str, promise: str, runs: int, least: float = 0.94) -> None:
    right, given = Counter[str](), Counter[str]()
    for seed in range(runs):
        one_run(make(order, seed), seed, promise, right, given)
    for name, count in given.items():
        where = f"{name}, {order}, {promise}, {runs} runs: {right[name]} of {count} are right"
        assert count > 0, where
        assert right[name] >= least * count, where


@pytest.mark.parametrize(
    ("order", "promise"), [("shuffled", POINTWISE), ("sorted by value", ANYTIME)]
)
def test_bounds_contain_the_exact_answer(order: str, promise: str) -> None:
    check(order, promise, 5, least=0.9)  # so few runs are right to a few per cent themselves


@pytest.mark.long
@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
@pytest.mark.parametrize("order", ORDERS)
def test_bounds_contain_the_exact_answer_in_many_runs(order: str, promise: str) -> None:
    check(order, promise, 200)


def test_picked_values_stand_for_all() -> None:
    rng = np.random.default_rng(0)
    groups = rng.choice(3, 20_000, p=[0.9, 0.0999, 0.0001])
    values = rng.normal(size=len(groups))
    sums = np.zeros(3)
    below = 0.0
    for seed in range(50):
        rows, weights = picked(groups, values, 3, seed)
        assert len(rows) < 4_500
        sums += np.bincount(groups[rows], weights=weights, minlength=3)
        below += weights[(values[rows] < -1) & (groups[rows] == 0)].sum()
    assert sums / 50 == pytest.approx(np.bincount(groups, minlength=3), rel=0.01)
    assert below / 50 == pytest.approx(((values < -1) & (groups == 0)).sum(), rel=0.02)
