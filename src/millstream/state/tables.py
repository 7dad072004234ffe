"""Keyed tables: one row per key, newest wins, found by hash.

A shard of a keyed table is a few segments whose rows are sorted by a 64-bit hash of the key. A
lookup searches the segments from the newest to the oldest, over memory-mapped columns, and decodes
only the rows it is asked for; a batch writes only the rows it changed (a removed key as a
tombstone).
Segments are merged when the newer ones have grown as large as the next older one. So the cost of a
batch follows the keys it touches, not those that are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import concat, ends, numbers
from millstream.state.segments import Segment, SegmentFile, read_segments
from millstream.state.storage import Storage

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]

MOST_SEGMENTS = 12
_RATIO = 2


class Hashed:
    """The keys of rows that are sorted by hash: where each is, for one key or for many.

    Two hashes of 64 bits name a key: one for the search, one to be sure.
    """

    def __init__(self, hashes: UInt64, checks: UInt64) -> None:
        self.hash, self.check = hashes, checks

    def find(self, wanted: np.uint64, check: np.uint64) -> int:
        """The row of a key, or -1. Both must be NumPy's: a plain int would convert the column."""
        at = int(self.hash.searchsorted(wanted))
        while at < len(self.hash) and self.hash[at] == wanted:
            if self.check[at] == check:
                return at
            at += 1  # two keys share their first hash
        return -1

    def find_all(self, hashes: UInt64, checks: UInt64) -> Int64:
        """The same for many keys."""
        at = self.hash.searchsorted(hashes)
        found = np.full(len(hashes), -1, np.int64)
        left = np.arange(len(hashes))
        while len(left):  # a second round only if two keys share their first hash
            left = left[at[left] < len(self.hash)]
            left = left[self.hash[at[left]] == hashes[left]]
            same = self.check[at[left]] == checks[left]
            found[left[same]] = at[left[same]]
            left = left[~same]
            at[left] += 1
        return found


class SortedRows:
    """The stored rows of some shards, in segments whose rows are sorted by hash."""

    def __init__(
        self,
        root: Storage,
        stored: dict[str, list[Segment]],
        files: dict[str, SegmentFile],
        by: str = "expires",
    ) -> None:
        self.root, self.stored, self.files, self.by = root, stored, files, by
        self._opened: dict[tuple[str, int], pa.Table] = {}

    def to_merge(self, fresh: int) -> dict[str, list[Segment]]:
        """Per shard the newest segments worth rewriting together with so many new rows."""
        return worth_merging(self.stored, fresh)

    def read(self, segments: list[Segment], fresh: pa.Table | None = None) -> list[pa.Table]:
        """The rows of some segments, and new ones after them."""
        tables = [self._rows(one) for one in segments]
        return tables if fresh is None or not len(fresh) else [*tables, fresh]

    def _rows(self, segment: Segment) -> pa.Table:
        """The rows of one segment; opened once, however many keys are looked up."""
        known = (segment.file, segment.index)
        if known not in self._opened:
            (self._opened[known],) = read_segments(self.root, [segment], self.files, self.by)
        return self._opened[known]


class KeyedTable(SortedRows):
    """One row per key; beside what it holds it has columns hash, check and gone."""

    def find(self, shard: Int64, hashes: UInt64, checks: UInt64) -> tuple[Int64, pa.Table | None]:
        """Per wanted key the row of the result that holds it (-1: none), and the rows found."""
        place = np.full(len(hashes), -1, np.int64)
        found: list[pa.Table] = []
        count = 0
        for number in np.unique(shard).tolist():
            wanted = np.flatnonzero(shard == number)
            for segment in reversed(self.stored.get(str(number), [])):
                if not len(wanted):
                    break
                rows = self._rows(segment)
                at = _keys_of(rows).find_all(hashes[wanted], checks[wanted])
                hit = at >= 0
                if hit.any():
                    place[wanted[hit]] = count + np.arange(int(hit.sum()))
                    found.append(rows.take(pa.array(at[hit])))
                    count += int(hit.sum())
                    wanted = wanted[~hit]
        if not found:
            return place, None
        table = concat(found)
        gone = numbers(table, "gone").astype(np.bool_)
        hidden = gone[np.maximum(place, 0)] & (place >= 0)
        place[hidden] = -1
        return place, table

    def scan(self) -> Iterator[pa.Table]:
        """Every living row, shard by shard."""
        for shard in sorted(self.stored, key=int):
            merged = newest(self.read(self.stored[shard]))
            if merged is not None:
                yield merged.filter(pc.invert(merged.column("gone")))

    def merged(
        self, shard: str, chosen: list[Segment], fresh: pa.Table | None, batch: int | None = None
    ) -> pa.Table | None:
        """Chosen (newest) segments of a shard and new rows as one; the oldest drops tombstones.

        Those of `batch` stay until the next time: they are how others learn what it removed.
        """
        table = newest(self.read(chosen, fresh))
        if table is not None and len(chosen) == len(self.stored.get(shard, [])):
            keep = pc.invert(table.column("gone"))
            if batch is not None:
                keep = pc.or_(keep, pc.equal(table.column("batch"), batch))
            table = table.filter(keep)
        return table


def worth_merging(stored: dict[str, list[Segment]], fresh: int) -> dict[str, list[Segment]]:
    """Per shard the newest segments worth rewriting together with so many new rows.

    These are taken to be spread evenly over the shards.
    """
    chosen: dict[str, list[Segment]] = {}
    for shard, segments in stored.items():
        size, taken = max(1, fresh // max(1, len(stored))), 0
        for segment in reversed(segments):
            if segment.rows > _RATIO * size and len(segments) - taken < MOST_SEGMENTS:
                break
            size += segment.rows
            taken += 1
        if taken > 1 or len(segments) >= MOST_SEGMENTS:
            chosen[shard] = segments[len(segments) - max(taken, 1) :]
    return chosen


def newest(tables: list[pa.Table]) -> pa.Table | None:
    """Tables from the oldest to the newest as one: the newest row per key, sorted by hash."""
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    table = concat(tables)
    hashes, checks = numbers(table, "hash"), numbers(table, "check")
    order = np.lexsort((np.arange(len(table)), checks, hashes))
    return table.take(pa.array(order[ends(hashes[order], checks[order])]))


def _keys_of(rows: pa.Table) -> Hashed:
    return Hashed(numbers(rows, "hash"), numbers(rows, "check"))
