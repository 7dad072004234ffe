"""Rows of one batch on their way into groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Int64, flat, numbers, own_columns
from millstream.ops.keys.hashing import distinct
from millstream.state.bags import Keys

VALUE = "value."  # before the names of a row's own columns


@dataclass(frozen=True)
class Moves:
    """What is added to some groups, and what is taken away from them."""

    table: pa.Table  # as it came from the inlets
    group: Int64  # of every row
    weight: Int64
    keys: Keys  # of every group
    first: Int64  # some row of every group

    @classmethod
    def of(cls, rows: pa.Table) -> Moves:
        """Find the groups of rows."""
        group, first = distinct((numbers(rows, "hash"), numbers(rows, "check")))
        weight = numbers(rows, "weight").astype(np.int64)
        return cls(rows, group, weight, Keys.of(rows, first), first)

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.keys)

    def column(self, name: str) -> pa.Array:
        """A column of the rows, null if they do not have it."""
        known = f"{VALUE}{name}"
        if known not in self.table.column_names:
            return pa.nulls(len(self.table))
        return flat(self.table.column(known))

    def marks(self, name: str) -> Int64:
        """When and where rows come from: `ts`, `src` or `pos`."""
        found: Int64 = numbers(self.table, name)
        return found

    def values(self) -> pa.Table:
        """The rows' own columns."""
        return own_columns(self.table, VALUE)

    def sizes(self) -> Int64:
        """By how many rows every group grows."""
        grown = np.bincount(self.group, weights=self.weight, minlength=self.count)
        return grown.astype(np.int64)
