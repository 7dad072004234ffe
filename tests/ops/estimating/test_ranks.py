"""Which values of a block are kept for quantiles, and that they stand for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.estimating.estimates import Confidence
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import Blocks
from millstream.ops.estimating.ranks import Ranks, picked


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


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_quantile_among_many_equal_values_is_bounded_by_them(share: float, promise: str) -> None:
    """97 of a hundred values are zero: so are these quantiles, and half of the blocks say so."""
    rng = np.random.default_rng(1)
    read, each = 120, 40
    values = np.where(rng.random(read * each) < 0.03, rng.lognormal(1.0, 1.0, read * each), 0.0)
    ranks, blocks = Ranks(share), Blocks(240, 240.0 * each)
    blocks.add(np.full(read, each))
    where = np.repeat(np.arange(read), each)
    ranks.add(np.zeros(len(where), np.int64), where, values, np.ones(len(where)))
    found = ranks.estimates(1, blocks, Confidence(0.95, promise))
    assert (found.lower[0], found.value[0], found.upper[0]) == (0.0, 0.0, 0.0)
