"""From what blocks gave the groups of a window to a table of estimates with bounds.

The driver keeps an `Answers` for the window that is looked at: groups are numbered as they come,
and for each aggregate that has an estimator the moments of its blocks are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.kernels import Variance
from millstream.ops.chunks import Floats, Int64, begins, concat, flat
from millstream.ops.estimating.estimates import Confidence, Estimates, mean, total, variance
from millstream.ops.estimating.incidence import Incidence
from millstream.ops.estimating.kinds import Kind, answer_type, kind_of, state_of, totals_of
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from millstream.ops.estimating.ranks import Ranks
from millstream.ops.estimating.scaled import Metric, Scaled
from millstream.ops.estimating.sparse import unseen_total
from millstream.ops.estimating.tails import Tail
from millstream.ops.estimating.values import counts_values, quantile_of
from millstream.ops.keys.hashing import factorize, key_arrays, key_names
from millstream.ops.windows.jobs import Measure, WindowJob

# Of numbers as large as floats go, or infinite, there are no bounds; that is all there is to say.
_of_any_size = np.errstate(over="ignore", invalid="ignore")


def estimated(measure: Measure) -> bool:
    """Whether there is an estimator for an aggregate."""
    by_totals = kind_of(measure) is not None
    return by_totals or quantile_of(measure) is not None or counts_values(measure)


def reported_columns(job: WindowJob, columns: Iterable[str]) -> list[str]:
    """The columns of states per key that the driver is told."""
    wanted = tuple(f"state.{m.state}." for m in job.measures if kind_of(m))
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
        self.measures = {m.name: m for m in measures if kind_of(m)}
        self._ranks = {m.name: Ranks(q) for m in measures if (q := quantile_of(m)) is not None}
        self._incidence = {m.name: Incidence() for m in measures if counts_values(m)}
        self.blocks = Blocks(len(starts), float(sizes.sum()))
        self._tails = {m.column: Tail() for m in self.measures.values() if m.column is not None}
        self._starts, self._sizes = starts, sizes
        self._left = np.ones(len(sizes), np.bool_)  # blocks that were not read
        self.blocks.largest_left = float(sizes.max(initial=0.0))
        self._known: pa.Table | None = None  # the keys of groups, in the order of their numbers
        self._kept = {name: Moments(_factors(m)) for name, m in self.measures.items()}
        self._shift: dict[str, Floats] = {}  # of every group; NaN before it has a value
        self._types: dict[str, pa.DataType | None] = {}  # of exact answers; None: floats
        self._scaled = None if metric is None else Scaled(metric, len(starts))
        self._ratios = {
            name: (pair, Moments((COUNT, TOTAL))) for name, pair in (ratios or {}).items()
        }

    @property
    def groups(self) -> int:
        """How many there are so far."""
        return 0 if self._known is None else len(self._known)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of exact answers that are no floats: whole numbers and decimals."""
        known = {name: kind for name, kind in self._types.items() if kind is not None}
        return known | dict.fromkeys(self._incidence, pa.int64())

    def read(self, blocks: Int64) -> None:
        """These blocks have been read, whatever they gave."""
        self.blocks.add(self._sizes[blocks])
        self._left[blocks] = False
        self.blocks.largest_left = float(self._sizes[self._left].max(initial=0.0))

    @_of_any_size
    def add(self, given: pa.Table) -> None:
        """What blocks gave: rows with a key, states, and a position in the block."""
        groups, block = self._number(given), self._block(given)
        count = self.groups
        cells, cell = np.unique(block * count + groups, return_inverse=True)
        size = self._sizes[cells // count]
        total: dict[str, Floats] = {}
        for name, measure in self.measures.items():
            self._types[name] = answer_type(given, measure)
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
        if "far" in given.column_names:
            column = self.measures[name].column or ""
            self._tails[column].add(flat(given.column("far")).to_pylist())
            return
        groups, block = self._number(given), self._block(given)
        value = np.asarray(flat(given.column("value")))
        if name in self._ranks:
            weights = np.asarray(flat(given.column("weight")))
            self._ranks[name].add(groups, block, value, weights)
        elif name in self._incidence:
            order = np.lexsort((value, groups, block))  # pieces of a block may repeat a value
            groups, block, value = groups[order], block[order], value[order]
            new = begins(groups, block, value)
            self._incidence[name].add(groups[new], block[new], value[new])

    def _block(self, given: pa.Table) -> Int64:
        """The block of every row, by its place."""
        place = np.asarray(flat(given.column("block")))
        return np.searchsorted(self._starts, place, side="right") - 1

    def _number(self, given: pa.Table) -> Int64:
        """The number of the group of every row."""
        names = key_names(self.keys)
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
        kind = kind_of(measure)
        if kind is Kind.COUNT:
            return {COUNT: state_of(given, measure, "n")}
        if kind is Kind.VARIANCE:
            n, middle, squares = (state_of(given, measure, one) for one in ("n", "mean", "m2"))
            shift = self._middle(name, groups, n * middle, n)
            return {
                COUNT: n,
                TOTAL: n * (middle - shift),
                SQUARES: squares + n * (middle - shift) ** 2,
            }
        n, sums = totals_of(given, measure)
        if kind is Kind.MEAN:
            sums = sums - n * self._middle(name, groups, sums, n)
        return {COUNT: n, TOTAL: sums}

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

    @property
    def heavy(self) -> tuple[str, ...]:
        """The aggregates of values that look as if they had no variance: bounds may be wrong."""
        by_totals = {name: m for name, m in self.measures.items() if kind_of(m) is not Kind.COUNT}
        found = [
            name
            for name, m in by_totals.items()
            if m.column is not None
            and self._tails[m.column].heavy(float(self._kept[name].total(COUNT).sum()))
        ]
        ratios = [name for name, (pair, _) in self._ratios.items() if set(pair) & set(found)]
        return (*found, *ratios)

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

    @_of_any_size
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

    @_of_any_size
    def unseen_total(self, name: str, sure: Confidence) -> float:
        """What a group that was in no block can have at most, where that is known."""
        factor = totalled(self.measures[name]) if name in self.measures else None
        if factor is None:
            return np.inf
        return unseen_total(self._kept[name], factor, self.blocks, sure.spent)

    def _estimate(self, name: str, sure: Confidence) -> Estimates:
        measure, kept = self.measures[name], self._kept[name]
        kept.grow(self.groups)
        none = kept.total(COUNT) == 0
        match kind_of(measure):
            case Kind.COUNT:
                return total(kept, COUNT, self.blocks, sure)
            case Kind.VARIANCE:
                found = variance(kept, self.blocks, sure)
                rooted = isinstance(measure.kernel, Variance) and measure.kernel.root
                return found.root() if rooted else found
            case Kind.MEAN:
                middle = np.nan_to_num(self._shifts(name))
                return mean(kept, self.blocks, sure).shifted(middle)
        return total(kept, TOTAL, self.blocks, sure).without(none)

    def key_columns(self) -> dict[str, pa.Array]:
        """The keys of all groups so far."""
        known = self._known
        if known is None:
            return {name: pa.nulls(0) for name in self.keys}
        return {name: flat(known.column(f"key.{at}")) for at, name in enumerate(self.keys)}


def totalled(measure: Measure) -> str | None:
    """What of an aggregate grows with what was seen; None if it does not."""
    return {Kind.COUNT: COUNT, Kind.SUM: TOTAL}.get(kind_of(measure) or Kind.MEAN)


def _factors(measure: Measure) -> tuple[str, ...]:
    match kind_of(measure):
        case Kind.COUNT:
            return (COUNT, SIZE)
        case Kind.VARIANCE:
            return (COUNT, TOTAL, SQUARES)
        case Kind.MEAN:
            return (COUNT, TOTAL)
    return (COUNT, TOTAL, SIZE)
