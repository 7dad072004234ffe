"""Counts and sums scaled by a metric of the user's: the share of each group that was seen.

Whoever knows how much of a group there is in all can say how much of it was read, better than the
share of the input does (the sample fraction of HOP). What such a function does with its numbers is
not known, so how sure its estimates are is found by leaving out a twentieth of the blocks at a
time, in turn (the delete-a-group jackknife; Kott 2001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from millstream.errors import ConfigError
from millstream.ops.chunks import Int64
from millstream.ops.estimating.estimates import LEAST_PRESENT, Confidence, Estimates
from millstream.ops.estimating.intervals import radius
from millstream.ops.estimating.moments import Blocks
from millstream.ops.records import describe

Floats = np.ndarray[Any, np.dtype[np.float64]]
Metric = Callable[[dict[str, Any]], float | None]

_PARTS = 20


class Scaled:
    """What blocks gave, in parts of which each can be left out."""

    def __init__(self, metric: Metric, blocks: int) -> None:
        self.metric = metric
        # Which part a block belongs to, at random: neighbours may be alike.
        self._part = np.random.default_rng(1).permutation(blocks) % _PARTS
        self._sums: dict[str, Floats] = {}

    def add(self, name: str, block: Int64, groups: Int64, values: Floats, count: int) -> None:
        """What blocks gave one aggregate of every group."""
        before = self._sums.get(name, np.zeros((_PARTS, 0)))
        sums = np.pad(before, ((0, 0), (0, count - before.shape[1])))
        np.add.at(sums, (self._part[block], groups), values)
        self._sums[name] = sums

    def estimates(
        self, keys: Mapping[str, list[Any]], present: Int64, blocks: Blocks, sure: Confidence
    ) -> dict[str, Estimates]:
        """All aggregates of every group, as the metric scales them."""
        count = len(present)
        seen = {
            name: np.pad(sums, ((0, 0), (0, count - sums.shape[1])))
            for name, sums in self._sums.items()
        }
        whole = {name: sums.sum(axis=0) for name, sums in seen.items()}
        rows = _rows(keys, whole, count)
        share = np.array([self._share(row) for row in rows])
        left_out = []
        for part in range(_PARTS):
            less = {name: whole[name] - sums[part] for name, sums in seen.items()}
            shares = np.array([self._share(row) for row in _rows(keys, less, count)])
            left_out.append({name: _over(values, shares) for name, values in less.items()})
        times = radius(sure.promise, sure.risk, blocks.draws, np.full(1, _PARTS - 1.0))
        times = times * np.sqrt(blocks.draws)
        known = (present >= LEAST_PRESENT) & (not blocks.few)
        found = {}
        for name, total in whole.items():
            value = _over(total, share)
            others = np.array([one[name] for one in left_out])
            spread = ((others - others.mean(axis=0)) ** 2).sum(axis=0)
            error = np.sqrt((_PARTS - 1) / _PARTS * spread * blocks.left)
            lower, upper = (
                np.where(known, value + side * times * error, np.nan) for side in (-1, 1)
            )
            found[name] = Estimates(value, lower, upper)
        return found

    def _share(self, row: dict[str, Any]) -> float:
        try:
            found = self.metric(row)
        except BaseException as error:  # a user's function may raise anything
            raise ConfigError(
                f"snapshots(metric=): it raised {describe(error)} for {row!r}; expected the share "
                "of the group that was seen, or None if it is not known"
            ) from error
        if found is None:
            return np.nan
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < np.inf:
            raise ConfigError(
                f"snapshots(metric=): expected the share of a group that was seen, from 0 to 1, or "
                f"None; got {found!r} for {row!r}"
            )
        return float(found) if found > 0 else np.nan


def _rows(keys: Mapping[str, list[Any]], values: dict[str, Floats], count: int) -> Iterator[Any]:
    names = [*keys, *values]
    columns = [*keys.values(), *(one.tolist() for one in values.values())]
    for row in range(count):
        yield {name: column[row] for name, column in zip(names, columns, strict=True)}


def _over(values: Floats, shares: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = values / shares
    return found
