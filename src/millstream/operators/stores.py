"""What a keyed task remembers: rows by time, and tables with one row per key.

All are views of the shards a task owns. They read what the last manifest names, and what they
write becomes part of the state only with the manifest of this batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.batch import Batch, Control
from millstream.ops.chunks import Int64, Mask, UInt64, concat, flat, numbers, own_columns
from millstream.ops.keys.hashing import key_arrays, key_names
from millstream.ops.keys.names import both_hashes
from millstream.ops.times.progress import END
from millstream.ops.updates.job import NEVER
from millstream.state import warm
from millstream.state.bags import Entries, KeyedBag, Keys, Order, added_up
from millstream.state.holdings import Total
from millstream.state.segments import Segment, read_segments, safe_name, write_segment
from millstream.state.storage import open_storage
from millstream.state.tables import KeyedTable

_SEGMENTS = 6  # per shard, before small ones are merged
LARGE = 50_000  # rows of a merged shard that are worth a file of their own


class Store:
    """The stored segments of one table of a keyed operator, for the shards of this task."""

    by = "pane"  # the column whose smallest and largest value a segment is known by
    ordered = False  # rows of a segment in order of it, so that a range of them is one slice

    def __init__(self, owner: str, table: str, batch: Batch, control: Control) -> None:
        self.owner, self.table, self.batch, self.control = owner, table, batch, control
        self.root = open_storage(batch.checkpoint).within("state")
        warm.use(self.root, batch.warm)
        self.stored: dict[str, list[Segment]] = {
            shard: segments
            for shard, segments in batch.segments.get(owner, {}).get(table, {}).items()
            if int(shard) % batch.parallelism == control.part and segments
        }

    def segments(self) -> list[Segment]:
        """All that is stored, of whatever shard."""
        return [one for segments in self.stored.values() for one in segments]

    def _read(self, segments: Iterable[Segment]) -> list[pa.Table]:
        """The rows of some segments."""
        return read_segments(self.root, list(segments), self.batch.files, self.by)

    def total(self) -> Total:
        """What there is in all shards, also in those of other tasks."""
        return self.batch.totals.get(self.owner, {}).get(self.table, Total())

    def _between(self, ranges: tuple[tuple[int, int], ...]) -> list[pa.Table]:
        """Stored rows of the shards of this task that lie in one of some ranges."""
        tables = []
        for one in self.segments():
            if any(one.low < high and one.high >= low for low, high in ranges):
                (rows,) = self._read([one])
                tables.append(between(rows, self.by, ranges, ordered=True))
        return tables

    def _write(
        self, rows: pa.Table | None, suffix: str = "", *, cold: bool = False
    ) -> dict[int, Segment]:
        """Write rows as one file, a record batch per shard; further files need a suffix.

        cold: they will hardly be read.
        """
        if rows is None or not len(rows):
            return {}
        if self.ordered:
            by = numbers(rows, self.by)
            rows = rows.take(pa.array(np.argsort(by, kind="stable")))
        file, written = write_segment(self.root, self.name_of(suffix), rows, self.by, cold=cold)
        self.control.files.append(file)
        return written

    def name_of(self, suffix: str = "") -> str:
        """What a file is called that this attempt writes."""
        return (
            f"{safe_name(self.owner)}/{safe_name(self.table)}/"
            f"{self.batch.number:08d}-{self.control.part:04d}-"
            f"{self.control.attempt}{suffix}.arrow"
        )

    def _write_merged(
        self,
        fresh: pa.Table,
        kept: dict[str, list[Segment]],
        merging: dict[str, list[Segment]],
        merge: Callable[[str, list[Segment], pa.Table], pa.Table | None],
        *,
        cold: bool = False,
    ) -> None:
        """Write new rows; in some shards together with segments, which are kept no longer.

        cold: what is large will hardly be read.
        """
        owner = numbers(fresh, "shard")
        alone = ~np.isin(owner, [int(shard) for shard in merging])
        pieces = [fresh if alone.all() else fresh.filter(pa.array(alone))]
        written: dict[int, Segment] = {}
        for shard, segments in merging.items():
            kept[shard] = [one for one in kept[shard] if one not in segments]
            merged = merge(shard, segments, fresh.filter(pa.array(owner == int(shard))))
            if merged is not None and len(merged) > LARGE:  # a file of its own, one at a time
                written |= self._write(merged, f"-{shard}", cold=cold)
            elif merged is not None:
                pieces.append(merged)
            del merged
        pieces = [piece for piece in pieces if len(piece)]
        written |= self._write(concat(pieces) if pieces else None)
        self._report(kept, written)

    def _report(self, kept: dict[str, list[Segment]], written: dict[int, Segment]) -> None:
        """Tell the driver what the shards that changed consist of from now on."""
        now: dict[str, list[Segment]] = {shard: [] for shard in self.stored}
        now.update({shard: list(segments) for shard, segments in kept.items()})
        for shard, segment in written.items():
            now.setdefault(str(shard), []).append(segment)
        self.control.segments.setdefault(self.owner, {})[self.table] = {
            shard: segments
            for shard, segments in now.items()
            if segments != self.stored.get(shard, [])
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
        return sum(one.rows for one in self.segments())

    def valid(self, end: int) -> bool:
        """Whether what is kept, in all shards, is of the window that ends there."""
        return self.total().at == end

    def rows(self) -> pa.Table | None:
        """All rows in the shards of this task."""
        return concat(self._read(self.segments())) if self.stored else None

    def rows_in(self, *ranges: tuple[int, int]) -> pa.Table | None:
        """Rows whose pane lies in one of some ranges [low, high)."""
        tables = self._between(ranges)
        return concat(tables) if tables else None

    def replace(self, rows: pa.Table | None) -> None:
        """Store new rows, or none."""
        self._report({}, self._write(rows))


def between(
    rows: pa.Table, by: str, ranges: tuple[tuple[int, int], ...], ordered: bool
) -> pa.Table:
    """Rows of which a column lies in one of some ranges [low, high)."""
    at = numbers(rows, by)
    if ordered:
        cuts = [tuple(np.searchsorted(at, bounds)) for bounds in ranges]
        return pa.concat_tables([rows.slice(low, high - low) for low, high in cuts])
    inside = np.zeros(len(at), np.bool_)
    for low, high in ranges:
        inside |= (at >= low) & (at < high)
    return rows.filter(pa.array(inside))


class Queue(Store):
    """Rows that wait for a time; those before it are taken out in order."""

    by = "time"
    ordered = True

    def __init__(
        self, owner: str, table: str, new: pa.Table | None, batch: Batch, control: Control
    ) -> None:
        super().__init__(owner, table, batch, control)
        self.new = new
        self.kept = self.stored

    def due(self, since: int, until: int) -> pa.Table | None:
        """Stored rows of times [since, until), and new rows of any time before `until`.

        Stored rows before `since` were taken out by an earlier batch.
        """
        found = self._between(((since, until),))
        if self.new is not None:
            found.append(self.new.filter(pc.less(self.new.column("time"), until)))
        found = [rows for rows in found if len(rows)]
        return concat(found) if found else None

    def forget(self) -> None:
        """Keep nothing of what was stored or new."""
        self.kept = {shard: [] for shard in self.stored}
        self.new = None

    def store(self, until: int, more: pa.Table | None = None) -> int:
        """Keep what is not due, and rows of the same kind made meanwhile; gives the next time."""
        fresh = [] if self.new is None else [self.new]
        fresh = [rows.filter(pc.greater_equal(rows.column("time"), until)) for rows in fresh]
        fresh.extend([] if more is None else [more])
        fresh = [rows for rows in fresh if len(rows)]
        kept = {
            shard: [one for one in segments if one.high >= until]
            for shard, segments in self.kept.items()
        }
        merging = small_ones(kept, sum(map(len, fresh)))
        for rows in self._read(merging):
            fresh.append(rows.filter(pc.greater_equal(rows.column("time"), until)))
        gone = set(merging)
        left = {shard: [s for s in segments if s not in gone] for shard, segments in kept.items()}
        table = concat(fresh) if fresh else None
        self._report(left, self._write(table))
        first = self._first(left, until)
        if table is not None and len(table):
            first = min(first, int(pc.min(table.column("time")).as_py()))
        return first

    def _first(self, kept: dict[str, list[Segment]], until: int) -> int:
        """The first time that is still waiting among stored rows."""
        first = END
        for one in (one for segments in kept.values() for one in segments):
            if one.low >= until:
                first = min(first, one.low)
            elif until < first:
                (rows,) = self._read([one])
                times = numbers(rows, "time")
                first = min([first, *times[np.searchsorted(times, until) :][:1].tolist()])
        return first


class Table(Store):
    """One row per key, newest wins: a batch reads and writes the keys it touches."""

    by = "expires"

    def __init__(self, owner: str, table: str, batch: Batch, control: Control) -> None:
        super().__init__(owner, table, batch, control)
        self.rows = KeyedTable(self.root, self.stored, batch.files, self.by)
        self.fresh: pa.Table | None = None
        self.cleared = False

    def rows_of(self, keys: tuple[str, ...], wanted: pa.Table | None) -> pa.Table | None:
        """The stored rows of the keys that occur in a table."""
        if wanted is None or not len(wanted) or not self.stored:
            return None
        shard = numbers(wanted, "shard").astype(np.int64)
        hashes, checks = hashes_of(keys, wanted)
        _, first = np.unique(hashes, return_index=True)
        place, found = self.rows.find(shard[first], hashes[first], checks[first])
        if found is None:
            return None
        return found.take(pa.array(place[place >= 0]))

    def find(self, keys: Keys) -> StoredRows:
        """What is stored of some keys."""
        return StoredRows(keys, *self.rows.find(keys.shard, keys.hashes, keys.checks))

    def every_row(self) -> pa.Table | None:
        """All living rows."""
        tables = list(self.rows.scan())
        return concat(tables) if tables else None

    def put(self, keys: tuple[str, ...], rows: pa.Table) -> None:
        """Rows (one per key, with their shard) that take the place of what is stored."""
        hashes, checks = hashes_of(keys, rows)
        for name in ("hash", "check", "gone", "pane", "expires"):
            if name in rows.column_names:
                rows = rows.drop_columns([name])
        self.put_hashed(
            rows.append_column("hash", pa.array(hashes))
            .append_column("check", pa.array(checks))
            .append_column("gone", pa.array(np.zeros(len(rows), np.bool_)))
            .append_column("expires", pa.array(np.full(len(rows), NEVER)))
        )

    def put_hashed(self, rows: pa.Table) -> None:
        """The same for rows that have all columns of a stored one."""
        hashes = numbers(rows, "hash")
        self.fresh = rows.take(pa.array(np.argsort(hashes, kind="stable")))

    def put_of(self, keys: Keys, gone: Mask, own: dict[str, Any]) -> None:
        """The same for columns of their own that some keys have; those that are gone are none."""
        self.put_hashed(pa.table(keyed_rows(keys, gone, own)))

    def put_counts(self, keys: Keys, counts: dict[str, Any]) -> None:
        """The same for what two sides have of keys; one that neither has is gone."""
        self.put_of(keys, (counts["count.0"] == 0) & (counts["count.1"] == 0), counts)

    def clear(self) -> None:
        """Forget every key."""
        self.cleared = True

    def store(self, gone_by: int | None = None) -> None:
        """Write what was put, together with small segments worth merging.

        gone_by: rows that expire by then are dropped where that is cheap.
        """
        if self.cleared:
            self._report({}, {})
            return
        kept = {
            shard: list(segments) if gone_by is None else _without_expired(segments, gone_by)
            for shard, segments in self.stored.items()
        }
        fresh = self.fresh
        if fresh is None:
            self._report(kept, {})
            return
        number = self.batch.number if "batch" in fresh.column_names else None

        def merge(shard: str, segments: list[Segment], mine: pa.Table) -> pa.Table | None:
            merged = self.rows.merged(shard, segments, mine, number)
            if merged is None or gone_by is None or kept[shard]:  # an older row could come to light
                return merged
            alive = pc.greater(merged.column("expires"), gone_by)
            return merged if pc.all(alive).as_py() else merged.filter(alive)

        merging, cold = self.rows.to_merge(len(fresh)), self.batch.compression == "large"
        self._write_merged(fresh, kept, merging, merge, cold=cold)


class Bag(Table):
    """Many rows per key, in order, each with how often it is there: a batch adds and takes away."""

    rows: KeyedBag

    def __init__(
        self, owner: str, table: str, batch: Batch, control: Control, order: tuple[Order, ...] = ()
    ) -> None:
        super().__init__(owner, table, batch, control)
        self.order = order
        self.rows = KeyedBag(self.root, self.stored, batch.files, order)

    def add(self, rows: pa.Table) -> None:
        """Rows (shard, hash, check, count, and their own columns) that come, or go if negative."""
        if "expires" not in rows.column_names:
            rows = rows.append_column("expires", pa.array(np.full(len(rows), NEVER)))
        self.fresh = added_up(rows, self.order)

    def first(self, keys: Keys, most: int | None = None, last: bool = False) -> Entries:
        """The first or last rows of some keys as they are now."""
        return self.rows.first(keys, self.fresh, most, last)

    def store(self, gone_by: int | None = None) -> None:
        """Write what was added, together with small segments worth merging."""
        if self.fresh is not None and not len(self.fresh):
            self.fresh = None
        super().store()


def _without_expired(segments: list[Segment], gone_by: int) -> list[Segment]:
    """The segments of a shard without the oldest ones in which everything has expired.

    A newer one stays, since it may hide an older row that lives longer.
    """
    first = next((i for i, one in enumerate(segments) if one.high > gone_by), len(segments))
    return segments[first:]


def hashes_of(keys: tuple[str, ...], rows: pa.Table) -> tuple[UInt64, UInt64]:
    """The two hashes that name the key of every row."""
    if not keys:
        zeros = np.zeros(len(rows), np.uint64)
        return zeros, zeros
    return both_hashes(key_arrays(rows, key_names(keys)))


def order_by_key(rows: pa.Table, time: str = "time") -> Int64:
    """Rows of a key together, in the order of time and place."""
    names = ("pos", "src", time, "check", "hash")
    return np.lexsort(tuple(numbers(rows, name) for name in names))


def in_order(rows: pa.Table, time: str = "time") -> pa.Table:
    """The same, in that order."""
    return rows.take(pa.array(order_by_key(rows, time)))


def keyed_rows(keys: Keys, gone: Mask, own: dict[str, Any]) -> dict[str, Any]:
    """What a table has of some keys: where they lie, and columns of its own."""
    marks = {
        "shard": keys.shard.astype(np.int32),
        "expires": np.full(len(keys), NEVER),
        "hash": keys.hashes,
        "check": keys.checks,
        "gone": gone,
    }
    return {name: pa.array(values) for name, values in (marks | own).items()}


class StoredRows:
    """What a table has of some keys, in their order."""

    def __init__(self, keys: Keys, place: Int64, known: pa.Table | None) -> None:
        self.keys, self.place, self.known = keys, place, known
        self.there: Mask = place >= 0
        self.at = pa.array(place, mask=~self.there)

    def column(self, name: str) -> pa.Array:
        """One column, null where nothing is stored."""
        if self.known is None or name not in self.known.column_names:
            return pa.nulls(len(self.there))
        return flat(self.known.column(name)).take(self.at)

    def numbers(self, name: str, none: int = 0) -> Int64:
        """A column of whole numbers, `none` where nothing is stored."""
        found = self.column(name)
        if pa.types.is_null(found.type):
            return np.full(len(found), none, np.int64)
        return np.asarray(found.fill_null(none)).astype(np.int64)

    def flags(self, name: str) -> Mask:
        """A column of booleans, false where nothing is stored."""
        found = self.column(name)
        if pa.types.is_null(found.type):
            return np.zeros(len(found), np.bool_)
        return np.asarray(found.fill_null(False)).astype(np.bool_)

    def rows(self, prefix: str, some: Mask) -> pa.Table:
        """Columns with a prefix, of some keys that are there."""
        assert self.known is not None
        return own_columns(self.known, prefix).take(self.at.filter(pa.array(some)))
