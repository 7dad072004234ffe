"""Functions OVER the rows of a group in an order: ranks, neighbours, and aggregates of frames.

All rows of a group are kept in a bag in that order, and beside it what was given of them. A group
of which a row came or went is gone through anew, and what differs is given: the cost of a batch
follows the sizes of the groups that it touches, not what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.operators.grouped.moves import VALUE
from millstream.operators.protocol import Input, KeyedStep
from millstream.operators.top import PLACE, Topping, told
from millstream.ops.chunks import flat
from millstream.ops.keys import factorize
from millstream.ops.sql.decimals import fit
from millstream.state.bags import Entries, Order

RANKS = ("row_number", "rank", "dense_rank")
NEIGHBOURS = ("lag", "lead")
AGGREGATES = ("count", "sum", "avg", "min", "max", "first_value", "last_value")


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


@dataclass(frozen=True)
class Call:
    """One function: what it is called, what it is of, and the column it makes."""

    name: str
    function: str
    column: str | None
    type: pa.DataType
    frame: Frame = Frame()
    offset: int = 1
    default: Any = None

    def __str__(self) -> str:
        of = "" if self.column is None else self.column
        more = f", {self.offset}" if self.function in NEIGHBOURS else ""
        frame = f" over {self.frame}" if self.function in AGGREGATES else ""
        return f"{self.function}({of}{more}){frame}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Over(KeyedStep):
    """Rows with what functions over their group say, as a stream of changes."""

    keys: tuple[str, ...]
    order: tuple[Order, ...]
    calls: tuple[Call, ...]

    @property
    def gives_changes(self) -> bool:
        """Always."""
        return True

    def operator(self, number: int, changes: bool) -> Overlooking:
        """Keeps rows of groups in order."""
        by = (Order(f"{VALUE}{o.column}", o.descending, o.nulls_first) for o in self.order)
        return Overlooking(
            self.name, self.keys, None, (*by, *map(Order, PLACE)), None, True, number,
            calls=self.calls,
        )  # fmt: skip

    def columns(self, have: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Those of the rows, and one per function."""
        return None if have is None else (*have, *(one.name for one in self.calls))

    def resolve(
        self, inputs: tuple[Input, ...]
    ) -> tuple[tuple[str, ...] | None, dict[str, pa.DataType]]:
        """The same, with types."""
        names, types = super().resolve(inputs)
        return names, {**types, **{one.name: one.type for one in self.calls}}

    def words(self) -> str:
        """For the plan."""
        by = ", ".join(map(told, self.order))
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        return f"functions over rows{per}{f' by {by}' if by else ''}, as changes"

    def details(self, inputs: tuple[Input, ...]) -> list[str]:
        """For the plan."""
        kept = "rows by group and in order, all of which are read when the group has changed"
        return [*(f"{one.name} = {one}" for one in self.calls), kept]

    def remembered(self) -> dict[str, Any]:
        """What rows are kept by, and what is made of them."""
        calls = {one.name: str(one) for one in self.calls}
        return {"keys": list(self.keys), "by": [*map(told, self.order)], "over": calls}


@dataclass(frozen=True)
class Overlooking(Topping):
    """The operator: all rows of a group are given, each with what the functions say."""

    calls: tuple[Call, ...] = ()

    def _numbered(self, found: Entries) -> pa.Table | None:
        """What is to be given, row by row, with a column per function."""
        rows = self._listed(found)
        if rows is None or not len(rows):
            return rows
        group = np.asarray(flat(rows.column("group")))
        begins = np.r_[True, group[1:] != group[:-1]]
        peers = begins.copy()
        for one in self.by[: len(self.by) - len(PLACE)]:
            codes, _ = factorize([flat(rows.column(one.column))])
            peers[1:] |= codes[1:] != codes[:-1]
        spans = _spans(np.flatnonzero(begins), len(group))
        made = rows
        for call in self.calls:
            name = f"{VALUE}{call.column}"
            values = (
                rows.column(name).to_pylist() if call.column is not None else [True] * len(rows)
            )
            column = pa.array(
                [
                    value
                    for start, stop in spans
                    for value in evaluate(call, values[start:stop], peers[start:stop].tolist())
                ],
                call.type,
            )
            made = made.append_column(f"{VALUE}{call.name}", column)
        return made


