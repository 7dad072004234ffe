"""What windows hand to a function, made of columns only when their turn comes.

Records as Python's objects take many times the memory of their columns. Windows are taken in
blocks of some thousand records; a block is made with the first of its windows and forgotten with
the last. Windows that have records in common are in one block, so none is made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Int64

_BLOCK = 4096  # records made at a time, or as many as windows have in common


class InTurn(Sequence[list[Any]]):
    """The records of every window, each of which is asked for once."""

    def __init__(
        self,
        rows: pa.Table,
        low: Int64,
        high: Int64,
        make: Callable[[pa.Table], list[Any]],
        order: Int64 | None = None,
    ) -> None:
        self._rows, self._make, self._order = rows, make, order
        self._low, self._high = low.tolist(), high.tolist()
        self._block, starts = _blocks(low, high)
        self._begin = np.minimum.reduceat(low, starts).tolist() if starts else []
        self._end = np.maximum.reduceat(high, starts).tolist() if starts else []
        self._left = np.diff([*starts, len(low)]).tolist()
        self._made: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._low)

    @overload
    def __getitem__(self, at: int) -> list[Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[list[Any]]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        low, high, block = self._low[at], self._high[at], self._block[at]
        begin = self._begin[block]
        made = self._made.get(block)
        if made is None:
            made = self._make(self._between(begin, self._end[block]))
            self._made[block] = made
        self._left[block] -= 1
        if self._left[block] <= 0:
            del self._made[block]
        return made[low - begin : high - begin]

    def _between(self, begin: int, end: int) -> pa.Table:
        if self._order is None:
            return self._rows.slice(begin, end - begin)
        return self._rows.take(pa.array(self._order[begin:end]))


def _blocks(low: Int64, high: Int64) -> tuple[list[int], list[int]]:
    """The block of every window, and the first window of every block."""
    if not len(low):
        return [], []
    if np.any(low[1:] < low[:-1]):  # not in the order of their records: all together
        return [0] * len(low), [0]
    reached = np.maximum.accumulate(high)
    apart = np.concatenate(([True], low[1:] >= reached[:-1]))  # from those before
    first = np.maximum.accumulate(np.where(apart, np.arange(len(low)), 0))  # it shares records with
    number = (low[first] - low[0]) // _BLOCK
    begins = np.concatenate(([True], number[1:] != number[:-1]))
    return (np.cumsum(begins) - 1).tolist(), np.flatnonzero(begins).tolist()
