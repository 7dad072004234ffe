"""Joining in columns: which rows have the same key, and what many weights of a row come to.

Rows are known by two hashes of their key (`hash`, `check`) and by `same`, a number that only a row
and those that take it back have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Int64, begins, numbers, with_column

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Keys = tuple[UInt64, UInt64]  # two hashes


def keys_of(rows: pa.Table) -> Keys:
    """The two hashes of every row."""
    return numbers(rows, "hash"), numbers(rows, "check")


def ranges(low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """All places in some ranges [low, high), and of which range each is."""
    sizes = high - low
    owner = np.repeat(np.arange(len(low)), sizes)
    before = np.cumsum(sizes) - sizes
    return np.arange(len(owner)) - before[owner] + low[owner], owner


def pairs(left: Keys, right: Keys) -> tuple[Int64, Int64]:
    """Every pair of rows with the same key, in the order of the left ones."""
    order = np.argsort(right[0], kind="stable")
    stored = right[0][order]
    low, high = (np.searchsorted(stored, left[0], side) for side in ("left", "right"))
    place, i = ranges(low, high)
    j = order[place]
    same = left[1][i] == right[1][j]
    return (i, j) if same.all() else (i[same], j[same])


def settled(rows: pa.Table) -> pa.Table:
    """Rows of the same identity as one with the sum of their weights; none where that is zero."""
    if len(rows) < 2:
        return rows
    same, (hashes, checks) = numbers(rows, "same"), keys_of(rows)
    order = np.lexsort((same, checks, hashes))
    starts = np.flatnonzero(begins(same[order], checks[order], hashes[order]))
    weight = np.add.reduceat(numbers(rows, "weight")[order], starts)
    kept = weight != 0
    if kept.all() and len(starts) == len(rows):
        return rows
    rows = rows.take(pa.array(order[starts[kept]]))
    return with_column(rows, "weight", weight[kept])


def repeated(weight: Int64) -> Int64 | None:
    """The places of rows, each as often as its weight says; None if that is once for all."""
    times = np.abs(weight)
    return None if bool((times == 1).all()) else np.repeat(np.arange(len(weight)), times)


def first_in(
    names: Int64, low: Int64, high: Int64, wanted: Int64, before: Callable[[Any, Any], Any]
) -> Int64:
    """Per range [low, high) of ascending names the first that does not come before one wanted."""
    low, high = low.copy(), high.copy()
    while bool((left := low < high).any()):
        middle = (low + high) // 2
        lower = before(names[np.minimum(middle, len(names) - 1)], wanted)
        low = np.where(left & lower, middle + 1, low)
        high = np.where(left & ~lower, middle, high)
    return low


def near(left: Keys, right: Keys, between: tuple[Int64, Int64], at: Int64) -> tuple[Int64, Int64]:
    """Pairs of rows with the same key, the right one at a time in the interval of the left one.

    Only such pairs are looked at, however many rows a key has.
    """
    order = np.lexsort((at, right[0]))
    stored, times = right[0][order], at[order]
    low, high = (np.searchsorted(stored, left[0], side) for side in ("left", "right"))
    low = first_in(times, low, high, between[0], np.less)
    high = first_in(times, low, high, between[1], np.less_equal)
    place, i = ranges(low, high)
    j = order[place]
    same = left[1][i] == right[1][j]
    return (i, j) if same.all() else (i[same], j[same])
