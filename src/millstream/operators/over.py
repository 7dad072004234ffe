"""Functions OVER the rows of a group in an order: ranks, neighbours, and aggregates of frames.

All rows of a group are kept in a bag in that order, and beside it what was given of them. If a row
came or went, those that this can reach are gone through anew (`tails.py`), and what differs is
given. Where a function looks at a whole group, all of it is.

A sum that does not fit in its type costs the row that it is of: that is a dead letter, and kept
among what was given with the reason, so that it is told once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.filing import Filed, Tables
from millstream.operators.grouped.moves import VALUE, Moves
from millstream.operators.protocol import Columns, Host, Inputs, KeyedStep, Names, Share, Types
from millstream.operators.stores import Bag
from millstream.operators.tails import FAILED, FEW, Reach, Tails, tails_of
from millstream.operators.top import told
from millstream.operators.topping import PLACE, Topping, changed_rows
from millstream.operators.waiting import give, rows_for
from millstream.ops.aggregates.overlooking import (
    UP_TO_HERE,
    Frame,
    Rows,
    Total,
    counted,
    extreme,
    outermost,
)
from millstream.ops.chunks import Int64, Mask, begins, blanked, concat, flat, numbers
from millstream.ops.keys.hashing import factorize
from millstream.ops.records import DeadLetter, as_json
from millstream.state.bags import Entries, Order

RANKS = ("row_number", "rank", "dense_rank")
NEIGHBOURS = ("lag", "lead")
_MOST = 5_000  # rows of an end of a group beyond which all of it is read
AGGREGATES = ("count", "sum", "avg", "min", "max", "first_value", "last_value")

Evaluated = tuple[pa.Array, dict[int, str]]  # what is said of rows, and why of some nothing is


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

    gives_changes: ClassVar[bool] = True
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    calls: tuple[Call, ...]

    def operator(self, number: int, changes: bool) -> Overlooking:
        """Keeps rows of groups in order."""
        by = (Order(f"{VALUE}{o.column}", o.descending, o.nulls_first) for o in self.order)
        order = (*by, *map(Order, PLACE))
        return Overlooking(self.name, self.keys, True, number, order, calls=self.calls)

    def columns(self, have: Columns) -> Columns:
        """Those of the rows, and one per function."""
        return None if have is None else (*have, *(one.name for one in self.calls))

    def resolve(self, inputs: Inputs) -> tuple[Columns, Types]:
        """The same, with types."""
        names, types = super().resolve(inputs)
        return names, {**types, **{one.name: one.type for one in self.calls}}

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """Those of the rows."""
        return before[0]

    def words(self) -> str:
        """For the plan."""
        by = ", ".join(map(told, self.order))
        per = f" per {', '.join(self.keys)}" if self.keys else ""
        return f"functions over rows{per}{f' by {by}' if by else ''}, as changes"

    def details(self, inputs: Inputs) -> list[str]:
        """For the plan."""
        kept = "rows by group and in order, all of which are read when the group has changed"
        if reach_of(self.calls) is not None:
            kept = "rows by group and in order, read from the first on that a change reaches"
        return [*(f"{one.name} = {one}" for one in self.calls), kept]

    def remembered(self) -> dict[str, Any]:
        """What rows are kept by, and what is made of them."""
        calls = {one.name: str(one) for one in self.calls}
        made = {"keys": list(self.keys), "by": [*map(told, self.order)], "over": calls}
        return made if reach_of(self.calls) is None else made | {"given": "in order"}


@dataclass(frozen=True)
class Overlooking(Topping):
    """The operator: all rows of a group are given, each with what the functions say."""

    calls: tuple[Call, ...] = ()

    def run(self, share: Share) -> None:
        """Bring groups up to date; give what functions say of rows, take back what they said."""
        host, batch, control = share.host, share.host.batch, share.host.control
        reach = reach_of(self.calls)
        rows = Bag(self.name, "rows", batch, control, self.by)
        given = Bag(self.name, "given", batch, control, () if reach is None else self.by)
        new = rows_for(share)
        if new is not None:
            moves = Moves.of(new)
            rows.add(self._kept(moves))
            parts = list(self._differing(moves, rows, given, reach, batch.number))
            if parts:
                changed = concat(parts)
                given.add(changed)
                give(host, self.name, self._chunk(self._without_failed(changed, host)))
        rows.store()
        given.store()

    def _differing(
        self, moves: Moves, rows: Bag, given: Bag, reach: Reach | None, batch: int
    ) -> Iterator[pa.Table]:
        """What is given and taken back, of groups whose ends say enough first."""
        left, most = np.arange(moves.count), FEW
        while reach is not None and len(left) and most <= _MOST:
            keys = moves.keys.at(left)
            now = self._listed(rows.first(keys, most, last=True))
            was = self._listed(given.first(keys, most, last=True))
            known, tails = tails_of(now, was, _fresh(moves, left), self.by, reach, most, len(left))
            if tails is not None:
                made = self._said_of(tails)
                changed = changed_rows(tails.before, made, batch)
                if changed is not None:
                    yield changed
            left, most = left[~known], most * 8
        if len(left):
            keys = moves.keys.at(left)
            before, whole = given.first(keys), rows.first(keys)
            changed = changed_rows(self._listed(before), self._numbered(whole), batch)
            if changed is not None:
                yield changed

    def _numbered(self, found: Entries) -> pa.Table | None:
        """What is to be given of whole groups, row by row, with a column per function."""
        rows = self._listed(found)
        if rows is None or not len(rows):
            return rows
        group = numbers(rows, "group")
        asked = self.by[: len(self.by) - len(PLACE)]
        codes = [factorize([flat(rows.column(one.column))])[0] for one in asked]
        places, said = Rows(begins(group), begins(group, *codes)), _Said(rows)
        for call in self.calls:
            column, failed = evaluate(call, _values(call, rows), places)
            said.add(call, column, failed)
        return said.rows()

    def _without_failed(self, changed: pa.Table, host: Host) -> pa.Table:
        """What leaves of changes: rows that a function could not be computed for are told."""
        counts, added = host.ledger(self.name), numbers(changed, "count") > 0
        failed = np.zeros(len(changed), np.bool_)
        if FAILED in changed.column_names:
            failed = np.asarray(changed.column(FAILED).is_valid())
            lost = changed.filter(pa.array(failed & added))
            host.control.dead.extend(_letters(self.name, lost))
            counts["failed"] += len(lost)
            changed = changed.filter(pa.array(~failed)).drop_columns([FAILED])
        counts["answered"] += int((added & ~failed).sum())
        return changed

    def _said_of(self, tails: Tails) -> pa.Table:
        """The same of the ends of groups, going on from what was said of the rows before."""
        places = Rows(begins(tails.group), tails.differs)
        going = tails.shown | tails.last  # what functions see that go on from the row before
        first = begins(tails.group[going])
        further = Rows(first, tails.differs[going] | first)
        said = _Said(tails.now.filter(pa.array(tails.shown)))
        for call in self.calls:
            values = _values(call, tails.now)
            if not goes_on(call):
                said.add(call, *_of_rows(tails.shown, *evaluate(call, values, places)))
            else:
                said.add(call, *self._continued(call, values, tails, going, further))
        return said.rows()

    def _continued(
        self, call: Call, values: pa.Array | None, tails: Tails, going: Mask, rows: Rows
    ) -> Evaluated:
        """A function of all rows up to this one, of which the one before knew the rest."""
        last = tails.last[going]
        said = pa.nulls(len(last), call.type)
        if last.any():
            assert tails.given is not None
            known = flat(tails.given.column(f"{VALUE}{call.name}")).cast(call.type)
            place = np.zeros(len(last), np.int64)
            place[last] = tails.carried
            said = known.take(pa.array(place, mask=~last))
        if call.function in (*RANKS, "count"):
            values = None if values is None else blanked(values.filter(pa.array(going)), last)
            own, failed = evaluate(call, values, rows)
            before = np.asarray(said.fill_null(0))[np.maximum(rows.start, 0)]
            counted_twice = last[rows.start] & (values is None)
            return pa.array((np.asarray(own) + before - counted_twice)[~last]), failed
        assert values is not None
        mine = values.filter(pa.array(going)).cast(call.type)
        column, failed = evaluate(call, pc.if_else(pa.array(last), said, mine), rows)
        return _of_rows(~last, column, failed)

    def stored(self) -> Tables:
        """The same, in order both."""
        tables = super().stored()
        if reach_of(self.calls) is not None:
            tables[self.name]["given"] = Filed("bag", "expires", "hash", self.by)
        return tables


def reach_of(calls: tuple[Call, ...]) -> Reach | None:
    """How far the rows of functions lie around each; None if they look at a whole group."""
    back, ahead = 0, 0
    for call in calls:
        frame = call.frame
        ends_here = call.function == "last_value" and frame.after == 0
        if goes_on(call) or ends_here:
            continue
        if call.function in NEIGHBOURS:
            back = max(back, call.offset if call.function == "lag" else 0)
            ahead = max(ahead, call.offset if call.function == "lead" else 0)
        elif call.function in RANKS or frame.before is None or frame.after is None:
            return None
        else:
            back, ahead = max(back, frame.before), max(ahead, frame.after)
    return Reach(back, ahead, any(map(goes_on, calls)))


def goes_on(call: Call) -> bool:
    """Whether what it says of a row follows from the row and what it said of the one before."""
    if call.function in RANKS:
        return call.function != "rank"
    if call.function in NEIGHBOURS or call.frame.before is not None:
        return False
    if call.frame.after != 0:
        return False
    if call.function == "sum":
        return bool(call.type == pa.int64() or pa.types.is_decimal(call.type))
    return call.function in ("count", "min", "max", "first_value")


@dataclass
class _Said:
    """Rows, what functions say of them, and which of them one could not be computed for."""

    table: pa.Table
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, call: Call, column: pa.Array, failed: dict[int, str]) -> None:
        """What one more function says."""
        self.table = self.table.append_column(f"{VALUE}{call.name}", column)
        for row, why in failed.items():
            self.failed.setdefault(
                row, f"{call}: {why}; cast the column to DOUBLE or DECIMAL(38, 0)"
            )

    def rows(self) -> pa.Table:
        """All of it, with why of rows that failed."""
        if not self.failed:
            return self.table
        why = [self.failed.get(row) for row in range(len(self.table))]
        return self.table.append_column(FAILED, pa.array(why, pa.string()))


def _letters(step: str, lost: pa.Table) -> Iterator[DeadLetter]:
    """Of results that could not be computed, with the rows they are of."""
    names = [name for name in lost.column_names if name.startswith(VALUE)]
    for row in lost.select([*names, FAILED, "pos"]).to_pylist():
        shown = as_json({name.removeprefix(VALUE): row[name] for name in names})
        yield DeadLetter(step, -1, row["pos"], shown, row[FAILED])


def _of_rows(kept: Mask, column: pa.Array, failed: dict[int, str]) -> Evaluated:
    """What was said of some of the rows."""
    if failed:
        place = np.cumsum(kept) - 1
        failed = {int(place[row]): why for row, why in failed.items() if kept[row]}
    return column.filter(pa.array(kept)), failed


def _values(call: Call, rows: pa.Table) -> pa.Array | None:
    return None if call.column is None else flat(rows.column(f"{VALUE}{call.column}"))


def _fresh(moves: Moves, left: Int64) -> pa.Table:
    """What came and went of some groups, by their number among these."""
    number = np.full(moves.count, -1)
    number[left] = np.arange(len(left))
    group = number[moves.group]
    return moves.table.filter(pa.array(group >= 0)).append_column(
        "group", pa.array(group[group >= 0])
    )


def evaluate(call: Call, values: pa.Array | None, rows: Rows) -> Evaluated:
    """What a function says of every row; `values`: of the column it is of, if it is of one.

    Beside it, why it says nothing of some rows: what would be said does not fit.
    """
    if call.function in RANKS:
        return pa.array(rows.rank(call.function)), {}
    if call.function in NEIGHBOURS:
        assert values is not None
        steps = call.offset if call.function == "lead" else -call.offset
        return rows.neighbours(values.cast(call.type), steps, call.default), {}
    low, high = rows.frame(call.frame)
    if call.function == "count":
        return pa.array(counted(values, low, high)), {}
    assert values is not None
    failed: dict[int, str] = {}
    match call.function:
        case "first_value" | "last_value":
            made = outermost(values, low, high, last=call.function == "last_value")
        case "min" | "max":
            made = extreme(values, low, high, most=call.function == "max")
        case _:
            total = Total(call.type, call.function == "avg", failed)
            made = total.of(values, low, high)
    return made.cast(call.type), failed
