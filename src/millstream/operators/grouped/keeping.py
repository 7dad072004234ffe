"""What keeps an aggregate up to date while rows come and go.

A *keeper* holds what one or more aggregates need: a partial per group in the group's own row
(`partials.py`), to which rows are added and from which they are taken away; or a bag of values by
group and in order (`bags.py`), of which only those are read that decide. Which one it is follows
from what an aggregate can do, and from whether rows are ever taken away (`choosing.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.grouped.moves import VALUE, Moves
from millstream.operators.stores import Bag, StoredRows
from millstream.ops.aggregates.kernels import Rows
from millstream.ops.chunks import Chunk, Mask
from millstream.ops.windows.answering import Answers, call_each, typed_answers
from millstream.ops.windows.jobs import Measure
from millstream.ops.windows.preparing import lift
from millstream.state.bags import Order

PLACE = ("ts", "src", "pos")
States = dict[str, pa.Array]


class Stock(Protocol):
    """A bag that keepers read: how it is called and sorted, and what a batch adds to it."""

    @property
    def name(self) -> str:
        """The table it is stored in."""

    @property
    def order(self) -> tuple[Order, ...]:
        """How its rows are sorted."""

    @property
    def dealt(self) -> str:
        """From what the shard of a row follows."""

    def rows(self, moves: Moves) -> pa.Table:
        """What a batch adds and takes away."""


@dataclass(frozen=True)
class BagOf:
    """A bag of the rows of groups: their values in order, or rows in the order of time."""

    columns: tuple[str, ...] | None  # None: all of a row
    placed: bool
    dealt: str = "hash"

    @property
    def name(self) -> str:
        """The table it is stored in."""
        what = "rows" if self.columns is None else ", ".join(self.columns)
        return f"{'places' if self.placed else 'values'} of {what}"

    @property
    def order(self) -> tuple[Order, ...]:
        """How rows of a group are sorted."""
        if self.placed:
            return tuple(map(Order, PLACE))
        return tuple(Order(f"{VALUE}{name}") for name in self.columns or ())

    def rows(self, moves: Moves) -> pa.Table:
        """What a batch adds and takes away; a value that is null is none."""
        table = moves.table
        names = [name for name in table.column_names if name.startswith(VALUE)]
        if self.columns is not None:
            names = [f"{VALUE}{name}" for name in self.columns if f"{VALUE}{name}" in names]
        kept = ["shard", "hash", "check", *(PLACE if self.placed else ()), *names]
        found = table.select(kept).append_column("count", pa.array(moves.weight))
        if self.placed:
            return found
        there = np.ones(len(table), np.bool_)
        for name in self.columns or ():
            there &= np.asarray(moves.column(name).is_valid())
        return found.filter(pa.array(there))


class Keeper(Protocol):
    """What keeps the state of some aggregates of every group."""

    @property
    def bag(self) -> Stock | None:
        """The bag it reads."""

    @property
    def words(self) -> str:
        """What it keeps, for the plan."""

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Bring states up to date; those whose name begins with `state.` are stored."""

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """What an aggregate comes to in every group."""


def lift_rows(measure: Measure, moves: Moves, rows: Mask) -> pa.Array:
    """Packed states of some rows, one per group."""
    at = np.flatnonzero(rows)
    none = np.zeros(len(at), np.int64)
    chunk = Chunk(moves.values().take(pa.array(at)), none, none, 0)
    columns: States = {}
    bad = lift(measure, chunk, Rows(moves.group[at], moves.count, none, 0, none), columns)
    if bad:  # the inlet has tried them all
        why = next(iter(bad.values()))
        raise RunError(f"{measure.name}: add() takes a value at one time and not at another: {why}")
    return columns[f"state.{measure.state}.state"]


def finish(measure: Measure, packed: pa.Array, found: Answers) -> None:
    """The answers of packed states."""
    assert measure.objects is not None
    states = measure.objects.decoded(packed)
    if measure.objects.typed is not None:
        typed_answers(measure, states, found)
    else:
        call_each(measure.name, measure.objects.finish, states, found)
