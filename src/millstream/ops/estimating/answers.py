"""From what blocks gave the groups of a window to a table of estimates with bounds.

The driver keeps an `Answers` for the window that is looked at: groups are numbered as they come,
and for each aggregate that has an estimator the moments of its blocks are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Int64, concat, flat
from millstream.ops.estimating.estimates import Confidence, Estimates, mean, total, variance
from millstream.ops.estimating.incidence import Incidence
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from millstream.ops.estimating.ranks import Ranks
from millstream.ops.estimating.scaled import Metric, Scaled
from millstream.ops.estimating.sparse import unseen_total
from millstream.ops.estimating.values import counts_values, quantile_of
from millstream.ops.jobs import Measure, WindowJob
from millstream.ops.kernels import Count, Sum, Variance
from millstream.ops.keys import factorize, key_arrays

Floats = np.ndarray[Any, np.dtype[np.float64]]


def summed(measure: Measure) -> bool:
    """Whether the totals of blocks are all that an estimate needs."""
    return isinstance(measure.kernel, Count | Sum | Variance)


def estimated(measure: Measure) -> bool:
    """Whether there is an estimator for an aggregate."""
    return summed(measure) or quantile_of(measure) is not None or counts_values(measure)


def reported_columns(job: WindowJob, columns: Iterable[str]) -> list[str]:
    """The columns of states per key that the driver is told."""
    wanted = tuple(f"state.{m.state}." for m in job.measures if summed(m))
    return [name for name in columns if name.startswith(("key.", *wanted))]


class Answers:
    """Estimates of all groups of a window, from the blocks that were read."""

    def __init__(
        self,
        keys: tuple[str, ...],
        measures: tuple[Measure, ...],
        starts: Int64,
        sizes: Floats,
        metric: Metric | None = None,
        ratios: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """The positions where blocks begin, ascending, and how large each is.

        metric: says how much of a group was seen, better than the share of the input does. ratios:
        of two counts or sums of a group, by name.
        """
        self.keys = keys
        self.measures = {m.name: m for m in measures if summed(m)}
        self._ranks = {m.name: Ranks(q) for m in measures if (q := quantile_of(m)) is not None}
        self._incidence = {m.name: Incidence() for m in measures if counts_values(m)}
        self.blocks = Blocks(len(starts), float(sizes.sum()))
        self._starts, self._sizes = starts, sizes
        self._known: pa.Table | None = None  # the keys of groups, in the order of their numbers
        self._kept = {name: Moments(_factors(m)) for name, m in self.measures.items()}
        self._shift: dict[str, Floats] = {}  # of every group; NaN before it has a value
        self._whole: set[str] = set()  # totals of whole numbers
        self._scaled = None if metric is None else Scaled(metric, len(starts))
        self._ratios = {
            name: (pair, Moments((COUNT, TOTAL))) for name, pair in (ratios or {}).items()
        }

    @property
    def groups(self) -> int:
        """How many there are so far."""
        return 0 if self._known is None else len(self._known)

    @property
    def whole(self) -> set[str]:
        """The aggregates that are whole numbers in the end."""
        counts = {name for name, m in self.measures.items() if isinstance(m.kernel, Count)}
        return counts | {*self._incidence} | self._whole

    def read(self, blocks: Int64) -> None:
        """These blocks have been read, whatever they gave."""
        self.blocks.add(self._sizes[blocks])

    def add(self, given: pa.Table) -> None:
        """What blocks gave: rows with a key, states, and a position in the block."""
        groups, block = self._number(given), self._block(given)
        count = self.groups
        cells, cell = np.unique(block * count + groups, return_inverse=True)
        size = self._sizes[cells // count]
        total: dict[str, Floats] = {}
        for name, measure in self.measures.items():
            values: dict[str, Floats] = {
                factor: np.bincount(cell, weights=column, minlength=len(cells)).astype(np.float64)
                for factor, column in self._values(name, measure, given, groups).items()
            }
            self._kept[name].add(cells % count, {**values, SIZE: size}, count)
            if (factor := totalled(measure)) is not None:
                total[name] = values[factor]
                if self._scaled is not None:
                    self._scaled.add(name, cells // count, cells % count, total[name], count)
        for (over, under), moments in self._ratios.values():
            # A ratio is a mean: what is counted is what stands below.
            moments.add(cells % count, {TOTAL: total[over], COUNT: total[under]}, count)

    def add_values(self, name: str, given: pa.Table) -> None:
        """Single values of blocks, for an aggregate that needs them."""
        groups, block = self._number(given), self._block(given)
        value = np.asarray(flat(given.column("value")))
        if name in self._ranks:
            weights = np.asarray(flat(given.column("weight")))
            self._ranks[name].add(groups, block, value, weights)
        elif name in self._incidence:
            order = np.lexsort((value, groups, block))  # pieces of a block may repeat a value
            groups, block, value = groups[order], block[order], value[order]
            new = np.ones(len(value), np.bool_)
            for one in (groups, block, value):
                new[1:] &= one[1:] == one[:-1]
            new[1:] = ~new[1:]
            self._incidence[name].add(groups[new], block[new], value[new])

    def _block(self, given: pa.Table) -> Int64:
        """The block of every row, by its place."""
        place = np.asarray(flat(given.column("block")))
        return np.searchsorted(self._starts, place, side="right") - 1

    def _number(self, given: pa.Table) -> Int64:
        """The number of the group of every row."""
        names = tuple(f"key.{index}" for index in range(len(self.keys)))
        if not names:
            self._known = pa.table({"whole": [0]})
            return np.zeros(len(given), np.int64)
        old = self.groups
        keys = given.select(names)
        both = keys if self._known is None else concat([self._known, keys])
        arrays = key_arrays(both, names)
        codes, _ = factorize(arrays)
        first = np.full(int(codes.max()) + 1, len(codes), np.int64)
        np.minimum.at(first, codes, np.arange(len(codes)))
        new = np.sort(first[first >= old])
        number = np.zeros(len(first), np.int64)
        number[codes[:old]] = np.arange(old)
        number[codes[new]] = old + np.arange(len(new))
        kept = np.concatenate([np.arange(old), new])
        self._known = pa.table(dict(zip(names, arrays, strict=True))).take(pa.array(kept))
        return number[codes[old:]]

    def _values(
        self, name: str, measure: Measure, given: pa.Table, groups: Int64
    ) -> dict[str, Floats]:
        """The numbers of every row: how many, their total, and that of their squares.

        Means and variances are taken about a value near the middle of their group, so that large
        numbers that differ little keep their digits, also in third powers.
        """
        n = _state(given, measure, "n")
        if isinstance(measure.kernel, Count):
            return {COUNT: n}
        if isinstance(measure.kernel, Variance):
            middle, squares = _state(given, measure, "mean"), _state(given, measure, "m2")
            shift = self._middle(name, groups, n * middle, n)
            return {
                COUNT: n,
                TOTAL: n * (middle - shift),
                SQUARES: squares + n * (middle - shift) ** 2,
            }
        sums = _sums(given, measure)
        if not measure.kernel.mean:  # type: ignore[union-attr]
            kind = given.schema.field(f"state.{measure.state}.sum").type
            self._whole = (
                self._whole | {name} if pa.types.is_integer(kind) else self._whole - {name}
            )
            return {COUNT: n, TOTAL: sums}
        return {COUNT: n, TOTAL: sums - n * self._middle(name, groups, sums, n)}

    def _middle(self, name: str, groups: Int64, sums: Floats, n: Floats) -> Floats:
        """What the values of every row are taken about: the mean of what its group first had."""
        shift = self._shifts(name)
        with np.errstate(divide="ignore", invalid="ignore"):
            first = np.bincount(groups, sums, self.groups) / np.bincount(groups, n, self.groups)
        self._shift[name] = np.where(np.isnan(shift) & np.isfinite(first), first, shift)
        return np.nan_to_num(self._shift[name])[groups]

    def _shifts(self, name: str) -> Floats:
        """The same of every group there is; NaN where it has had no value yet."""
        known = self._shift.get(name, np.zeros(0))
        return np.pad(known, (0, self.groups - len(known)), constant_values=np.nan)

    # -- looking --------------------------------------------------------------------------------

    def estimates(self, sure: Confidence) -> dict[str, Estimates]:
        """A value with bounds for every aggregate that has an estimator, and every group."""
        names = [*self.measures, *self._ranks, *self._incidence, *self._ratios]
        own = {name: self.estimates_of(name, sure) for name in names if name not in self.scaled}
        return {**own, **self._by_metric(sure)}

    @property
    def totals(self) -> list[str]:
        """The aggregates that grow with what was seen: counts and sums."""
        return [name for name, m in self.measures.items() if totalled(m) is not None]

    @property
    def scaled(self) -> list[str]:
        """The aggregates that a metric of the user's scales."""
        return [] if self._scaled is None else self.totals

    def _by_metric(self, sure: Confidence) -> dict[str, Estimates]:
        if self._scaled is None or not self.groups or not self.scaled:
            return {}
        keys = {name: column.to_pylist() for name, column in self.key_columns().items()}
        present = self._kept[self.scaled[0]].present
        found = self._scaled.estimates(keys, present, self.blocks, sure)
        for name, one in found.items():
            kept, factor = self._kept[name], totalled(self.measures[name]) or COUNT
            least = np.where(kept.negative(factor), -np.inf, kept.total(factor))
            found[name] = Estimates(one.value, np.maximum(one.lower, least), one.upper)
        return found

    def estimates_of(self, name: str, sure: Confidence) -> Estimates:
        """The same for one aggregate."""
        if name in self.scaled:
            return self._by_metric(sure)[name]
        if name in self._ratios:
            kept = self._ratios[name][1]
            kept.grow(self.groups)
            return mean(kept, self.blocks, sure)
        for one in (self._ranks, self._incidence):
            if name in one:
                return one[name].estimates(self.groups, self.blocks, sure)
        return self._estimate(name, sure)

    def unseen_total(self, name: str, sure: Confidence) -> float:
        """What a group that was in no block can have at most, where that is known."""
        kernel = self.measures[name].kernel if name in self.measures else None
        if isinstance(kernel, Count):
            return unseen_total(self._kept[name], COUNT, self.blocks, sure.spent)
        if isinstance(kernel, Sum) and not kernel.mean:
            return unseen_total(self._kept[name], TOTAL, self.blocks, sure.spent)
        return np.inf

    def _estimate(self, name: str, sure: Confidence) -> Estimates:
        kernel, kept = self.measures[name].kernel, self._kept[name]
        kept.grow(self.groups)
        if isinstance(kernel, Count):
            return total(kept, COUNT, self.blocks, sure)
        if isinstance(kernel, Variance):
            found = variance(kept, self.blocks, sure)
            return found.root() if kernel.root else found
        none = kept.total(COUNT) == 0
        if kernel.mean:  # type: ignore[union-attr]
            return mean(kept, self.blocks, sure).shifted(np.nan_to_num(self._shifts(name)))
        return total(kept, TOTAL, self.blocks, sure).without(none)

    def key_columns(self) -> dict[str, pa.Array]:
        """The keys of all groups so far."""
        known = self._known
        if known is None:
            return {name: pa.nulls(0) for name in self.keys}
        return {name: flat(known.column(f"key.{at}")) for at, name in enumerate(self.keys)}


