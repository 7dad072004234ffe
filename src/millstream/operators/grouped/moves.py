"""Rows of one batch on their way into groups, and what is stored of these groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.stores import Table
from millstream.ops.chunks import Int64, Mask, flat, numbers, own_columns
from millstream.ops.keys import distinct
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
        shard, hashes, checks, weight = (
            numbers(rows, name) for name in ("shard", "hash", "check", "weight")
        )
        group, first = distinct((hashes, checks))
        keys = Keys(shard[first].astype(np.int64), hashes[first], checks[first])
        return cls(rows, group, weight.astype(np.int64), keys, first)

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

    def added(self) -> Mask:
        """The rows that come."""
        mask: Mask = self.weight > 0
        return mask

    def values(self) -> pa.Table:
        """The rows' own columns."""
        return own_columns(self.table, VALUE)

    def sizes(self) -> Int64:
        """By how many rows every group grows."""
        grown = np.bincount(self.group, weights=self.weight, minlength=self.count)
        return grown.astype(np.int64)


class Kept:
    """What is stored of some groups, in their order."""

    def __init__(self, table: Table, keys: Keys) -> None:
        place, known = table.rows.find(keys.shard, keys.hashes, keys.checks)
        self.there = place >= 0
        self.known = known
        self.at = pa.array(place, mask=~self.there)

    def has(self, name: str) -> bool:
        """Whether any row that was found has a column."""
        return self.known is not None and name in self.known.column_names

    def column(self, name: str) -> pa.Array:
        """One column, null where nothing is stored."""
        if self.known is None or name not in self.known.column_names:
            return pa.nulls(len(self.there))
        return flat(self.known.column(name)).take(self.at)

    def numbers(self, name: str) -> Int64:
        """A column of whole numbers, zero where nothing is stored."""
        found = self.column(name)
        if pa.types.is_null(found.type):
            return np.zeros(len(found), np.int64)
        return np.asarray(found.fill_null(0)).astype(np.int64)

    def flags(self, name: str) -> Mask:
        """A column of booleans, false where nothing is stored."""
        found = self.column(name)
        if pa.types.is_null(found.type):
            return np.zeros(len(found), np.bool_)
        return np.asarray(found.fill_null(False)).astype(np.bool_)

    def rows(self, prefix: str, groups: Mask) -> pa.Table:
        """Columns with a prefix, of some groups that are there."""
        assert self.known is not None
        return own_columns(self.known, prefix).take(self.at.filter(pa.array(groups)))
