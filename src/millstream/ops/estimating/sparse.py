"""Totals of groups that were in few blocks, where no middle of many blocks can be taken.

What a group was given by blocks is then a handful of rare events of different weights, and its
bounds are those of Fay and Feuer (1997) for such a sum: gamma distributions that have its mean and
variance, the upper one with one more event of the largest weight. How heavy one block can be for a
group that was seen once is asked of all groups together: in files sorted by group a block may be
full of it, in shuffled ones it has hardly any.
"""

from __future__ import annotations

import numpy as np

from millstream.ops.chunks import Floats
from millstream.ops.estimating.distributions import gamma
from millstream.ops.estimating.moments import COUNT, Blocks, Moments


def sparse_total(
    moments: Moments, factor: str, blocks: Blocks, risk: float, heaviest: Floats | None = None
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the totals of all groups, for those in few blocks.

    heaviest: what one more block may have of each, if its own blocks are enough to say it.
    """
    seen = moments.total(factor)
    square = moments.squares({factor: np.ones_like(seen)}, blocks)
    if heaviest is None:
        heaviest = np.maximum(moments.largest(factor), 2 * clustering(moments, factor, blocks))
    share = blocks.sums[1] / blocks.size
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = np.maximum(seen**2 / square, 1.0)
        low = square / seen * gamma(risk / 2, shape)
        more, var = seen + heaviest, square + heaviest**2
        high = var / more * gamma(1 - risk / 2, np.maximum(more**2 / var, 1.0))
    # Only what was not read is uncertain: it is to what was read as sizes are, and as sure as if
    # the rest had been drawn by itself (Poisson events in disjoint parts are independent).
    left = (1 - share) / share
    spread_low = (seen - low) * np.sqrt(1 / (1 - share))
    spread_high = (high - seen) * np.sqrt(1 / (1 - share))
    lower = seen + left * np.maximum(seen - spread_low, 0.0)
    upper = seen + left * (seen + spread_high)
    unknown = (seen <= 0) | moments.negative(factor)
    return np.where(unknown, -np.inf, lower), np.where(unknown, np.inf, upper)


def unseen_total(moments: Moments, factor: str, blocks: Blocks, risk: float) -> float:
    """The most that a group which was in no block can have: one block of it, and a rare event."""
    if blocks.read >= blocks.count:
        return -np.inf
    heaviest = 2 * clustering(moments, factor, blocks)
    known = heaviest[np.isfinite(heaviest)]
    share = blocks.sums[1] / blocks.size
    most = gamma(1 - risk, np.ones(1))[0] * np.sqrt(1 / (1 - share)) * (1 - share) / share
    return float(known.max() * most) if len(known) else np.inf


def clustering(moments: Moments, factor: str, blocks: Blocks) -> Floats:
    """How much one block may have of a group, by the group whose records lie together most.

    Records strewn at random give blocks Poisson numbers, of which the mean square is the mean and
    its square; how many times that it is says how many records lie together.
    """
    seen = np.abs(moments.total(factor))
    counted = COUNT in moments.factors
    with np.errstate(divide="ignore", invalid="ignore"):
        single = seen / moments.total(COUNT) if counted else np.ones_like(seen)
        square = moments.squares({factor: np.ones_like(seen)}, blocks)
        together = square / (seen * single + seen**2 / blocks.read)
        # What gains and losses come to says nothing of how large they are; what blocks had does.
        had = np.sqrt(square / moments.present)
    signed = moments.negative(factor)
    known = together[np.isfinite(together) & ~signed]
    return np.where(signed, had, single * (known.max() if len(known) else 1.0))
