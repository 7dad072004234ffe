"""How many different values there are, from the blocks in which each was seen.

All that were seen are there: that is a lower bound. Values in one block only say how many are in
none: a value in K of N blocks is in none of the t read with a probability of at most (1 - f) / f
times that of being in exactly one, f = t / N; so what was not seen is on average at most so many
times what was seen once (the bound of Charikar and others, 2000). The estimate in between is that
of Chao and Lin (2012) for sampling without replacement.
"""

from __future__ import annotations

import numpy as np

from millstream.ops.chunks import Floats, Int64, UInt64, begins
from millstream.ops.estimating.distributions import gamma
from millstream.ops.estimating.estimates import LEAST_PRESENT, Confidence, Estimates
from millstream.ops.estimating.moments import Blocks

MOST = 10_000_000  # values of all groups that are followed


class Incidence:
    """In how many blocks each value of each group was seen."""

    def __init__(self) -> None:
        self._group: Int64 = np.zeros(0, np.int64)
        self._value: UInt64 = np.zeros(0, np.uint64)
        self._blocks: Int64 = np.zeros(0, np.int64)  # in how many
        self._last: Int64 = np.zeros(0, np.int64)  # in which, if it is one
        self._present: Int64 = np.zeros(0, np.int64)  # blocks with a group

    @property
    def too_many(self) -> bool:
        """There are more values than are followed."""
        return len(self._group) > MOST

    def add(self, groups: Int64, block: Int64, values: UInt64) -> None:
        """Values by their hashes, each once per group and block."""
        if self.too_many:
            return
        self._count_blocks(groups, block)
        group = np.concatenate([self._group, groups])
        value = np.concatenate([self._value, values])
        times = np.concatenate([self._blocks, np.ones(len(groups), np.int64)])
        last = np.concatenate([self._last, block])
        order = np.lexsort((value, group))
        group, value, times, last = (one[order] for one in (group, value, times, last))
        first = np.flatnonzero(begins(group, value))
        self._group, self._value, self._last = group[first], value[first], last[first]
        self._blocks = np.add.reduceat(times, first) if len(first) else times

    def _count_blocks(self, groups: Int64, block: Int64) -> None:
        """Blocks come whole, so that each pair of group and block is new."""
        if len(groups):
            width = int(block.max()) + 1
            of = np.unique(groups * width + block) // width
            more = np.bincount(of, minlength=len(self._present))
            more[: len(self._present)] += self._present
            self._present = more

    def estimates(self, count: int, blocks: Blocks, sure: Confidence) -> Estimates:
        """The number of different values of every group."""
        seen = np.bincount(self._group, minlength=count).astype(np.float64)
        if self.too_many:
            none = np.full(count, np.nan)
            return Estimates(none, none, none)
        if blocks.read >= blocks.count:
            return Estimates(seen, seen, seen)
        once = np.bincount(self._group[self._blocks == 1], minlength=count).astype(np.float64)
        twice = np.bincount(self._group[self._blocks == 2], minlength=count)
        share, read = blocks.share, blocks.read
        with np.errstate(divide="ignore", invalid="ignore"):
            more = once**2 / (read / max(read - 1, 1) * 2 * twice + share / (1 - share) * once)
        value = seen + np.where(once > 0, more, 0.0)
        if blocks.few:
            return Estimates(value, seen, np.full(count, np.nan))
        # A value in one block is read or not: what was not read is all there are less those seen.
        # So a doubt about their number counts for all of them, smaller by what is left.
        doubt = self._most_once(once, count, sure.spent) - once
        upper = seen + (1 - share) / share * once + np.sqrt(1 - share) / share * doubt
        return Estimates(value, seen, np.maximum(upper, value))

    def _most_once(self, once: Floats, count: int, risk: float) -> Floats:
        """How many values in one block may be expected, if there were so many.

        They come block by block, so their number varies as that of rare events whose weights are
        what single blocks brought (Fay and Feuer 1997).
        """
        single = self._blocks == 1
        block, group = self._last[single], self._group[single]
        width = int(block.max()) + 1 if len(block) else 1
        cells, times = np.unique(group * width + block, return_counts=True)
        of = cells // width
        square = np.bincount(of, weights=times.astype(np.float64) ** 2, minlength=count)
        most = np.ones(count)
        np.maximum.at(most, of, times)
        # What a block brings to a group that was in few of them may be what it brings to others.
        with np.errstate(divide="ignore", invalid="ignore"):
            clump = np.nanmax(square / once, initial=1.0)
        rare = np.pad(self._present, (0, count - len(self._present))) < LEAST_PRESENT
        most = np.where(rare, np.maximum(most, 2 * clump), most)
        more, var = once + most, square + most**2
        found: Floats = var / more * gamma(1 - risk, np.maximum(more**2 / var, 1.0))
        return found
