"""How many different values a group has: which of them are there is counted value by value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.grouped.keeping import States
from millstream.operators.grouped.moves import Moves
from millstream.operators.stores import Bag, StoredRows
from millstream.ops.chunks import Int64, numbers
from millstream.ops.keys.hashing import canonical
from millstream.ops.keys.names import both_hashes
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.jobs import Measure
from millstream.state.bags import Keys, Order


@dataclass(frozen=True)
class Occurrences:
    """A bag by group and value: how often each is there."""

    column: str
    order: tuple[Order, ...] = ()
    dealt: str = "group"  # values lie where their group does

    @property
    def name(self) -> str:
        """The table it is stored in."""
        return f"occurrences of {self.column}"

    def rows(self, moves: Moves) -> pa.Table:
        """How much more often, or less, every value is there; nulls are none."""
        values = moves.column(self.column)
        there = pa.array(np.asarray(values.is_valid()))
        kept = moves.table.select(["shard", "hash", "check"]).filter(there)
        group = [pa.array(numbers(kept, name).view(np.int64)) for name in ("hash", "check")]
        hashes, checks = both_hashes([*group, canonical(values.filter(there))])
        return pa.table(
            {
                "shard": kept.column("shard"),
                "group": group[0],
                "hash": pa.array(hashes),
                "check": pa.array(checks),
                "count": pa.array(moves.weight).filter(there),
            }
        )


@dataclass(frozen=True)
class Different:
    """A number per group, which changes where a value comes to be there or is gone."""

    column: str

    @property
    def bag(self) -> Occurrences:
        """How often every value is there."""
        return Occurrences(self.column)

    @property
    def words(self) -> str:
        """For the plan."""
        return "a number per group, and how often each of its values is there"

    @property
    def field(self) -> str:
        """Its column in the rows of groups."""
        return f"state.distinct({self.column})"

    def move(self, moves: Moves, kept: StoredRows, bag: Bag | None) -> States:
        """Look up the values that came or went, and no others."""
        assert bag is not None
        found = kept.numbers(self.field)
        rows = self.bag.rows(moves)
        if len(rows):
            there = np.asarray(moves.column(self.column).is_valid())
            values = Moves.of(rows.append_column("weight", rows.column("count")))
            before = _before(bag, values.keys)
            after = before + values.sizes()
            group = moves.group[there][values.first]
            np.add.at(found, group, (after > 0).astype(np.int64) - (before > 0))
        return {self.field: pa.array(found)}

    def answer(self, measure: Measure, states: States, found: Answers) -> None:
        """The number."""
        found.columns[measure.name] = states[self.field]


def _before(bag: Bag, keys: Keys) -> Int64:
    """How often values were there before this batch."""
    stored = bag.rows.first(keys, None, None)
    count = np.zeros(len(keys), np.int64)
    count[stored.key] = stored.count
    return count
