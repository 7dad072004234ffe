"""Traces: all rows of a key, found by its hash, each with a weight.

A shard of a trace is a few segments whose rows are sorted by a 64-bit hash of their key, and by
their identity within it. A row that goes is written as the same row with a weight of -1; what rows
come to is the sum of their weights. Segments are merged when the newer ones have grown as large as
the next older one, and rows that come to nothing are dropped then. So the cost of a batch follows
the rows of the keys it asks for, not those that are stored.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Int64, concat, numbers
from millstream.ops.keys.joins import UInt64, first_in, ranges
from millstream.state.tables import SortedRows


class Trace(SortedRows):
    """The rows of some keys: columns hash, check, same, weight, and what they hold."""

    def rows_of(
        self, shard: Int64, hashes: UInt64, among: tuple[Int64, Int64] | None = None
    ) -> pa.Table | None:
        """All rows with one of some hashes, each given once, as they were written.

        among: per hash the first and the last identity of the rows that are wanted.
        """
        found: list[pa.Table] = []
        for number in np.unique(shard).tolist():
            mine = shard == number
            wanted = hashes[mine]
            for segment in self.stored.get(str(number), []):
                rows = self._rows(segment)
                stored = numbers(rows, "hash")
                low, high = (np.searchsorted(stored, wanted, side) for side in ("left", "right"))
                if among is not None:
                    names = numbers(rows, "same")
                    low = first_in(names, low, high, among[0][mine], np.less)
                    high = first_in(names, low, high, among[1][mine], np.less_equal)
                at, _ = ranges(low, high)
                if len(at):
                    found.append(rows.take(pa.array(at)))
        return concat(found) if found else None

    def weights(self, shard: Int64, hashes: UInt64, same: Int64) -> Int64:
        """What the weights of single rows come to; they are found without their neighbours."""
        total = np.zeros(len(hashes), np.int64)
        for number in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == number)
            for segment in self.stored.get(str(number), []):
                rows = self._rows(segment)
                stored, names = numbers(rows, "hash"), numbers(rows, "same")
                low, high = (
                    np.searchsorted(stored, hashes[mine], side) for side in ("left", "right")
                )
                begin = first_in(names, low, high, same[mine], np.less)
                end = first_in(names, begin, high, same[mine], np.less_equal)
                at, owner = ranges(begin, end)
                if len(at):
                    weight = numbers(rows.select(["weight"]).take(pa.array(at)), "weight")
                    np.add.at(total, mine[owner], weight)
        return total


def in_order(rows: pa.Table) -> pa.Table:
    """Rows as a segment has them."""
    order = np.lexsort((numbers(rows, "same"), numbers(rows, "hash")))
    return rows.take(pa.array(order))
