"""Keyed bags: many rows per key, in an order, each with how often it is there.

A shard of a bag is a few segments whose rows are sorted by a 64-bit hash of the key, and within a
key by their own columns. A segment holds changes: what the segments say of a row adds up to how
often it is there, and what adds up to nothing is dropped when they are merged. So a batch writes
what it changed, and the first or last rows of a key are found without reading the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Int64, Mask, concat, flat, numbers, with_column
from millstream.ops.keys.hashing import factorize
from millstream.ops.mixed import in_order, is_mixed
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import Storage
from millstream.state.tables import KeyedTable, UInt64

_MARKS = ("shard", "expires", "hash", "check", "gone", "count")
_LAST = 2**62  # after all others
_AHEAD = 4  # rows read of a key beyond those wanted, as some may have been taken away


@dataclass(frozen=True)
class Order:
    """A column by which rows of a key are in order; nulls come last unless said otherwise."""

    column: str
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class Keys:
    """Keys that are looked for: their shards and both hashes."""

    shard: Int64
    hashes: UInt64
    checks: UInt64

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def of(cls, rows: pa.Table, some: Int64 | slice = slice(None)) -> Keys:
        """The keys of rows, or of some of them."""
        shard, hashes, checks = (numbers(rows, name)[some] for name in ("shard", "hash", "check"))
        return cls(shard.astype(np.int64), hashes, checks)

    @property
    def names(self) -> Int64:
        """What stands for them in the identity of rows."""
        names: Int64 = (self.hashes >> np.uint64(1)).astype(np.int64)
        return names

    def at(self, places: Int64) -> Keys:
        """Some of them."""
        return Keys(self.shard[places], self.hashes[places], self.checks[places])


@dataclass(frozen=True)
class Entries:
    """Rows that were found, by key and in order: the key of each, and how often it is there."""

    key: Int64
    rows: pa.Table | None
    count: Int64

    def repeated(self) -> tuple[Int64, pa.Table | None]:
        """Every row as often as it is there."""
        if self.rows is None:
            return self.key, None
        at = np.repeat(np.arange(len(self.key)), self.count)
        return self.key[at], self.rows.take(pa.array(at))


class KeyedBag(KeyedTable):
    """The stored rows of some shards; `order` has the columns that come first in it."""

    def __init__(
        self,
        root: Storage,
        stored: dict[str, list[Segment]],
        files: dict[str, SegmentFile],
        order: tuple[Order, ...] = (),
    ) -> None:
        super().__init__(root, stored, files)
        self.order = order
        self.looked_at = 0  # rows

    def merged(
        self, shard: str, chosen: list[Segment], fresh: pa.Table | None, batch: int | None = None
    ) -> pa.Table | None:
        """Chosen segments of a shard and new rows as one."""
        tables = self.read(chosen, fresh)
        return added_up(concat(tables), self.order) if tables else None

    def first(
        self, keys: Keys, fresh: pa.Table | None, most: int | None, last: bool = False
    ) -> Entries:
        """The first (or last) rows of some keys, in stored segments and in new rows.

        most: how many of a key, where a row counts as often as it is there; None: all.
        """
        runs = _Runs(self._sources(keys, fresh), keys, last)
        wanted = most
        if most is not None and not runs.alike(self.order):  # segments may be in different orders
            most = None
        pending = np.arange(len(keys))
        step = None if most is None else most + _AHEAD
        found: list[tuple[Int64, pa.Table, Int64]] = []
        while len(pending) and runs.advance(pending, step):
            key, rows, count, done = runs.settled(pending, self.order, most)
            ready = np.isin(key, pending[done])
            found.append((key[ready], rows.filter(pa.array(ready)), count[ready]))
            pending = pending[~done]
            step = None if step is None else step * 4
        self.looked_at += runs.read
        if not found:
            return Entries(np.zeros(0, np.int64), None, np.zeros(0, np.int64))
        key = np.concatenate([one[0] for one in found])
        rows, count = concat([one[1] for one in found]), np.concatenate([one[2] for one in found])
        order = np.argsort(key, kind="stable")
        key, count = key[order], count[order]
        if wanted is not None:  # more than these were read where orders differ
            count = np.minimum(count, wanted - _before(key, count))
            order, key, count = order[count > 0], key[count > 0], count[count > 0]
        return Entries(key, rows.take(pa.array(order)), count)

    def _sources(self, keys: Keys, fresh: pa.Table | None) -> list[tuple[pa.Table, Int64]]:
        """Tables in which keys may be, and which keys may."""
        sources = []
        for shard in np.unique(keys.shard).tolist():
            wanted = np.flatnonzero(keys.shard == shard)
            for segment in self.stored.get(str(shard), []):
                sources.append((self._rows(segment), wanted))
        if fresh is not None and len(fresh):
            sources.append((fresh, np.arange(len(keys))))
        return sources


class _Runs:
    """The rows of some keys in several sorted tables, read from one end bit by bit."""

    def __init__(self, sources: list[tuple[pa.Table, Int64]], keys: Keys, last: bool) -> None:
        self.tables = [table for table, _ in sources]
        self.last, self.read = last, 0
        table, key, low, high = [], [], [], []
        for number, (rows, wanted) in enumerate(sources):
            start, stop = _spans(rows, keys.hashes[wanted], keys.checks[wanted])
            there = stop > start
            table.append(np.full(int(there.sum()), number, np.int64))
            key.append(wanted[there])
            low.append(start[there])
            high.append(stop[there])
        none = [np.zeros(0, np.int64)]
        self.table, self.key = np.concatenate(table or none), np.concatenate(key or none)
        self.low, self.high = np.concatenate(low or none), np.concatenate(high or none)
        self.taken = np.zeros(len(self.key), np.int64)
        self.parts: list[pa.Table] = []
        self.run = np.zeros(0, np.int64)  # of every row that was read

    def alike(self, order: tuple[Order, ...]) -> bool:
        """Whether all tables have their rows in one order: they do if types are the same."""
        kinds: dict[str, set[pa.DataType]] = {}
        for number in np.unique(self.table).tolist():
            for field in self.tables[number].schema:
                if field.name not in _MARKS and not pa.types.is_null(field.type):
                    kinds.setdefault(field.name, set()).add(field.type)
        return all(len(found) == 1 for found in kinds.values())

    def advance(self, pending: Int64, step: int | None) -> bool:
        """Read on for keys that are not settled; False if none of them has any rows."""
        waits = np.isin(self.key, pending)
        if len(self.run):
            kept = waits[self.run]
            self.parts = [concat(self.parts).filter(pa.array(kept))]
            self.run = self.run[kept]
        left = self.high - self.low - self.taken
        size = np.where(waits, left if step is None else np.minimum(left, step), 0)
        begin = self.high - self.taken - size if self.last else self.low + self.taken
        self.taken += size
        for number in np.unique(self.table[size > 0]).tolist():
            mine = np.flatnonzero((self.table == number) & (size > 0))
            sizes = size[mine]
            nth = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            rows = np.repeat(begin[mine], sizes) + nth
            self.parts.append(self.tables[number].take(pa.array(rows)))
            self.run = np.concatenate((self.run, np.repeat(mine, sizes)))
            self.read += len(rows)
        return bool(len(self.run))

    def settled(
        self, pending: Int64, order: tuple[Order, ...], most: int | None
    ) -> tuple[Int64, pa.Table, Int64, Mask]:
        """Rows whose count is known by now, with their keys; and which keys have enough of them."""
        rows = concat(self.parts)
        self.parts = [rows]
        key = self.key[self.run]
        place, begins = arranged(rows, [key], order, self.last)
        rank = np.empty(len(place), np.int64)  # equal rows have the same
        rank[place] = np.cumsum(begins) - 1
        furthest = np.zeros(len(self.key), np.int64)
        np.maximum.at(furthest, self.run, rank)
        more = self.low + self.taken < self.high  # beyond the last row that was read of a run
        bound = np.full(int(self.key.max()) + 1, len(place), np.int64)
        open_ = np.flatnonzero(more & np.isin(self.key, pending))
        np.minimum.at(bound, self.key[open_], furthest[open_])
        start = place[begins]
        count = np.bincount(rank, weights=_counts(rows), minlength=len(start)).astype(np.int64)
        known = np.arange(len(start)) <= bound[key[start]]
        start, count = start[known], count[known]
        there = count > 0
        at, count = start[there], count[there]
        mine = key[at]
        before = _before(mine, count)
        total = np.bincount(mine, weights=count, minlength=len(bound)).astype(np.int64)
        closed = bound == len(place)
        if most is not None:
            count = np.minimum(count, most - before)
            at, mine, count = at[count > 0], mine[count > 0], count[count > 0]
            closed = closed | (total >= most)
        done = np.ones(len(pending), np.bool_)  # a key that no table has is settled
        inside = pending < len(closed)
        done[inside] = closed[pending[inside]]
        return mine, rows.take(pa.array(at)), count, done


def added_up(rows: pa.Table, order: tuple[Order, ...]) -> pa.Table:
    """Rows in the order of a segment, every one once with all its counts; those of none are gone.

    Rows have columns hash, check and count beside their own.
    """
    keys = [numbers(rows, name) for name in ("hash", "check")]
    place, begins = arranged(rows, keys, order)
    start = np.flatnonzero(begins)
    count = np.add.reduceat(_counts(rows)[place], start) if len(start) else np.zeros(0, np.int64)
    kept = count != 0
    found = rows.take(pa.array(place[start[kept]]))
    return with_column(found, "count", count[kept])


def arranged(
    rows: pa.Table, heads: list[Any], order: tuple[Order, ...], last: bool = False
) -> tuple[Int64, Mask]:
    """How to sort rows by some numbers and then by their columns; and where others begin.

    A column is looked at only where rows are equal in all before it. last: columns backwards.
    """
    place = np.arange(len(rows))
    begins = np.zeros(len(rows), np.bool_)
    begins[:1] = True
    for head in (*heads, *_in_turn(rows, order)):
        equal = ~begins
        equal[:-1] |= ~begins[1:]
        at = np.flatnonzero(equal)
        if not len(at):
            break
        some, group = place[at], np.cumsum(begins, dtype=np.int64)[at]
        if isinstance(head, Order):
            column = flat(rows.column(head.column)).take(pa.array(some))
            if _all_equal(column, group):
                continue
            codes = _code_of(column, head)
            codes = -codes if last else codes
        else:
            codes = head[some]
        one = group[0] == group[-1]
        nth = np.argsort(codes, kind="stable") if one else np.lexsort((codes, group))
        place[at], codes = some[nth], codes[nth]
        begins[at[1:]] |= codes[1:] != codes[:-1]
    return place, begins


def _in_turn(rows: pa.Table, order: tuple[Order, ...]) -> list[Order]:
    """All columns of a row, those of an order first."""
    named = {one.column for one in order}
    rest = sorted(set(rows.column_names) - set(_MARKS) - named)
    return [one for one in (*order, *map(Order, rest)) if one.column in rows.column_names]


def _all_equal(column: pa.Array, group: Int64) -> bool:
    """Whether rows of the same group have the same, which is found sooner than an order."""
    if not (_is_text(column.type) or pa.types.is_decimal(column.type)):
        return False
    pairs = column.slice(1), column.slice(0, len(column) - 1)
    same = pc.equal(*pairs).fill_null(False)
    if column.null_count:
        same = pc.or_(same, pc.and_(*map(pc.is_null, pairs)))
    return bool((np.asarray(same) | (group[1:] != group[:-1])).all())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _code_of(column: pa.Array, order: Order) -> Int64:
    """A number for every row, by which rows are in the order of one column."""
    code = _code(column)
    if order.descending:
        code = -code
    if column.null_count:
        null = np.asarray(pc.is_null(column))
        code = np.where(null, -_LAST if order.nulls_first else _LAST, code)
    return code


def _code(column: pa.Array) -> Int64:
    kind = column.type
    if is_mixed(kind):
        return _ranked(column)
    if pa.types.is_decimal(kind):  # which are told apart as texts elsewhere
        return np.asarray(pc.rank(column, tiebreaker="dense")).astype(np.int64)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        numbers = np.asarray(column.view(pa.int64()).fill_null(0))
        if not len(numbers) or (numbers.min() > -_LAST and numbers.max() < _LAST):
            return numbers
    return factorize([column])[0]


def _ranked(column: pa.Array) -> Int64:
    """Values of many types by number, in the order in which each type has its own."""
    values = [in_order(value) for value in column.to_pylist()]
    rank = {value: number for number, value in enumerate(sorted(set(values)))}
    return np.array([rank[value] for value in values], np.int64)


def _counts(rows: pa.Table) -> Int64:
    counts: Int64 = numbers(rows, "count")
    return counts


def _before(key: Int64, count: Int64) -> Int64:
    """How many come before each row of its key; keys are in order."""
    total = np.cumsum(count) - count
    first = np.searchsorted(key, key)
    before: Int64 = total - total[first] if len(key) else total
    return before


def _spans(rows: pa.Table, hashes: UInt64, checks: UInt64) -> tuple[Int64, Int64]:
    """Where the rows of every key begin and end in a sorted table."""
    stored = numbers(rows, "hash")
    stored_checks = numbers(rows, "check")
    start, stop = (np.searchsorted(stored, hashes, side) for side in ("left", "right"))
    there = np.flatnonzero(stop > start)
    strange = stored_checks[start[there]] != checks[there]
    strange |= stored_checks[stop[there] - 1] != checks[there]
    for at in there[strange].tolist():  # another key has the same first hash
        inside = stored_checks[start[at] : stop[at]]
        bounds = [int(np.searchsorted(inside, checks[at], side)) for side in ("left", "right")]
        start[at], stop[at] = start[at] + bounds[0], start[at] + bounds[1]
    return start.astype(np.int64), stop.astype(np.int64)
