"""What has been emitted of windows that are still open, per (key, window), in columns.

A result is known by its key and by which window of that key it is: by its time, a session by its
start, or a number. A reduce function may give several rows for one; those are in order. Results
that are looked at again are compared with what was said last, column by column and all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import (
    ROW,
    Chunk,
    Int64,
    Mask,
    concat,
    flat,
    numbers,
    own_columns,
    with_column,
)
from millstream.ops.keys.hashing import distinct, factorize
from millstream.ops.keys.joins import ranges
from millstream.ops.mixed import beside, holds_mixed

_DIGITS = 12  # results that agree in so many digits count as the same
_CLOSE = 1e-11  # what agrees in so many digits is closer than this, relatively
OLDER = (
    "this checkpoint was written by a version that stored changes in another form; let that "
    "version run to the end of its input, or start with a new checkpoint and new output directories"
)


class Results:
    """Rows of results, and which of them are of the same (key, window)."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.window = windows_of(chunk)
        self.group, _ = distinct((chunk.pos, self.window))
        self.nth, self.first, self.count = _counted(self.group)

    def rows(self, groups: Mask) -> Int64:
        """The rows of some results, in order."""
        return np.flatnonzero(groups[self.group])


class Memory:
    """What was emitted last of every result; a result without rows was taken back."""

    def __init__(self, known: pa.Table | None) -> None:
        if known is None:
            known = _empty()
        if "stamp" not in known.column_names:
            raise RunError(OLDER)
        name, window, nth = (_numbers(known, one) for one in ("name", "window", "nth"))
        order = np.lexsort((nth, window, name))
        self.known = known.take(pa.array(order))
        self.nth = nth[order]
        name, window = name[order], window[order]
        self.group, _ = distinct((name, window))
        _, self.first, self.count = _counted(self.group)
        self.name, self.window = name[self.first], window[self.first]
        self.ts, self.revision, self.stamp = (
            _numbers(self.known, one)[self.first] for one in ("ts", "revision", "stamp")
        )
        self.shown = _numbers(self.known, "shown")[self.first] > 0

    def __len__(self) -> int:
        """How many results there are."""
        return len(self.first)

    def find(self, results: Results) -> Int64:
        """Which of the remembered results each is, by its name; -1 if none."""
        first = results.first
        names = np.concatenate((self.name, results.chunk.pos[first]))
        codes, _ = distinct((names, np.concatenate((self.window, results.window[first]))))
        place = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, np.int64)
        place[codes[: len(self)]] = np.arange(len(self))
        return place[codes[len(self) :]]

    def same(self, results: Results, found: Int64) -> Mask:
        """Which results say what was said last of them."""
        at = np.maximum(found, 0)
        candidates = found >= 0
        if len(self):
            candidates &= self.shown[at] & (self.count[at] == results.count)
        rows = results.rows(candidates)
        if not len(rows):
            return candidates
        group = results.group[rows]
        known = self.first[found[group]] + results.nth[rows]
        mine = results.chunk.table.take(pa.array(rows))
        equal = equal_rows(self.emitted(known), mine)
        candidates[group[~equal]] = False
        return candidates

    def overlapping(self, results: Results) -> tuple[Int64, Int64]:
        """Pairs (result, remembered one) of sessions of the same key that have time in common."""
        first = results.first
        pos, start, end = results.chunk.pos[first], results.window[first], results.chunk.ts[first]
        _, time = np.unique(np.concatenate((self.window, self.ts, start, end)), return_inverse=True)
        _, key = np.unique(np.concatenate((self.name, pos)), return_inverse=True)
        count, width = len(self), len(time) + 1
        mine, theirs = key[:count] * width, key[count:] * width
        begins, ends = mine + time[:count], mine + time[count : 2 * count]
        low = np.searchsorted(ends, theirs + time[2 * count : 2 * count + len(pos)], "left")
        high = np.searchsorted(begins, theirs + time[2 * count + len(pos) :], "right")
        remembered, result = ranges(low, np.maximum(low, high))
        return result, remembered

    def emitted(self, rows: Int64) -> pa.Table:
        """Some rows as they were emitted."""
        return own_columns(self.known).take(pa.array(rows))

    def rows(self, which: Mask) -> Int64:
        """The rows of some results, in order."""
        return np.flatnonzero(which[self.group]) if len(self) else np.zeros(0, np.int64)

    def after(self, kept: Mask, emptied: Mask, fresh: pa.Table | None) -> pa.Table | None:
        """What is remembered from now on: some of what was, some without rows, and new results."""
        tables = [self.known.take(pa.array(self.rows(kept & ~emptied)))]
        if emptied.any():
            tables.append(_without_rows(self.known.take(pa.array(self.first[emptied]))))
        if fresh is not None:
            tables.append(fresh)
        tables = [table for table in tables if len(table)]
        return concat(tables) if tables else None


