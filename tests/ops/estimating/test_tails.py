"""Which columns are said to have no variance, by distributions whose tails are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from millstream.ops.estimating.tails import PER_BLOCK, Tail, furthest

Draw = Callable[[np.random.Generator], np.ndarray]
ROWS = (120, 80)  # blocks, and values of each


def often(draw: Draw) -> float:
    """In how many of twenty inputs a tail is called heavy."""
    found = 0
    for seed in range(20):
        rng, tail = np.random.default_rng(seed), Tail()
        for block in draw(rng).reshape(ROWS):
            tail.add([furthest(block).tolist()])
        found += tail.heavy(ROWS[0] * ROWS[1])
    return found / 20


@pytest.mark.parametrize(
    "draw",
    [lambda rng: rng.pareto(1.6, ROWS), lambda rng: 1e6 - rng.pareto(1.3, ROWS)],
    ids=["Pareto 1.6", "Pareto 1.3, downwards and far away"],
)
def test_a_tail_without_a_variance_is_heavy(draw: Draw) -> None:
    assert often(draw) >= 0.9


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(50, 3, ROWS),
        lambda rng: rng.exponential(1, ROWS),
        lambda rng: rng.lognormal(0, 1.0, ROWS),
        lambda rng: rng.pareto(3.5, ROWS),
        lambda rng: rng.integers(0, 2, ROWS).astype(float),
        lambda rng: np.where(rng.random(ROWS) < 0.05, rng.gamma(2, 3, ROWS), 0.0),
        lambda rng: np.full(ROWS, 7.25),
    ],
    ids=["normal", "exponential", "log normal", "Pareto 3.5", "bits", "mostly zero", "one value"],
)
def test_a_tail_with_a_variance_is_not(draw: Draw) -> None:
    assert often(draw) <= 0.1


def test_values_sorted_into_blocks_say_nothing() -> None:
    """All that is far out is in one block, which reports a few values of it only."""
    assert often(lambda rng: np.sort(rng.pareto(1.6, ROWS[0] * ROWS[1]))) == 0


def test_what_is_no_number_is_left_out() -> None:
    values = np.array([1.0, 2.0, 4.0])
    assert furthest(values).tolist() == [4 - 7 / 3, 7 / 3 - 1, 7 / 3 - 2]
    assert len(furthest(np.array([np.inf, 1.0]))) == 0
    assert len(furthest(np.arange(100.0))) == PER_BLOCK
