"""How often bounds of what a user's own metric scales contain the exact answer."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.estimating.estimates import Confidence
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import Blocks
from millstream.ops.estimating.scaled import Scaled

HOURS, DAYS = 24, 80  # as in HOP's figure 5: a file for each hour, and an estimate for each of 24
MARKS = (0.25, 0.5, 0.8)


def covered(promise: str, varies: float, runs: int, sign: int = 1) -> tuple[float, float]:
    """The share of bounds that were right, and of hours in which all were."""
    given, right, held, hours = 0, 0, 0, 0
    hour, count = np.tile(np.arange(HOURS), DAYS), HOURS * DAYS
    for seed in range(runs):
        rng = np.random.default_rng([seed, 31])
        views = sign * (200 + 1000 * (1 + np.sin(hour / 4))) * rng.lognormal(0, varies, count)
        exact = np.bincount(hour, weights=views)
        order = rng.permutation(count)
        scaled, blocks = Scaled(lambda row: row["files"] / DAYS, count), Blocks(count, float(count))
        always, before = np.ones(HOURS, bool), 0
        for look, end in enumerate((int(mark * count) for mark in MARKS), 1):
            new, before = order[before:end], end
            scaled.add("views", new, hour[new], views[new], HOURS)
            scaled.add("files", new, hour[new], np.ones(len(new)), HOURS)
            blocks.add(np.ones(len(new)))
            present = np.bincount(hour[order[:end]], minlength=HOURS)
            sure = Confidence(0.95, promise, look)
            found = scaled.estimates({"hour": list(range(HOURS))}, present, blocks, sure)["views"]
            known = ~np.isnan(found.lower)
            inside = known & (found.lower <= exact) & (exact <= found.upper)
            given, right = given + known.sum(), right + inside.sum()
            always &= inside | ~known
        held, hours = held + int(always.sum()), hours + HOURS
    assert given > HOURS * runs
    return right / given, held / hours


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("varies", [0.3, 1.0])
def test_bounds_of_a_metric_contain_the_exact_answer(varies: float, sign: int) -> None:
    assert covered(POINTWISE, varies, 20, sign)[0] >= 0.94
    assert covered(ANYTIME, varies, 20, sign)[1] >= 0.94