@dataclass(frozen=True)
class Fresh:
    """Results that are emitted now: some rows, with the revision and the emission of each."""

    results: Results
    rows: Int64
    revision: Int64
    stamp: int

    def remembered(self, shards: int) -> pa.Table:
        """Their rows, to be stored in the shard of their key."""
        chunk, rows = self.results.chunk, self.rows
        pos, ts = chunk.pos[rows], chunk.ts[rows]
        marks = {
            "shard": pa.array(pos % shards, pa.int32()),
            "pane": pa.array(ts, pa.int64()),
            "name": pa.array(pos, pa.int64()),
            "window": pa.array(self.results.window[rows], pa.int64()),
            "nth": pa.array(self.results.nth[rows], pa.int64()),
            "ts": pa.array(ts, pa.int64()),
            "revision": pa.array(self.revision, pa.int64()),
            "stamp": pa.array(np.full(len(rows), self.stamp), pa.int64()),
            "shown": pa.array(np.ones(len(rows)), pa.int8()),
        }
        table = chunk.table.take(pa.array(rows))
        return beside(marks, table, ROW)


_MARKS = ("name", "window", "nth", "ts", "revision", "stamp", "shown")


def _empty() -> pa.Table:
    return pa.table({name: pa.array([], pa.int64()) for name in ("shard", "pane", *_MARKS)})


def _without_rows(known: pa.Table) -> pa.Table:
    """Results that were taken back: their revision is still needed."""
    known = with_column(known, "shown", np.zeros(len(known), np.int8))
    for at, field in enumerate(known.schema):
        if field.name.startswith(ROW):
            known = known.set_column(at, field, pa.nulls(len(known), field.type))
    return known


def windows_of(chunk: Chunk) -> Int64:
    """Which window of its key every result is of."""
    return chunk.ts if chunk.window is None else chunk.window


def _numbers(table: pa.Table, name: str) -> Int64:
    return numbers(table, name).astype(np.int64, copy=False)


def _counted(group: Int64) -> tuple[Int64, Int64, Int64]:
    """Per row its number in its group; per group its first row, and how many it has."""
    order = np.argsort(group, kind="stable")
    count = np.bincount(group).astype(np.int64)
    start = np.cumsum(count) - count
    nth = np.empty(len(group), np.int64)
    nth[order] = np.arange(len(group)) - np.repeat(start, count)
    return nth, order[start] if len(group) else order, count


# -- when results are the same --------------------------------------------------------------------


def equal_rows(left: pa.Table, right: pa.Table) -> Mask:
    """Which rows of two tables say the same; numbers need not agree in their last digits."""
    both, count = concat([left, right]), len(right)
    equal, nearly = np.ones(count, np.bool_), np.ones(count, np.bool_)
    for name in both.column_names:
        column = flat(both.column(name))
        codes, _ = factorize([column])
        same = codes[:count] == codes[count:]
        equal &= same
        nearly &= same | _nearly(column, count)
    doubtful = np.flatnonzero(nearly & ~equal)
    if len(doubtful):
        at = pa.array(doubtful)
        pairs = zip(left.take(at).to_pylist(), right.take(at).to_pylist(), strict=True)
        equal[doubtful] = [_rounded(one) == _rounded(other) for one, other in pairs]
    return equal


def _nearly(column: pa.Array, count: int) -> Mask:
    """Where the two halves of a column may agree in enough digits."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = pc.cast(column, pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        one, other = values[:count], values[count:]
        with np.errstate(invalid="ignore"):
            near: Mask = np.abs(one - other) <= _CLOSE * np.maximum(np.abs(one), np.abs(other))
        return near
    inside = pa.types.is_nested(kind) or holds_mixed(kind)
    return np.full(count, inside, np.bool_)


def _rounded(value: Any) -> Any:
    """A form in which results that agree in enough digits are equal, and NaN is itself."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value == value else "NaN"
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items() if v is not None}
    return value
