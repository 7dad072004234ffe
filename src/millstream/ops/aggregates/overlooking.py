"""Functions over the rows of groups in an order, for all rows at once.

What a function says of a row follows from where its group, its equals and its frame begin and end.
Sums of frames are differences of running sums, which are exact; the least and the greatest of a
frame are found among those of runs of 1, 2, 4 ... rows. So the cost follows the number of rows,
whatever the frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.aggregates.exact import divided
from millstream.ops.chunks import Int64, Mask
from millstream.ops.sql.decimals import compute, fit, unscaled
from millstream.ops.sql.types import ExpressionError

_HALF = 32  # bits of a whole number that are added up together
_MASK = (1 << _HALF) - 1
_WHOLE = 2**53  # up to here a double has every whole number


@dataclass(frozen=True)
class Frame:
    """The rows around one that count: so many before it and after it, None for all.

    Less than none: only those that lie further away on the other side. by_value: whether rows that
    are equal in the order count together.
    """

    before: int | None = None
    after: int | None = 0
    by_value: bool = True

    def __str__(self) -> str:
        if self.before is None and self.after is None:
            return "all rows"
        start = "the first row" if self.before is None else f"{self.before} rows before"
        end = "the last row" if self.after is None else f"{self.after} rows after"
        return f"from {start} to {'those equal to it' if self.by_value else end}"


UP_TO_HERE = Frame()


@dataclass(frozen=True)
class Rows:
    """Rows by group and in order: which begin a group, and which are not equal to the one before.

    A row that begins a group also begins those that are equal to it.
    """

    begins: Mask
    differs: Mask

    @cached_property
    def at(self) -> Int64:
        """The place of every row."""
        return np.arange(len(self.begins))

    @cached_property
    def start(self) -> Int64:
        """Where its group begins."""
        return np.maximum.accumulate(np.where(self.begins, self.at, 0))

    @cached_property
    def stop(self) -> Int64:
        """Where its group ends."""
        return _ends(self.begins)

    def rank(self, function: str) -> Int64:
        """The number of every row in its group, counted in one of three ways."""
        if function == "row_number":
            return self.at - self.start + 1
        first = np.maximum.accumulate(np.where(self.differs, self.at, 0))
        if function == "rank":
            return first - self.start + 1
        number: Int64 = np.cumsum(self.differs)
        dense: Int64 = number - number[self.start] + 1
        return dense

    def neighbours(self, values: pa.Array, steps: int, default: Any) -> pa.Array:
        """The value so many rows further on, or the default where there is none."""
        place = self.at + steps
        outside = (place < self.start) | (place >= self.stop)
        found = values.take(pa.array(place, mask=outside))
        if default is None:
            return found
        return pc.if_else(pa.array(outside), pa.scalar(default, values.type), found)

    def frame(self, frame: Frame) -> tuple[Int64, Int64]:
        """Where the frame of every row begins and ends."""
        low, high = self.start, self.stop
        if frame.before is not None:
            low = np.clip(self.at - frame.before, self.start, self.stop)
        if frame.after is not None:
            high = np.clip(self.at + frame.after + 1, self.start, self.stop)
            if frame.by_value:
                high = _ends(self.differs)
        return low, np.maximum(low, high)


def _ends(begins: Mask) -> Int64:
    """Where each run of rows ends."""
    starts = np.flatnonzero(begins)
    ends = np.r_[starts[1:], len(begins)][: len(starts)]  # none where there are no rows
    return np.repeat(ends, ends - starts)


def counted(values: pa.Array | None, low: Int64, high: Int64) -> Int64:
    """How many values of every frame are there; without a column, how many rows."""
    if values is None:
        return high - low
    before = np.r_[0, np.cumsum(np.asarray(values.is_valid()))]
    found: Int64 = before[high] - before[low]
    return found


def outermost(values: pa.Array, low: Int64, high: Int64, last: bool) -> pa.Array:
    """The first or last value of every frame, null or not."""
    return values.take(pa.array(high - 1 if last else low, mask=high <= low))


def extreme(values: pa.Array, low: Int64, high: Int64, most: bool) -> pa.Array:
    """The greatest or least value of every frame; NaN is greater than all others."""
    sortable = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    rank = np.asarray(pc.rank(sortable, tiebreaker="dense"))
    codes = rank.astype(np.int64) if most else -rank.astype(np.int64)
    none = np.int64(-(2**62))
    codes = np.where(np.asarray(values.is_valid()), codes, none)
    best = _most(codes, low, high, none)
    shown = np.zeros(int(rank.max(initial=0)) + 1, np.int64)  # a row with each value
    shown[rank] = np.arange(len(rank))
    return values.take(pa.array(shown[np.where(best > none, np.abs(best), 0)], mask=best == none))


def _most(codes: Int64, low: Int64, high: Int64, none: np.int64) -> Int64:
    """The greatest code of every range, `none` for an empty one."""
    length = high - low
    level = np.zeros(len(length), np.int64)
    there = length > 0
    level[there] = np.frexp(length[there].astype(np.float64))[1] - 1  # floor of the logarithm
    best = np.full(len(length), none)
    runs = codes
    for power in range(int(level.max(initial=0)) + 1):
        mine = np.flatnonzero(there & (level == power))
        best[mine] = np.maximum(runs[low[mine]], runs[high[mine] - (1 << power)])
        further = runs.copy()  # of each place, over twice as many rows
        further[: -(1 << power)] = np.maximum(runs[: -(1 << power)], runs[1 << power :])
        runs = further
    return best


@dataclass(frozen=True)
class Total:
    """The sum of every frame, or with `mean` its average, exact and rounded once.

    Frames whose answer does not fit in its type have none: `failed` says why, by row.
    """

    type: pa.DataType  # of the answers
    mean: bool
    failed: dict[int, str]

    def of(self, values: pa.Array, low: Int64, high: Int64) -> pa.Array:
        """One value per row, null where a frame has none."""
        count = counted(values, low, high)
        if pa.types.is_decimal(values.type):
            return self._decimals(values, low, high, count)
        if pa.types.is_floating(values.type):
            numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0))
            return pa.array(self._floats(numbers, low, high, count), mask=count == 0)
        numbers = np.asarray(values.cast(pa.int64()).fill_null(0))
        return self._whole(numbers, low, high, count)

    def _whole(self, numbers: Int64, low: Int64, high: Int64, count: Int64) -> pa.Array:
        upper = np.r_[0, np.cumsum(numbers >> _HALF)]
        lower = np.r_[0, np.cumsum(numbers & _MASK)]
        more, less = upper[high] - upper[low], lower[high] - lower[low]
        more, less = more + (less >> _HALF), less & _MASK
        fits = (more >= -(1 << (_HALF - 1))) & (more < 1 << (_HALF - 1))
        total = (np.where(fits, more, 0) << _HALF) + less
        if not self.mean:
            for at in np.flatnonzero(~fits).tolist():
                self.failed[at] = f"{(int(more[at]) << _HALF) + int(less[at])} needs over 64 bits"
            return pa.array(total, mask=~fits | (count == 0))
        means = total / np.maximum(count, 1)
        large = np.flatnonzero(~fits | (np.abs(total) > _WHOLE))
        for at in large.tolist():  # Python divides whole numbers of any length and rounds once
            means[at] = ((int(more[at]) << _HALF) + int(less[at])) / max(int(count[at]), 1)
        return pa.array(means, mask=count == 0)

    def _floats(self, numbers: Any, low: Int64, high: Int64, count: Int64) -> Any:
        finite = np.isfinite(numbers)
        share, power = np.frexp(np.where(finite, numbers, 0.0))
        digits = np.ldexp(share, 53).astype(np.int64)
        power = np.where(digits == 0, 0, power - 53)
        least = int(power.min(initial=0))
        shifts = zip(digits.tolist(), (power - least).tolist(), strict=True)
        running = [0, *accumulate(one << up for one, up in shifts)]
        found = np.empty(len(low))
        pairs = zip(low.tolist(), high.tolist(), np.maximum(count, 1).tolist(), strict=True)
        for at, (begin, end, size) in enumerate(pairs):
            total = running[end] - running[begin]
            found[at] = divided(total, least, size if self.mean else 1)
        odd = [np.r_[0, np.cumsum(one)] for one in
               (numbers == np.inf, numbers == -np.inf, np.isnan(numbers))]  # fmt: skip
        plus, minus, nan = ((one[high] - one[low]) > 0 for one in odd)
        found[plus], found[minus] = np.inf, -np.inf
        found[nan | (plus & minus)] = np.nan
        return found

    def _decimals(self, values: pa.Array, low: Int64, high: Int64, count: Int64) -> pa.Array:
        scale, there = values.type.scale, np.asarray(values.is_valid())
        running = [0, *accumulate(unscaled(values))]  # of those that are there
        place = np.r_[0, np.cumsum(there)]
        begins, ends = place[low].tolist(), place[high].tolist()
        made: list[Decimal | None] = []
        for at, (begin, end, size) in enumerate(zip(begins, ends, count.tolist(), strict=True)):
            made.append(None)
            if size:
                whole = Decimal(f"{running[end] - running[begin]}E-{scale}")
                share = compute("/", whole, Decimal(size)) if self.mean else whole
                try:
                    made[at] = fit(share, self.type)
                except ExpressionError as error:
                    self.failed[at] = str(error)
        return pa.array(made, self.type)
