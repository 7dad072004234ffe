"""What a task remembers of updaters: slates by key, and events and timers by time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.batch import Batch, Control
from millstream.operators.stores import Store, between, small_ones
from millstream.ops.chunks import concat, flat
from millstream.ops.updates import NEVER, Cell, key_text
from millstream.state.segments import Segment
from millstream.state.tables import KeyedTable

_LARGE = 50_000  # rows of a merged shard that are worth a file of their own


class Queue(Store):
    """Rows that wait for a time: `pane` is the time, rows before it are taken out in order."""

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
        found = []
        for segments in self.stored.values():
            for one in segments:
                if one.low < until and one.high >= since:
                    (rows,) = self._read([one])
                    found.append(between(rows, ((since, until),), ordered=True))
        if self.new is not None:
            found.append(self.new.filter(pc.less(self.new.column("pane"), until)))
        found = [rows for rows in found if len(rows)]
        return concat(found) if found else None

    def forget(self) -> None:
        """Keep nothing of what was stored or new."""
        self.kept = {shard: [] for shard in self.stored}
        self.new = None

    def store(self, until: int, more: pa.Table | None = None) -> int:
        """Keep what is not due, and rows of the same kind made meanwhile; gives the next time."""
        fresh = [] if self.new is None else [self.new]
        fresh = [rows.filter(pc.greater_equal(rows.column("pane"), until)) for rows in fresh]
        fresh.extend([] if more is None else [more])
        fresh = [rows for rows in fresh if len(rows)]
        kept = {
            shard: [one for one in segments if one.high >= until]
            for shard, segments in self.kept.items()
        }
        merging = small_ones(kept, sum(map(len, fresh)))
        for rows in self._read(merging):
            fresh.append(rows.filter(pc.greater_equal(rows.column("pane"), until)))
        gone = set(merging)
        left = {shard: [s for s in segments if s not in gone] for shard, segments in kept.items()}
        table = concat(fresh) if fresh else None
        self._report(left, self._write(table))
        return min(
            self._first(left, until),
            NEVER if table is None or not len(table) else int(pc.min(table.column("pane")).as_py()),
        )

    def _first(self, kept: dict[str, list[Segment]], until: int) -> int:
        """The first time that is still waiting among stored rows."""
        first = NEVER
        for one in (one for segments in kept.values() for one in segments):
            if one.low >= until:
                first = min(first, one.low)
            elif until < first:
                (rows,) = self._read([one])
                panes = np.asarray(flat(rows.column("pane")))
                first = min(first, int(panes[np.searchsorted(panes, until)]))
        return first


class Slates(Store):
    """The slates of one updater: a batch reads and writes the keys it touches."""

    def __init__(self, updater: str, batch: Batch, control: Control) -> None:
        super().__init__(updater, "slates", batch, control)
        self.rows = KeyedTable(self.root, self.stored, batch.files)

    def load(self, cells: Sequence[Cell], shards: Iterable[int]) -> None:
        """Give cells what is stored of their slates."""
        if not self.stored or not cells:
            return
        count = len(cells)
        hashes = np.fromiter((cell.hash for cell in cells), np.uint64, count)
        checks = np.fromiter((cell.check for cell in cells), np.uint64, count)
        place, found = self.rows.find(np.fromiter(shards, np.int64, count), hashes, checks)
        if found is None:
            return
        data = flat(found.column("slate")).to_pylist()
        ts = flat(found.column("ts")).to_pylist()
        expires = flat(found.column("pane")).to_pylist()
        for cell, at in zip(cells, place.tolist(), strict=True):
            if at >= 0:
                cell.load(data[at], ts[at], expires[at])

    def store(self, cells: list[tuple[Cell, int]], gone_by: int) -> None:
        """Write changed slates (with their shards); drop what has expired where it is cheap."""
        fresh = self._fresh(cells)
        kept = {
            shard: _without_expired(segments, gone_by) for shard, segments in self.stored.items()
        }
        if fresh is None:
            self._report(kept, {})
            return
        merging = self.rows.to_merge(len(fresh))
        owner = np.asarray(flat(fresh.column("shard")))
        alone = ~np.isin(owner, [int(shard) for shard in merging])
        pieces = [fresh if alone.all() else fresh.filter(pa.array(alone))]
        written: dict[int, Segment] = {}
        for shard, segments in merging.items():
            mine = fresh.filter(pa.array(owner == int(shard)))
            merged = self.rows.merged(shard, segments, mine, self.batch.number)
            chosen = set(segments)
            kept[shard] = [one for one in kept[shard] if one not in chosen]
            if merged is None:
                continue
            if not kept[shard]:  # else an older row could come to light again
                alive = pc.greater(merged.column("pane"), gone_by)
                merged = merged if pc.all(alive).as_py() else merged.filter(alive)
            if len(merged) > _LARGE:  # a file of its own, so that one at a time is in memory
                written |= self._write(merged, f"-{shard}")
            else:
                pieces.append(merged)
            del merged
        pieces = [piece for piece in pieces if len(piece)]
        written |= self._write(concat(pieces) if pieces else None)
        self._report(kept, written)

    def _fresh(self, cells: list[tuple[Cell, int]]) -> pa.Table | None:
        if not cells:
            return None
        texts = [key_text(cell.key) for cell, _ in cells]
        hashes = np.fromiter((cell.hash for cell, _ in cells), np.uint64, len(cells))
        rows = pa.table(
            {
                "shard": pa.array([shard for _, shard in cells], pa.int32()),
                "pane": pa.array(
                    [NEVER if cell.gone else cell.expires for cell, _ in cells],
                    pa.int64(),
                ),
                "hash": pa.array(hashes),
                "check": pa.array([cell.check for cell, _ in cells], pa.uint64()),
                "gone": pa.array([cell.gone for cell, _ in cells], pa.bool_()),
                "key": pa.array([text for text, _ in texts], pa.string()),
                "plain": pa.array([plain for _, plain in texts], pa.bool_()),
                "ts": pa.array([cell.ts for cell, _ in cells], pa.int64()),
                "batch": pa.array(np.full(len(cells), self.batch.number, np.int64)),
                "slate": pa.array([cell.data or b"" for cell, _ in cells], pa.binary()),
            }
        )
        return rows.take(pa.array(np.argsort(hashes, kind="stable")))


def _without_expired(segments: list[Segment], gone_by: int) -> list[Segment]:
    """The segments of a shard without the oldest ones in which everything has expired.

    A newer one stays, since it may hide an older row that lives longer.
    """
    first = next((i for i, one in enumerate(segments) if one.high > gone_by), len(segments))
    return segments[first:]
