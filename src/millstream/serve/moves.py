"""What changed in a view between two snapshots: rows that came, went, or took another's place.

A row that goes and one that comes for the same result (an object, a group, a pair of a join) are
told as one change, with both. What a reader makes of all changes is the view, whatever it does with
them: each says all it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.ops.chunks import concat, numbers, with_column
from millstream.ops.expressions import Expression
from millstream.serve.changes import Changed
from millstream.serve.shelves import Int64
from millstream.serve.slates import KeptView, Snapshot
from millstream.serve.views import chosen, shown

_PIECE = 500  # rows that are made Python's at once

Row = dict[str, Any]


class Move(msgspec.Struct, frozen=True):
    """A row that is there from now on (`+`), is no more (`-`), or takes another's place (`u`)."""

    op: str
    row: Row
    before: Row | None = None


def moves(
    old: Snapshot, view: KeptView, found: list[Changed], where: Expression | None = None
) -> Iterator[Move]:
    """What those see who look at the rows that a condition lets through; removals first.

    `found`: rows of the view that were written or are gone since an older snapshot.
    """
    tables = [_weighed(old, view, one) for one in found]
    tables = [rows.filter(pa.array(chosen(view, rows, where))) for rows in tables if len(rows)]
    if not any(map(len, tables)):
        return
    rows = concat(tables)
    weight = numbers(rows, "count")
    gone, new = (_copies(rows, np.flatnonzero(weight * sign > 0), weight) for sign in (-1, 1))
    i, j = _paired(numbers(rows, "hash"), gone, new)
    alone, fresh = np.ones(len(gone), np.bool_), np.ones(len(new), np.bool_)
    alone[i], fresh[j] = False, False
    table = shown(view, [rows])
    for row in _rows(table, gone[alone]):
        yield Move("-", row)
    for before, row in zip(_rows(table, gone[i]), _rows(table, new[j]), strict=True):
        yield Move("u", row, before)
    for row in _rows(table, new[fresh]):
        yield Move("+", row)


def _weighed(old: Snapshot, view: KeptView, changed: Changed) -> pa.Table:
    """Rows with how much more often they are there than they were."""
    rows = pa.Table.from_batches([changed.shelf.rows]).take(pa.array(changed.rows))
    count = np.zeros(len(rows), np.int64) if changed.gone else numbers(rows, "count")
    count = count - _counted(old, view, rows)
    return with_column(rows, "count", count).filter(pa.array(count != 0))


def _counted(snapshot: Snapshot, view: KeptView, rows: pa.Table) -> Int64:
    """How often rows are there in a snapshot."""
    hashes, checks = numbers(rows, "hash"), numbers(rows, "check")
    count = np.zeros(len(rows), np.int64)
    shard = hashes % np.uint64(snapshot.shards)
    stored = snapshot.stored(view)
    for number in np.unique(shard).tolist():
        wanted = np.flatnonzero(shard == number)
        for segment in reversed(stored.get(str(number), [])):
            shelf = snapshot.shelf(segment)
            at = shelf.find_all(hashes[wanted], checks[wanted])
            hit = at >= 0
            there = at[hit]
            count[wanted[hit]] = np.where(shelf.gone[there], 0, shelf.count[there])
            wanted = wanted[~hit]
    return count


def _copies(rows: pa.Table, at: Int64, weight: Int64) -> Int64:
    """Places of rows in the order of what they are known by, each as often as it came or went."""
    hashes, checks = numbers(rows, "hash")[at], numbers(rows, "check")[at]
    at = at[np.lexsort((checks, hashes))]
    return np.repeat(at, np.abs(weight[at]))


def _paired(hashes: Any, gone: Int64, new: Int64) -> tuple[Int64, Int64]:
    """Of two ordered lists of rows the places of those that belong together, one to one."""
    one, other = hashes[gone], hashes[new]
    low = np.searchsorted(one, one)  # where the rows of the same result begin
    nth = np.arange(len(one)) - low
    start, end = (np.searchsorted(other, one, side) for side in ("left", "right"))
    i = np.flatnonzero(start + nth < end)
    return i, (start + nth)[i]


def _rows(table: pa.Table, at: Int64) -> Iterator[Row]:
    for start in range(0, len(at), _PIECE):
        yield from table.take(pa.array(at[start : start + _PIECE])).to_pylist()
