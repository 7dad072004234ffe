"""Sliding over panes without inverse and without repeating work: two-pass blocks.

Rows are (key, pane) pairs in ascending order. The panes of a key that some window can see together
form a *run*; runs are laid side by side in blocks as long as a window. A window then is a suffix of
one block combined with a prefix of the next, so every result costs one `combine`, however many
panes the window has. Blocks are aligned to pane numbers, never to batches, so that panes are added
up in the same order however the input was cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.ops.chunks import Int64
from millstream.ops.times.spans import Span

Array = np.ndarray[Any, Any]
Combine = Callable[[list[Array], list[Array]], list[Array]]
_CELLS = 8_000_000  # at most this many cells of a grid at once, so that memory stays bounded


@dataclass(frozen=True)
class Grid:
    """Some runs as blocks, and the windows that close in them."""

    first_row: int  # rows [first_row, last_row) of the panes are in this grid
    last_row: int
    cell: Int64  # the cell of each row, pane-major: (pane in block) * blocks + block
    blocks: int
    panes: int
    window_key: Int64  # per window: its key ...
    window_end: Int64  # ... its end, in panes ...
    suffix: Int64  # ... the cell where its suffix begins (the cell past the last: none) ...
    prefix: Int64  # ... and the cell where its prefix ends (likewise)

    def __len__(self) -> int:
        return len(self.window_end)

    def _spread(self, values: Array, identity: Any) -> Array:
        cells = np.full(self.panes * self.blocks, identity, values.dtype)
        cells[self.cell] = values[self.first_row : self.last_row]
        return cells.reshape(self.panes, self.blocks)

    def scan(self, ufunc: np.ufunc, values: Array, identity: Any) -> Array:
        """Per window, `ufunc` over the values of its panes (one value per row)."""
        cells = self._spread(values, identity)
        end = np.array([identity], values.dtype)
        before = np.append(ufunc.accumulate(cells, axis=0).ravel(), end)
        if self.panes == 1:
            return before[self.prefix]
        after = np.append(ufunc.accumulate(cells[::-1], axis=0)[::-1].ravel(), end)
        found: Array = ufunc(after[self.suffix], before[self.prefix])
        return found

    def scan_many(self, combine: Combine, columns: list[Array]) -> list[Array]:
        """Like `scan` for a state of several columns, zero being the empty state."""
        cells = [self._spread(column, 0) for column in columns]
        before = _accumulate(combine, cells, range(self.panes))
        after = _accumulate(combine, cells, range(self.panes - 1, -1, -1))
        return combine([a[self.suffix] for a in after], [b[self.prefix] for b in before])


def _accumulate(combine: Combine, cells: list[Array], order: range) -> list[Array]:
    out = [column.copy() for column in cells]
    for there, here in itertools.pairwise(order):
        step = combine([column[there] for column in out], [column[here] for column in cells])
        for column, values in zip(out, step, strict=True):
            column[here] = values
    return [np.append(column.ravel(), column.dtype.type(0)) for column in out]


@dataclass(frozen=True)
class Runs:
    """The runs of a list of (key, pane) rows, and which windows of each close now."""

    span: Span
    key: Int64
    first_row: Int64  # per run
    last_row: Int64
    first: Int64  # its first and last pane
    last: Int64
    low_end: Int64  # the first window end that closes now ...
    windows: Int64  # ... and how many do

    def place(self, panes: Int64) -> Int64:
        """A coordinate per row that ascends over all runs: for searching rows of a window."""
        base = np.concatenate(([0], np.cumsum(self.last - self.first + 1)))[:-1]
        run = np.repeat(np.arange(len(self.key)), self.last_row - self.first_row)
        place: Int64 = base[run] + panes - self.first[run]
        return place

    def slices(self, panes: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Per closing window: key, end, and its slice [low, high) of the rows."""
        place = self.place(panes)
        base = np.concatenate(([0], np.cumsum(self.last - self.first + 1)))[:-1]
        run, end = self._ends(np.arange(len(self.key)))
        low = np.maximum(end - self.span.panes, self.first[run])
        high = np.minimum(end, self.last[run] + 1)
        return (
            self.key[run],
            end,
            np.searchsorted(place, base[run] + low - self.first[run]),
            np.searchsorted(place, base[run] + high - self.first[run]),
        )

    def cells(self) -> int:
        """How many cells all grids together would have."""
        width = self.span.panes
        return int((self.last // width - self.first // width + 1).sum()) * width

    def _ends(self, runs: Int64) -> tuple[Int64, Int64]:
        """Every closing window of these runs, as (run, end)."""
        counts = self.windows[runs]
        run = np.repeat(runs, counts)
        nth = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        return run, self.low_end[run] + nth * self.span.step

    def grids(self, panes: Int64) -> Iterator[Grid]:
        """Grids of bounded size that together hold every run with a closing window."""
        width = self.span.panes
        blocks = self.last // width - self.first // width + 1
        start = 0
        total = np.cumsum(blocks)
        while start < len(self.key):
            done = int(total[start - 1]) if start else 0
            stop = int(np.searchsorted(total, done + max(1, _CELLS // width), side="right"))
            stop = max(stop, start + 1)
            if int(self.windows[start:stop].sum()):
                yield self._grid(panes, start, stop, blocks)
            start = stop

    def _grid(self, panes: Int64, start: int, stop: int, all_blocks: Int64) -> Grid:
        width = self.span.panes
        blocks = all_blocks[start:stop]
        offset = np.cumsum(blocks) - blocks
        count = int(blocks.sum())
        row_from, row_to = int(self.first_row[start]), int(self.last_row[stop - 1])
        rows = np.repeat(
            np.arange(stop - start), self.last_row[start:stop] - self.first_row[start:stop]
        )
        pane = panes[row_from:row_to]
        first_block = self.first[start:stop] // width
        cell = (pane % width) * count + offset[rows] + pane // width - first_block[rows]

        run, end = self._ends(np.arange(start, stop))
        local = run - start
        nothing = width * count
        low, high = end - width, end - 1  # the first and last pane of the window
        block_low = low // width - first_block[local]
        block_high = high // width - first_block[local]
        # A window that begins a block is that block's whole prefix; its suffix is left out.
        has_suffix = (low % width != 0) & (block_low >= 0)
        has_prefix = (block_high < blocks[local]) & (block_high >= 0)
        suffix = np.where(has_suffix, (low % width) * count + offset[local] + block_low, nothing)
        prefix = np.where(has_prefix, (high % width) * count + offset[local] + block_high, nothing)
        return Grid(row_from, row_to, cell, count, width, self.key[run], end, suffix, prefix)


def find_runs(
    span: Span, keys: Int64, panes: Int64, closed: int | Int64, closing: int | Int64
) -> Runs:
    """Runs over ascending (key, pane) rows, with the windows that end in (closed, closing].

    The bounds are the same for all keys, or one per key.
    """
    fresh = np.ones(len(keys), np.bool_)
    fresh[1:] = (np.diff(keys) != 0) | (np.diff(panes) > span.panes)
    first_row = np.flatnonzero(fresh)
    last_row = np.append(first_row[1:], len(keys))
    first, last = panes[first_row], panes[last_row - 1]
    run_key = keys[first_row]
    if isinstance(closed, np.ndarray):
        closed = closed[run_key]
    if isinstance(closing, np.ndarray):
        closing = closing[run_key]
    low = np.maximum(first + 1, closed + 1)
    low_end = span.align_down(low + span.step - 1)
    high_end = span.align_down(np.minimum(last + span.panes, closing))
    windows = np.maximum((high_end - low_end) // span.step + 1, 0)
    return Runs(span, run_key, first_row, last_row, first, last, low_end, windows)
