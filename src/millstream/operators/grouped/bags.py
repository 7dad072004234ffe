"""Aggregates that need the values of a group, because what decides may be taken away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.grouped.keeping import BagOf, States, finish, lift_rows
from millstream.operators.grouped.moves import VALUE, Moves
from millstream.operators.stores import Bag, StoredRows
from millstream.ops.aggregates.holding import gather_lists
from millstream.ops.aggregates.kernels import Extremum
from millstream.ops.chunks import flat, own_columns
from millstream.ops.codec import encode, python_rows
from millstream.ops.mixed import is_mixed, mixed
from millstream.ops.windows.answering import Answers, call_each
from millstream.ops.windows.jobs import Measure


@dataclass(frozen=True)
class Outermost:
    """The first or last of the values, or of the rows in time: only that one is read."""

    bag: BagOf
    last: bool
    column: str

    @property
    def words(self) -> str:
        """For the plan."""
        which = "last" if self.last else "first"
        if self.bag.placed:
            return f"rows by group and time, of which the {which} is read"
        return f"values by group and in order, of which the {which} is read"

    @property
    def field(self) -> str:
        """The name of what was found."""
        return f"found.{'last' if self.last else 'first'} of {self.bag.name}"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Read the one that decides."""
        assert bag is not None
        name = f"{VALUE}{self.column}"
        found = bag.first(moves.keys, 1, self.last)
        if found.rows is None or name not in found.rows.column_names:
            return {self.field: pa.nulls(moves.count)}
        column = flat(found.rows.column(name))
        if not self.bag.placed and (is_mixed(column.type) or pa.types.is_nested(column.type)):
            found = bag.first(moves.keys)  # a bag has these in an order of its own
            column = flat(found.rows.column(name)) if found.rows is not None else column
            values = Extremum(self.last).merge({"value": column}, found.key, moves.count)
            return {self.field: values["value"]}
        at = np.full(moves.count, -1, np.int64)
        at[found.key] = np.arange(len(found.key))
        return {self.field: column.take(pa.array(at, mask=at < 0))}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """The one that was read."""
        found.columns[measure.name] = states[self.field]


@dataclass(frozen=True)
class Listed:
    """All values of a group, read again when it has changed."""

    measure: Measure
    bag: BagOf

    @property
    def words(self) -> str:
        """For the plan."""
        what = "rows by group and time" if self.bag.placed else "values by group"
        return f"{what}, all of which are read when the group has changed"

    @property
    def field(self) -> str:
        """The name of what was found."""
        return f"found.{self.measure.name}"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Read what there is of every group that has changed."""
        assert bag is not None
        measure = self.measure
        group, rows = bag.first(moves.keys).repeated()
        table = pa.table({}) if rows is None else rows
        if measure.objects is not None:
            zero = encode(measure.objects.zero())
            if rows is None:
                return {self.field: pa.array([zero] * moves.count, pa.binary())}
            weight = np.ones(len(group), np.int64)
            again = Moves(table, group, weight, moves.keys, moves.first)
            return {self.field: lift_rows(measure, again, weight > 0)}
        high = np.cumsum(np.bincount(group, minlength=moves.count))
        low = np.concatenate(([0], high[:-1]))
        if measure.column is None:
            records = _records(table)
            return {self.field: gather_lists(records, low, high)}
        name = f"{VALUE}{measure.column}"
        there = name in table.column_names
        values = flat(table.column(name)) if there else pa.nulls(len(group))
        return {self.field: gather_lists(values, low, high)}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """What the values come to."""
        kept = states[self.field]
        if measure.objects is not None:
            finish(measure, kept, found)
        elif measure.fold is None:
            found.columns[measure.name] = kept if measure.lists is None else measure.lists(kept)
        else:
            call_each(measure.name, measure.fold, kept.to_pylist(), found)


def _records(rows: pa.Table) -> pa.Array:
    """Whole rows as one column, for functions that take them."""
    plain = own_columns(rows, VALUE)
    return mixed(python_rows(plain)) if plain.num_columns else pa.nulls(len(rows))
