"""Which values of a block are kept for quantiles, and that they stand for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.estimating.ranks import picked


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
