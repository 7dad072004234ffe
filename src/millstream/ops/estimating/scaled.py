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
from millstream.ops.chunks import Floats, Int64
from millstream.ops.estimating.estimates import LEAST_PRESENT, Confidence, Estimates
from millstream.ops.estimating.intervals import radius, stretched
from millstream.ops.estimating.moments import Blocks
from millstream.ops.records import describe

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
            lower, upper = _bounds(value, others, times, blocks.left)
            found[name] = Estimates(
                value, np.where(known, lower, np.nan), np.where(known, upper, np.nan)
            )
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


def _bounds(value: Floats, others: Floats, times: Floats, left: float) -> tuple[Floats, Floats]:
    """From the estimates with a part left out in turn; further to the side of a long tail."""
    off = others.mean(axis=0) - others  # of a part that holds much
    variance = (off**2).mean(axis=0)
    error = np.sqrt((_PARTS - 1) * variance * left)
    with np.errstate(divide="ignore", invalid="ignore"):
        skew = np.nan_to_num((off**3).mean(axis=0) / variance**1.5)
    down, up = (error * stretched(times, np.maximum(one, 0.0), _PARTS) for one in (-skew, skew))
    return (
        value - np.where(value < 0, _by_factors(down, value), down),
        value + np.where(value > 0, _by_factors(up, value), up),
    )


def _by_factors(far: Floats, value: Floats) -> Floats:
    """As far by factors, which is further away from zero; up to e times, as zero may be near."""
    size = np.abs(value)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.where(size > 0, np.minimum(far / size, 1.0), 0.0)
    found: Floats = far + size * (np.expm1(near) - near)
    return found


def _rows(keys: Mapping[str, list[Any]], values: dict[str, Floats], count: int) -> Iterator[Any]:
    names = [*keys, *values]
    columns = [*keys.values(), *(one.tolist() for one in values.values())]
    for row in range(count):
        yield {name: column[row] for name, column in zip(names, columns, strict=True)}


def _over(values: Floats, shares: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = values / shares
    return found
