"""What windows remember: bags of partial rows or values, by pane."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from millstream.operators.stores import Store, between, small_ones
from millstream.operators.windows.work import Work
from millstream.ops.chunks import concat, decode_block, numbers, with_column
from millstream.ops.times.fidelity import Ranges, ranges_of
from millstream.ops.windows.changes import settle, without_pairs
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.preparing import live, merge_panes
from millstream.state.segments import Segment

BAGS = ("panes", "values")
SETTLED = -1  # the pane of rows whose answers were given when the whole input ended last
_NEVER = 2**61


class PaneBag(Store):
    """Rows that are only added, and forgotten when no window needs them."""

    def __init__(self, work: Work, table: str, blocks: list[bytes]) -> None:
        family = work.family
        super().__init__(family.name, table, work.batch, work.control)
        self.family, self.closed = family, work.order.closed
        self.ordered = table == "panes"
        self.jobs = family.users(table)
        self.combines = table == "panes" and not work.order.single
        self.new = self._together([decode_block(block) for block in blocks])

    def _together(self, tables: list[pa.Table | None]) -> pa.Table | None:
        """Rows as they are kept: those of the same pane as one, or each value by itself."""
        found = [table for table in tables if table is not None and len(table)]
        if not found:
            return None
        table = concat(found)
        return merge_panes(self.family, table) if self.combines else without_pairs(table)

    def lowest(self) -> int:
        """The first pane of any row here."""
        return min([*(one.low for one in self.segments()), self.first_new()])

    def first_new(self) -> int:
        """The first pane of any new row."""
        if self.new is None:
            return _NEVER
        return int(numbers(self.new, "pane").min())

    def brought(self) -> Ranges:
        """The panes of new rows."""
        if self.new is None:
            return []
        return ranges_of(numbers(self.new, "pane"))

    def due(self, closing: dict[str, int], jobs: Iterable[WindowJob] | None = None) -> bool:
        """Whether windows (of some jobs) leave, and any of them may have rows here."""
        ends = [
            closing[job.name]
            for job in (self.jobs if jobs is None else jobs)
            if closing[job.name] > self.closed[job.name] and job in self.jobs
        ]
        return bool(ends) and self.lowest() < max(ends)

    def every_row(self) -> pa.Table | None:
        """New and stored rows, all of them."""
        rows = self._together([*self._read(self.segments()), self.new])
        return None if rows is None else settle(rows)

    def all_rows(self) -> pa.Table | None:
        """New and stored rows that a window not yet closed can need, not merged."""
        closed = self.closed
        tables = self._read(one for one in self.segments() if self._alive(one, closed))
        if self.new is not None:
            tables.append(self.new)
        if not tables:
            return None
        return settle(live(self.jobs, concat(tables), closed))

    def size(self) -> int:
        """Stored rows that a window not yet closed can need."""
        return sum(one.rows for one in self.segments() if self._alive(one, self.closed))

    def rows_in(self, *ranges: tuple[int, int]) -> pa.Table | None:
        """New and stored panes that lie in one of some ranges [low, high), merged."""
        ranges = _apart(ranges)
        tables = [] if self.new is None else [between(self.new, self.by, ranges, ordered=False)]
        tables = [table for table in (*tables, *self._between(ranges)) if len(table)]
        return merge_panes(self.family, concat(tables)) if tables else None

    def append(self) -> None:
        """Keep all there is, and what is new."""
        merging = small_ones(self.stored, _rows(self.new))
        self._rewrite(self.stored, merging, [*self._read(merging), self.new])

    def replace(self, rows: pa.Table | None) -> None:
        """Keep these rows and nothing else."""
        self._report({}, self._write(rows))

    def store(self, closing: dict[str, int]) -> None:
        """Keep what windows still need: new rows are written, old segments dropped or merged."""
        kept = {
            shard: [s for s in segments if self._alive(s, closing)]
            for shard, segments in self.stored.items()
        }
        fresh = None if self.new is None else live(self.jobs, self.new, closing)
        merging = small_ones(kept, _rows(fresh))
        tables = [live(self.jobs, table, closing) for table in self._read(merging)]
        self._rewrite(kept, merging, [*tables, fresh])

    # -- rows over the whole input, which may go on after its end ---------------------------------

    def is_settled(self) -> bool:
        """Whether the answers of all rows were given before."""
        return self.new is None and all(one.high == SETTLED for one in self.segments())

    def parted(self) -> tuple[pa.Table | None, pa.Table | None]:
        """Rows whose answers were given before, and those that came since."""
        tables = self._read(self.segments())
        old = [_of_age(table, old=True) for table in tables]
        new = [_of_age(table, old=False) for table in tables]
        return self._together(old), self._together([*new, self.new])

    def add(self) -> None:
        """Keep all there is, and what is new beside what was given before."""
        open = self._stored_in(lambda one: one.low != SETTLED)
        merging = small_ones(open, _rows(self.new))
        self._rewrite(self.stored, merging, [*self._read(merging), self.new])

    def settle(self, fresh: pa.Table | None) -> None:
        """Keep all there is: the answers of rows that came since are given now."""
        old = self._stored_in(lambda one: one.high == SETTLED)
        merging = small_ones(old, _rows(fresh))
        # Where shards were dealt anew, rows of both kinds lie in one segment.
        mixed = self._read(one for one in self.segments() if one.low == SETTLED < one.high)
        settled = [_of_age(table, old=True) for table in mixed]
        settled += [] if fresh is None else [in_pane(fresh, SETTLED)]
        self._rewrite(old, merging, [*self._read(merging), *settled])

    def _stored_in(self, wanted: Callable[[Segment], bool]) -> dict[str, list[Segment]]:
        return {shard: list(filter(wanted, found)) for shard, found in self.stored.items()}

    def _rewrite(
        self, kept: dict[str, list[Segment]], merging: list[Segment], tables: list[pa.Table | None]
    ) -> None:
        """Keep segments without those that are merged, and rows in a segment of their own."""
        gone = set(merging)
        left = {shard: [s for s in segments if s not in gone] for shard, segments in kept.items()}
        self._report(left, self._write(self._together(tables)))

    def _alive(self, segment: Segment, closed: dict[str, int]) -> bool:
        """Whether a window that has not closed can need rows of a segment."""
        high = np.array([segment.high])
        return any(bool(job.needed_until(high)[0] > closed[job.name]) for job in self.jobs)


def _rows(table: pa.Table | None) -> int:
    return 0 if table is None else len(table)


def _of_age(rows: pa.Table, *, old: bool) -> pa.Table:
    """Those whose answers were given before, or the others."""
    settled = numbers(rows, "pane") == SETTLED
    return rows.filter(pa.array(settled == old))


def in_pane(rows: pa.Table, pane: int) -> pa.Table:
    """The same rows in one pane."""
    return with_column(rows, "pane", np.full(len(rows), pane, np.int64))


def _apart(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same ranges with none overlapping: a batch may slide by more than a window."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)
