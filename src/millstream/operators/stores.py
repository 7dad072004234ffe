"""What a keyed task remembers: rows by time, and tables with one row per key.

All are views of the shards a task owns. They read what the last manifest names, and what they
write becomes part of the state only with the manifest of this batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.operators.batch import Batch, Control
from millstream.ops.chunks import concat, flat
from millstream.ops.keys import key_arrays
from millstream.ops.updates import both_hashes
from millstream.state.segments import Segment, read_segments, safe_name, write_segment
from millstream.state.tables import KeyedTable

_SEGMENTS = 6  # per shard, before small ones are merged


class Store:
    """The stored segments of one table of a keyed operator, for the shards of this task."""

    ordered = False  # rows of a segment in order of panes, so that a range of them is one slice

    def __init__(self, owner: str, table: str, batch: Batch, control: Control) -> None:
        self.owner, self.table, self.batch, self.control = owner, table, batch, control
        self.root = Path(batch.checkpoint) / "state"
        self.stored: dict[str, list[Segment]] = {
            shard: segments
            for shard, segments in batch.segments.get(owner, {}).get(table, {}).items()
            if int(shard) % batch.parallelism == control.part and segments
        }

    def _read(self, segments: Iterable[Segment]) -> list[pa.Table]:
        """The rows of some segments."""
        return read_segments(self.root, list(segments), self.batch.files)

    def _everywhere(self) -> list[Segment]:
        """The segments of all shards, also of those of other tasks."""
        shards = self.batch.segments.get(self.owner, {}).get(self.table, {})
        return [one for segments in shards.values() for one in segments]

    def _between(self, ranges: tuple[tuple[int, int], ...]) -> list[pa.Table]:
        """Stored rows of the shards of this task whose pane lies in one of some ranges."""
        tables = []
        for segments in self.stored.values():
            for one in segments:
                if any(one.low < high and one.high >= low for low, high in ranges):
                    (rows,) = self._read([one])
                    tables.append(between(rows, ranges, ordered=True))
        return tables

    def _write(self, rows: pa.Table | None, suffix: str = "") -> dict[int, Segment]:
        """Write rows as one file, a record batch per shard; further files need a suffix."""
        if rows is None or not len(rows):
            return {}
        if self.ordered:
            pane = np.asarray(flat(rows.column("pane")))
            rows = rows.take(pa.array(np.argsort(pane, kind="stable")))
        name = (
            f"{safe_name(self.owner)}/{safe_name(self.table)}/"
            f"{self.batch.number:08d}-{self.control.part:04d}-"
            f"{self.control.attempt}{suffix}.arrow"
        )
        file, written = write_segment(self.root, name, rows)
        self.control.files.append(file)
        return written

    def _report(self, kept: dict[str, list[Segment]], written: dict[int, Segment]) -> None:
        """Tell the driver what this table consists of from now on."""
        for shard, segment in written.items():
            kept.setdefault(str(shard), []).append(segment)
        self.control.segments.setdefault(self.owner, {})[self.table] = {
            **{shard: [] for shard in self.stored},
            **kept,
        }


def small_ones(kept: dict[str, list[Segment]], fresh: int) -> list[Segment]:
    """Newest segments to merge, while they are not much larger than what is written anyway."""
    chosen: list[Segment] = []
    for segments in kept.values():
        if len(segments) < _SEGMENTS:
            continue
        size = max(1, fresh // max(1, len(kept)))
        for segment in reversed(segments):
            if segment.rows > 2 * size and len(segments) < 4 * _SEGMENTS:
                break
            chosen.append(segment)
            size += segment.rows
    return chosen


class Kept(Store):
    """Rows that are replaced together: of the window that left last, or what was emitted."""

    ordered = True

    def size(self) -> int:
        """How many rows there are in the shards of this task."""
        return sum(s.rows for segments in self.stored.values() for s in segments)

    def everywhere(self) -> int:
        """How many rows there are in all shards."""
        return sum(s.rows for s in self._everywhere())

    def valid(self, end: int) -> bool:
        """Whether what is kept, in all shards, is of the window that ends there."""
        segments = self._everywhere()
        return bool(segments) and all(s.low == s.high == end for s in segments)

    def rows(self) -> pa.Table | None:
        """All rows in the shards of this task."""
        segments = [s for found in self.stored.values() for s in found]
        return concat(self._read(segments)) if segments else None

    def rows_in(self, *ranges: tuple[int, int]) -> pa.Table | None:
        """Rows whose pane lies in one of some ranges [low, high)."""
        tables = self._between(ranges)
        return concat(tables) if tables else None

    def replace(self, rows: pa.Table | None) -> None:
        """Store new rows, or none."""
        self._report({}, self._write(rows))


def between(rows: pa.Table, ranges: tuple[tuple[int, int], ...], ordered: bool) -> pa.Table:
    pane = np.asarray(flat(rows.column("pane")))
    if ordered:
        cuts = [tuple(np.searchsorted(pane, bounds)) for bounds in ranges]
        return pa.concat_tables([rows.slice(low, high - low) for low, high in cuts])
    inside = np.zeros(len(pane), np.bool_)
    for low, high in ranges:
        inside |= (pane >= low) & (pane < high)
    return rows.filter(pa.array(inside))


class Table(Store):
    """One row per key, newest wins: a batch reads and writes the keys it touches."""

    def __init__(self, owner: str, table: str, batch: Batch, control: Control) -> None:
        super().__init__(owner, table, batch, control)
        self.rows = KeyedTable(self.root, self.stored, batch.files)
        self.fresh: pa.Table | None = None
        self.cleared = False

    def rows_of(self, keys: tuple[str, ...], wanted: pa.Table | None) -> pa.Table | None:
        """The stored rows of the keys that occur in a table."""
        if wanted is None or not len(wanted) or not self.stored:
            return None
        shard = np.asarray(flat(wanted.column("shard"))).astype(np.int64)
        hashes, checks = hashes_of(keys, wanted)
        _, first = np.unique(hashes, return_index=True)
        place, found = self.rows.find(shard[first], hashes[first], checks[first])
        if found is None:
            return None
        return found.take(pa.array(place[place >= 0]))

    def every_row(self) -> pa.Table | None:
        """All living rows."""
        tables = list(self.rows.scan())
        return concat(tables) if tables else None

    def put(self, keys: tuple[str, ...], rows: pa.Table) -> None:
        """Rows (one per key, with their shard) that take the place of what is stored."""
        hashes, checks = hashes_of(keys, rows)
        order = np.argsort(hashes, kind="stable")
        for name in ("hash", "check", "gone", "pane"):
            if name in rows.column_names:
                rows = rows.drop_columns([name])
        zeros = np.zeros(len(rows), np.int64)
        rows = (
            rows.append_column("hash", pa.array(hashes))
            .append_column("check", pa.array(checks))
            .append_column("gone", pa.array(zeros.astype(np.bool_)))
            .append_column("pane", pa.array(zeros))
        )
        self.fresh = rows.take(pa.array(order))

    def clear(self) -> None:
        """Forget every key."""
        self.cleared = True

    def store(self) -> None:
        """Write what was put, together with small segments worth merging."""
        if self.cleared:
            self._report({}, {})
            return
        kept = {shard: list(segments) for shard, segments in self.stored.items()}
        if self.fresh is None:
            self._report(kept, {})
            return
        merging = self.rows.to_merge(len(self.fresh))
        owner = np.asarray(flat(self.fresh.column("shard")))
        pieces = [self.fresh.filter(pa.array(~np.isin(owner, [int(s) for s in merging])))]
        for shard, segments in merging.items():
            mine = self.fresh.filter(pa.array(owner == int(shard)))
            merged = self.rows.merged(shard, segments, mine)
            kept[shard] = kept[shard][: len(kept[shard]) - len(segments)]
            if merged is not None:
                pieces.append(merged)
        self._report(kept, self._write(concat([p for p in pieces if len(p)] or pieces[:1])))


def hashes_of(keys: tuple[str, ...], rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The two hashes that name the key of every row."""
    if not keys:
        zeros = np.zeros(len(rows), np.uint64)
        return zeros, zeros
    columns = key_arrays(rows, tuple(f"key.{i}" for i in range(len(keys))))
    return both_hashes(columns)
