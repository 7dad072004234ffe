"""Functions OVER the rows of a group in an order: ranks, neighbours, and aggregates of frames.

All rows of a group are kept in a bag in that order, and beside it what was given of them. A group
of which a row came or went is gone through anew, and what differs is given: the cost of a batch
follows the sizes of the groups that it touches, not what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.grouped.moves import VALUE
from millstream.operators.protocol import Input, KeyedStep
from millstream.operators.top import PLACE, Topping, told
from millstream.ops.chunks import flat
from millstream.ops.expressions import ExpressionError
from millstream.ops.keys import factorize
from millstream.ops.overlooking import UP_TO_HERE, Frame, Rows, Total, counted, extreme, outermost
from millstream.state.bags import Entries, Order

RANKS = ("row_number", "rank", "dense_rank")
NEIGHBOURS = ("lag", "lead")
AGGREGATES = ("count", "sum", "avg", "min", "max", "first_value", "last_value")


@dataclass(frozen=True)
class Call:
    """One function: what it is called, what it is of, and the column it makes."""

    name: str
    function: str
    column: str | None
    type: pa.DataType
    frame: Frame = UP_TO_HERE
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
        differs = begins.copy()
        for one in self.by[: len(self.by) - len(PLACE)]:
            codes, _ = factorize([flat(rows.column(one.column))])
            differs[1:] |= codes[1:] != codes[:-1]
        places, made = Rows(begins, differs), rows
        for call in self.calls:
            values = None
            if call.column is not None:
                values = flat(rows.column(f"{VALUE}{call.column}"))
            try:
                column = evaluate(call, values, places)
            except (ValueError, ExpressionError) as error:
                raise RunError(
                    f"{self.name}: {call}: {error}; cast the column to DOUBLE or DECIMAL(38, 0)"
                ) from None
            made = made.append_column(f"{VALUE}{call.name}", column)
        return made


def evaluate(call: Call, values: pa.Array | None, rows: Rows) -> pa.Array:
    """What a function says of every row; `values`: of the column it is of, if it is of one."""
    if call.function in RANKS:
        return pa.array(rows.rank(call.function))
    if call.function in NEIGHBOURS:
        assert values is not None
        steps = call.offset if call.function == "lead" else -call.offset
        return rows.neighbours(values.cast(call.type), steps, call.default)
    low, high = rows.frame(call.frame)
    if call.function == "count":
        return pa.array(counted(values, low, high))
    assert values is not None
    match call.function:
        case "first_value" | "last_value":
            made = outermost(values, low, high, last=call.function == "last_value")
        case "min" | "max":
            made = extreme(values, low, high, most=call.function == "max")
        case _:
            made = Total(call.type, mean=call.function == "avg").of(values, low, high)
    return made.cast(call.type)