def totalled(measure: Measure) -> str | None:
    """What of an aggregate grows with what was seen; None if it does not."""
    if isinstance(measure.kernel, Count):
        return COUNT
    return TOTAL if isinstance(measure.kernel, Sum) and not measure.kernel.mean else None


def _factors(measure: Measure) -> tuple[str, ...]:
    if isinstance(measure.kernel, Count):
        return (COUNT, SIZE)
    if isinstance(measure.kernel, Variance):
        return (COUNT, TOTAL, SQUARES)
    mean_only = isinstance(measure.kernel, Sum) and measure.kernel.mean
    return (COUNT, TOTAL) if mean_only else (COUNT, TOTAL, SIZE)


def _sums(given: pa.Table, measure: Measure) -> Floats:
    """Totals as near as a float is, also where whole numbers have left 64 bits."""
    total = _state(given, measure, "sum")
    if f"state.{measure.state}.upper" not in given.column_names:
        return total
    about = _state(given, measure, "upper") * 2.0**32
    found: Floats = total + 2.0**64 * np.rint((about - total) / 2.0**64)
    return found


def _state(given: pa.Table, measure: Measure, field: str) -> Floats:
    column = flat(given.column(f"state.{measure.state}.{field}"))
    return np.asarray(column.cast(pa.float64(), safe=False).fill_null(0.0))
