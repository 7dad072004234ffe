"""The slates of updaters: one per key, as bytes, with the time at which it expires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from millstream.operators.batch import Batch, Control
from millstream.operators.stores import Store, Table
from millstream.operators.updates.flushing import Log
from millstream.ops.chunks import flat
from millstream.ops.keys.names import key_text
from millstream.ops.updates.cells import Cell
from millstream.ops.updates.job import NEVER
from millstream.state import warm
from millstream.state.segments import Segment, keep_segment
from millstream.state.tables import KeyedTable, newest, worth_merging
from millstream.state.unflushed import UNFLUSHED, both


class Slates(Table):
    """The slates of one updater: a batch reads and writes the keys it touches."""

    def __init__(self, updater: str, batch: Batch, control: Control) -> None:
        super().__init__(updater, "slates", batch, control)
        self.unflushed = _InMemory(updater, UNFLUSHED, batch, control)
        self.log = Log(updater, batch, control)
        self.lost = self.unflushed.lost()  # shards of which some is gone with its memory
        self._held = {s: one for s, one in self.unflushed.stored.items() if s not in self.lost}
        tables = {"slates": self.stored, UNFLUSHED: self._held}
        self.rows = KeyedTable(self.root, both(tables, "slates"), batch.files, self.by)

    def load(self, cells: Sequence[Cell]) -> None:
        """Give cells what is stored of their slates."""
        if not self.rows.stored or not cells:
            return
        count = len(cells)
        hashes = np.fromiter((cell.hash for cell in cells), np.uint64, count)
        checks = np.fromiter((cell.check for cell in cells), np.uint64, count)
        shards = np.fromiter((cell.shard for cell in cells), np.int64, count)
        place, found = self.rows.find(shards, hashes, checks)
        if found is None:
            return
        data = flat(found.column("slate")).to_pylist()
        ts = flat(found.column("ts")).to_pylist()
        expires = flat(found.column("expires")).to_pylist()
        for cell, at in zip(cells, place.tolist(), strict=True):
            if at >= 0:
                cell.data, cell.ts, cell.expires, cell.stored = data[at], ts[at], expires[at], True

    def put_cells(self, cells: list[Cell]) -> None:
        """Slates that have changed."""
        if not cells:
            return
        texts = [key_text(cell.key) for cell in cells]
        expires = [NEVER if cell.gone else cell.expires for cell in cells]
        self.put_hashed(
            pa.table(
                {
                    "shard": pa.array([cell.shard for cell in cells], pa.int32()),
                    "expires": pa.array(expires, pa.int64()),
                    "hash": pa.array([cell.hash for cell in cells], pa.uint64()),
                    "check": pa.array([cell.check for cell in cells], pa.uint64()),
                    "gone": pa.array([cell.gone for cell in cells], pa.bool_()),
                    "key": pa.array([text for text, _ in texts], pa.string()),
                    "plain": pa.array([plain for _, plain in texts], pa.bool_()),
                    "ts": pa.array([cell.ts for cell in cells], pa.int64()),
                    "batch": pa.array(np.full(len(cells), self.batch.number, np.int64)),
                    "slate": pa.array([cell.data or b"" for cell in cells], pa.binary()),
                }
            )
        )

    def keep(self) -> bool:
        """Leave what was put in memory, with the rest that is there; False if there is no room."""
        fresh = self.fresh
        if fresh is None:
            return not self.lost
        merging = worth_merging(self._held, len(fresh))
        chosen = {one for segments in merging.values() for one in segments}
        rows = newest([*self.unflushed.rows_of(chosen), fresh])
        written = self.unflushed.write(rows)
        if written is None:
            return False
        left = {s: [one for one in found if one not in chosen] for s, found in self._held.items()}
        self.unflushed.report(left, written)
        return True

    def flush(self, gone_by: int) -> None:
        """Write what was put, and what is in memory, into the checkpoint."""
        held = [one for segments in self._held.values() for one in segments]
        if held:
            put = [] if self.fresh is None else [self.fresh]
            self.fresh = newest([*self.unflushed.rows_of(held), *put])
        if self.unflushed.stored:
            self.rows = KeyedTable(self.root, self.stored, self.batch.files, self.by)
        self.store(gone_by)
        self.unflushed.forget()
        self.log.forget()


class _InMemory(Store):
    """Segments of slates that are in memory alone."""

    by = "expires"

    def lost(self) -> frozenset[str]:
        """Shards of which a segment is gone."""
        files = self.batch.files
        return frozenset(
            shard
            for shard, segments in self.stored.items()
            if not all(warm.has(self.root, one.file, files[one.file].size) for one in segments)
        )

    def rows_of(self, segments: Iterable[Segment]) -> list[pa.Table]:
        """The rows of segments, from the oldest to the newest."""
        ordered = sorted(segments, key=lambda one: one.file.rpartition("/")[2])
        return [rows for one in ordered for rows in self._read([one])]

    def write(self, rows: pa.Table | None) -> dict[int, Segment] | None:
        """Keep rows in memory; None if there is no room."""
        if rows is None:
            return {}
        kept = keep_segment(self.root, self.name_of(), rows, self.by)
        if kept is None:
            return None
        self.control.files.append(kept[0])
        return kept[1]

    def report(self, kept: dict[str, list[Segment]], written: dict[int, Segment]) -> None:
        """Tell what the shards consist of from now on."""
        self._report(kept, written)

    def forget(self) -> None:
        """Nothing is in memory alone any more."""
        if self.stored:
            self._report({}, {})
