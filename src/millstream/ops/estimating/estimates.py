"""Estimates of aggregates over a whole input from some of its blocks, with lower and upper bounds.

Blocks are clusters of records and are drawn at random, so what varies is the block and not the
record: records of one block may be as alike as they please. Totals are estimated by the ratio to
the size of blocks, which is known for all of them, means and variances as ratios of totals
(Cochran, Sampling Techniques, 6 and 9A), with the variance of what is left of each block after the
ratio is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.ops.chunks import Floats
from millstream.ops.estimating.distributions import normal
from millstream.ops.estimating.intervals import ANYTIME, radius, stretched
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from millstream.ops.estimating.sparse import sparse_total

LEAST_PRESENT = 20  # with a group in them, before its blocks say how much they differ
LEAST_ACTIVE = 40  # with anything but zeros, where some blocks have nothing else
LEAST_SPREAD = 60  # with a group, before they say how much variances differ, which go by tails
_NEARLY_ALL = 0.9  # of the blocks with a group have something of it but zeros
_ALIKE = 1e-9  # of their squares
_ALONE = 0.4  # times as skew as it seems is what no other groups can be asked about
_OWN = 0.3  # of the skew of a group beyond that of the others
LEAST_FREEDOM = 4  # below that a few blocks have most of a group


@dataclass(frozen=True)
class Estimates:
    """A value for every group with its bounds; NaN where there is none yet."""

    value: Floats
    lower: Floats
    upper: Floats

    def shifted(self, by: Floats | float) -> Estimates:
        """All of it moved."""
        return Estimates(self.value + by, self.lower + by, self.upper + by)

    def without(self, none: Any) -> Estimates:
        """The same where there is anything to estimate."""
        return Estimates(*(np.where(none, np.nan, x) for x in (self.value, self.lower, self.upper)))

    def root(self) -> Estimates:
        """The square root of all of it."""
        with np.errstate(invalid="ignore"):
            return Estimates(np.sqrt(self.value), np.sqrt(self.lower), np.sqrt(self.upper))


@dataclass(frozen=True)
class Confidence:
    """How sure bounds are to be, in which sense, and at which look at the data this is."""

    share: float = 0.95
    promise: str = ANYTIME
    look: int = 1

    @property
    def risk(self) -> float:
        """What may go wrong."""
        return 1 - self.share

    @property
    def spent(self) -> float:
        """The risk of one look, where only the sum over all looks is known to hold together."""
        return self.risk / (self.look * (self.look + 1)) if self.promise == ANYTIME else self.risk


def total(moments: Moments, factor: str, blocks: Blocks, sure: Confidence) -> Estimates:
    """A sum or a count over the whole input."""
    seen = moments.total(factor)
    ratio = seen / blocks.sums[1]
    weights = {factor: np.ones_like(seen), SIZE: -ratio}
    found = _ratio(moments, weights, blocks, sure)
    mean_size = blocks.size / blocks.count
    scale = blocks.count * mean_size / (blocks.sums[1] / blocks.read)
    value = ratio * blocks.size
    lower, upper = value - scale * found.below, value + scale * found.above
    few = moments.present < min(LEAST_PRESENT, blocks.read / 2)
    zeros = moments.active < _NEARLY_ALL * moments.present  # rare values among many that are none
    rare = few | (zeros & (moments.active < min(LEAST_ACTIVE, _NEARLY_ALL * blocks.read)))
    few_say = ~rare & (found.freedom < LEAST_FREEDOM)
    if rare.any():
        low, high = sparse_total(moments, factor, blocks, sure.spent)
        # Between few blocks and many, neither way is sure to be wide enough: the wider one is.
        some = zeros & (moments.active >= LEAST_PRESENT / 2)
        low, high = (
            np.where(some, np.fmin(low, lower), low),
            np.where(some, np.fmax(high, upper), high),
        )
        lower, upper = np.where(rare, low, lower), np.where(rare, high, upper)
    if few_say.any():
        low, high = sparse_total(moments, factor, blocks, sure.spent, moments.largest(factor))
        lower = np.where(few_say, np.fmin(lower, low), lower)
        upper = np.where(few_say, np.fmax(upper, high), upper)
    least = _of_other_kinds(moments, factor, blocks, sure)
    lower, upper = np.minimum(lower, value - least), np.maximum(upper, value + least)
    # What was read is there; the rest cannot be less than nothing if nothing was so far.
    grows = ~moments.negative(factor)
    lower = np.where(grows, np.maximum(lower, seen), lower)
    return _settled(Estimates(value, lower, upper), blocks)


def _of_other_kinds(moments: Moments, factor: str, blocks: Blocks, sure: Confidence) -> Floats:
    """What blocks unlike all that were read may change, if they differ by a single record.

    Where records are all of one length, all blocks read have the same to the byte; the one with a
    header has less. A share of -log(risk) / t of the blocks may be so (the rule of three).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        single = np.nan_to_num(np.abs(moments.total(factor)) / moments.total(COUNT))
    found: Floats = -np.log(sure.spent) * blocks.left * blocks.count / (blocks.read + 1) * single
    return found