def _spans(starts: Any, length: int) -> list[tuple[int, int]]:
    ends = [*starts[1:].tolist(), length]
    return list(zip(starts.tolist(), ends, strict=True))


def evaluate(call: Call, values: Sequence[Any], begins: Sequence[bool]) -> Iterator[Any]:
    """What a function says of every row of a group; `begins`: it is not equal to the row before."""
    count = len(values)
    if call.function in RANKS:
        rank = dense = 0
        for at in range(count):
            if begins[at]:
                rank, dense = at + 1, dense + 1
            yield {"row_number": at + 1, "rank": rank, "dense_rank": dense}[call.function]
    elif call.function in NEIGHBOURS:
        step = call.offset if call.function == "lead" else -call.offset
        for at in range(count):
            yield values[at + step] if 0 <= at + step < count else call.default
    else:
        ends = _ends(begins)
        running = _Running(call, values)
        for at in range(count):
            frame = call.frame
            low = 0 if frame.before is None else min(max(at - frame.before, 0), count)
            high = count if frame.after is None else min(max(at + frame.after + 1, 0), count)
            if frame.by_value and frame.after is not None:
                high = ends[at]
            yield running.of(low, max(high, low))


def _ends(begins: Sequence[bool]) -> list[int]:
    """Where the rows end that are equal to each."""
    ends, end = [0] * len(begins), len(begins)
    for at in range(len(begins) - 1, -1, -1):
        ends[at] = end
        if begins[at]:
            end = at
    return ends


class _Running:
    """An aggregate of values [low, high), where frames mostly grow at their end."""

    def __init__(self, call: Call, values: Sequence[Any]) -> None:
        self.call, self.values = call, values
        self.low = self.high = 0
        self.count, self.total = 0, Fraction(0)
        self.odd: list[float] = []  # infinities and NaN, which have no fraction
        self.best: Any = None

    def of(self, low: int, high: int) -> Any:
        if low != self.low:
            self.__init__(self.call, self.values)  # type: ignore[misc]
            self.low = self.high = low
        for value in self.values[self.high : high]:
            self._add(value)
        self.high = high
        return self._answer(low, high)

    def _add(self, value: Any) -> None:
        if value is None:
            return
        self.count += 1
        function = self.call.function
        if function in ("sum", "avg"):
            if isinstance(value, float) and not math.isfinite(value):
                self.odd.append(value)
            else:
                self.total += Fraction(value)
        elif function in ("min", "max"):
            mine, best = _place(value), _place(self.best)
            if self.best is None or (mine < best if function == "min" else mine > best):
                self.best = value

    def _answer(self, low: int, high: int) -> Any:
        match self.call.function:
            case "count":
                return self.count
            case "first_value":
                return self.values[low] if high > low else None
            case "last_value":
                return self.values[high - 1] if high > low else None
            case "min" | "max":
                return self.best
        return self._total() if self.count else None

    def _total(self) -> Any:
        of = self.call.type
        mean = self.call.function == "avg"
        if self.odd:
            return math.fsum(self.odd) if not _opposed(self.odd) else math.nan
        exact = self.total / self.count if mean else self.total
        if pa.types.is_decimal(of):
            scaled = exact * 10**of.scale
            whole = int(abs(scaled) + Fraction(1, 2)) * (-1 if scaled < 0 else 1)
            return fit(Decimal(f"{whole}E-{of.scale}"), of)
        return int(exact) if of == pa.int64() else float(exact)


def _opposed(values: list[float]) -> bool:
    return math.inf in values and -math.inf in values


def _place(value: Any) -> tuple[bool, Any]:
    nan = isinstance(value, float) and math.isnan(value)
    return nan, 0 if nan else value
