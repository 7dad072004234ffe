"""Quantiles from blocks: bounds for the share of values below, read back as values.

How large a share of a group's values lies below some value is a ratio of two totals, and its bounds
are those of any such ratio over blocks. The values that have these shares below them in the sample
bound the quantile (Woodruff 1952), whatever the values are distributed like.
"""

from __future__ import annotations

import numpy as np

from millstream.ops.chunks import Floats, Int64, Mask
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.intervals import radius
from millstream.ops.estimating.moments import Blocks

LEAST_PRESENT = 15  # blocks with a group before there are bounds
_LEAST_TAIL = 10  # blocks with values on either side, unless as many full ones would not matter
_PER_BLOCK = 4_096  # values of a block that are kept, of all groups together
_PER_GROUP = 8  # and of each group at least


def picked(groups: Int64, values: Floats, count: int, seed: int) -> tuple[Int64, Floats]:
    """The rows of a block that are kept, and how many each stands for.

    Of a group with many, every so many-th in their order, from a random one on: shares below any
    value stay what they are on average.
    """
    each = max(_PER_GROUP, _PER_BLOCK // max(count, 1))
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    first = np.cumsum(sizes) - sizes
    rank = np.arange(len(order)) - first[groups[order]]
    step = np.maximum(sizes / each, 1.0)
    start = np.random.default_rng(seed).random(count) * step
    of = groups[order]
    # The rows whose rank is the first at or after start + k * step, for some whole k.
    before = np.ceil((rank - start[of]) / step[of])
    here = np.ceil((rank + 1 - start[of]) / step[of]) > before
    keep = here & (rank + 1 > start[of])
    return order[keep], step[of[keep]]


class Ranks:
    """The values kept of all blocks, for one quantile of every group."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._parts: list[tuple[Int64, Int64, Floats, Floats]] = []

    def add(self, groups: Int64, block: Int64, values: Floats, weights: Floats) -> None:
        """Values of blocks, and how many each stands for."""
        self._parts.append((groups, block, values, weights))

    def estimates(self, count: int, blocks: Blocks, sure: Confidence) -> Estimates:
        """The quantile of every group."""
        found = np.full((3, count), np.nan)
        if self._parts:
            columns = [np.concatenate(part) for part in zip(*self._parts, strict=True)]
            self._parts = [tuple(columns)]  # type: ignore[list-item]
            groups, block, values, weights = columns
            order = np.lexsort((values, groups))
            ends = np.searchsorted(groups[order], np.arange(count + 1))
            for group in np.unique(groups).tolist():
                rows = order[ends[group] : ends[group + 1]]
                mine = block[rows], values[rows], weights[rows]
                found[:, group] = self._quantile(*mine, blocks, sure)
        return Estimates(*found)

    def _quantile(
        self, block: Int64, values: Floats, weights: Floats, blocks: Blocks, sure: Confidence
    ) -> tuple[float, float, float]:
        """The quantile of one group, from its values in ascending order."""
        below = np.cumsum(weights)
        total = below[-1]
        at = min(int(np.searchsorted(below, self.share * total)), len(values) - 1)
        value = float(values[at])
        _, of = np.unique(block, return_inverse=True)
        per_block = np.bincount(of, weights=weights)
        read, present = blocks.read, len(per_block)
        if read >= blocks.count:
            return value, value, value
        if present < LEAST_PRESENT or blocks.few:
            return value, np.nan, np.nan
        below_it, up_to_it = values < value, values <= value
        full = np.sort(per_block)[-_LEAST_TAIL:].sum() / total  # the share that so few can hold
        for side, room in ((below_it, self.share), (~up_to_it, 1 - self.share)):
            if len(np.unique(of[side])) < _LEAST_TAIL and full >= room:
                return value, np.nan, np.nan  # they say too little of how blocks differ there
        freedom = max(1.0, min(present, blocks.alike) - 1)
        wide = radius(sure.promise, sure.risk, blocks.draws, np.array([freedom]))[0]

        def off(side: Mask) -> float:
            """How far the share of values on one side may be from that in the sample."""
            there = np.bincount(of, weights=weights * side)
            rest = there - there.sum() / total * per_block
            return float(np.sqrt((rest**2).sum() / (read - 1)) * wide * read / total)

        # The next values outside: between two of the sample there may be others.
        low = int(np.searchsorted(below, (self.share - off(below_it)) * total)) - 1
        high = int(np.searchsorted(below, (self.share + off(up_to_it)) * total)) + 1
        return (
            value,
            float(values[low]) if low >= 0 else np.nan,
            float(values[high]) if high < len(values) else np.nan,
        )