def mean(moments: Moments, blocks: Blocks, sure: Confidence) -> Estimates:
    """The mean of the values of a group."""
    n, seen = moments.total(COUNT), moments.total(TOTAL)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = seen / n
    weights = {TOTAL: np.ones_like(n), COUNT: -np.nan_to_num(value)}
    return _around(value, n, moments, weights, blocks, sure)


def variance(moments: Moments, blocks: Blocks, sure: Confidence) -> Estimates:
    """The sample variance of the values of a group."""
    n, seen, squares = (moments.total(one) for one in (COUNT, TOTAL, SQUARES))
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.nan_to_num(seen / n)
        about = np.maximum(squares - middle * seen, 0.0)
        value = np.where(n > 1, about / (n - 1), np.nan)
        spread = np.nan_to_num(about / n)
    # The squared distances from the mean, less the variance, of each block: what a change of the
    # mean does to them cancels (linearisation).
    weights = {SQUARES: np.ones_like(n), TOTAL: -2 * middle, COUNT: middle * middle - spread}
    found = _around(value, n, moments, weights, blocks, sure, LEAST_SPREAD)
    # Variances vary in proportion to themselves: bounds of their logarithm, to the second order.
    with np.errstate(divide="ignore", invalid="ignore"):
        down, up = (np.nan_to_num(np.abs(b / value - 1)) for b in (found.lower, found.upper))
        lower, upper = value / (1 + down + down**2 / 2), value * (1 + up + up**2 / 2)
    if blocks.read < blocks.count:
        # Divided by n - 1 the values of more blocks vary less, though all blocks be alike.
        lower = np.minimum(lower, spread)
    unknown = np.isnan(found.upper)
    lower, upper = (np.where(unknown, np.nan, bound) for bound in (lower, upper))
    return Estimates(value, lower, upper)


@dataclass(frozen=True)
class _Radii:
    """How far bounds are below and above, per block."""

    below: Floats
    above: Floats
    freedom: Floats  # how many blocks, less one, it stands on


def _around(
    value: Floats,
    n: Floats,
    moments: Moments,
    weights: dict[str, Floats],
    blocks: Blocks,
    sure: Confidence,
    least: int = LEAST_PRESENT,
) -> Estimates:
    """Bounds of a ratio of two totals, both over the group."""
    found = _ratio(moments, weights, blocks, sure, least)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_value = blocks.read / n
        lower, upper = value - found.below * per_value, value + found.above * per_value
    none = ~np.isfinite(value)
    lower, upper = (np.where(none, np.nan, bound) for bound in (lower, upper))
    return _settled(Estimates(value, lower, upper), blocks)


def _ratio(
    moments: Moments, weights: dict[str, Floats], blocks: Blocks, sure: Confidence, least: int = 0
) -> _Radii:
    """How far the mean of what is left of blocks may be from nothing.

    least: so many blocks with the group there must be, and those without it say nothing.
    """
    read = blocks.read
    square = np.maximum(moments.squares(weights, blocks), 0.0)
    deviation = np.sqrt(square / max(read - 1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        skew = moments.cubes(weights, blocks) / read / deviation**3
    # Blocks that are alike to so many digits have none left for a third power.
    main = next(iter(weights))
    whole = moments.squares({main: weights[main]}, blocks)
    skew = np.where(np.isfinite(skew) & (square > _ALIKE * whole), skew, 0.0)
    down, up = _long_sides(skew, moments, blocks, 1.0 if least == LEAST_SPREAD else _OWN)
    # What a long tail leaves of the degrees of freedom of a variance (Satterthwaite 1946): the
    # fourth moment is at least as large as the third says (Pearson 1916).
    with np.errstate(divide="ignore"):
        freedom = np.minimum(blocks.alike - 1, 2 * read / np.maximum(down, up) ** 2)
    if least:
        freedom = np.minimum(freedom, moments.present - 1.0)
    wide = radius(sure.promise, sure.risk, blocks.draws, np.maximum(freedom, 1.0))
    if read < blocks.count:
        wide = np.where(moments.present < least, np.inf, wide)
    draws = np.sqrt(blocks.draws)
    if not np.isfinite(draws):
        return _Radii(np.zeros_like(wide), np.zeros_like(wide), freedom)
    times = wide * draws  # in standard errors of the mean
    with np.errstate(invalid="ignore"):  # no difference between blocks, and too few of them
        below, above = (
            np.where(np.isinf(wide), np.inf, deviation * stretched(times, side, read)) / draws
            for side in (down, up)
        )
    low, high = _tails(moments, blocks, deviation, sure if least == LEAST_SPREAD else None)
    return _Radii(below + low, above + high, freedom)


def _long_sides(
    skew: Floats, moments: Moments, blocks: Blocks, counts: float
) -> tuple[Floats, Floats]:
    """How skew blocks are downwards and upwards, by what all groups say together.

    Who has not seen the long tail of a group does not see how skew it is either, and is wrong just
    then. Other groups mostly have a tail like it and know nothing of what its own blocks happen to
    be, so their mean is what a group has at least, on either side; of what its own blocks say
    beyond that, a part `counts`. Sums of m records are as skew as one over the root of m, so they
    are compared as records. Where there are few groups to ask, the mean counts for more.
    """
    known = moments.present >= LEAST_PRESENT
    with np.errstate(invalid="ignore"):
        single = np.sqrt(np.abs(moments.total(COUNT)) / blocks.read)
    known &= np.isfinite(single) & (single > 0)
    if not known.any():
        return np.maximum(-skew, 0.0), np.maximum(skew, 0.0)
    more = 1 + _ALONE / int(known.sum())
    found = []
    for own in (np.maximum(-skew, 0.0), np.maximum(skew, 0.0)):
        mean = more * (own * single)[known].mean()
        others = np.divide(mean, single, out=np.zeros_like(own), where=known)
        beyond = np.maximum(own - others, 0.0)
        found.append(np.where(known, others + counts * beyond, own))
    return found[0], found[1]


def _tails(
    moments: Moments, blocks: Blocks, deviation: Floats, sure: Confidence | None
) -> tuple[Floats, Floats]:
    """What blocks beyond all that were read may add to the mean of a block, on either side.

    After t of them about one in t + 1 is larger than all so far (Fay and Feuer 1997 count one more
    of the largest for that). Of a short tail that is in the deviation; of a long one, whose largest
    is further out than that of a normal distribution would be, the rest is added. sure: count as
    many as there may be with that confidence, for variances, which go by the largest values.
    """
    more = 1.0 if sure is None else -np.log(sure.risk / 2)
    expected = deviation * -normal(1 / (blocks.read + 1))
    left = more * blocks.left / (blocks.read + 1)
    lowest, highest = moments.extremes
    low, high = (left * np.maximum(one - expected, 0.0) for one in (-lowest, highest))
    return low, high


def _settled(found: Estimates, blocks: Blocks) -> Estimates:
    """Bounds that say nothing yet are left out; once all is read, there is nothing to bound."""
    if blocks.read >= blocks.count:
        return Estimates(found.value, found.value, found.value)
    if blocks.few:
        none = np.full(len(found.value), np.nan)
        return Estimates(found.value, none, none)
    lower, upper = (
        np.where(np.isfinite(bound), bound, np.nan) for bound in (found.lower, found.upper)
    )
    return Estimates(found.value, lower, upper)
