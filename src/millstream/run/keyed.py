"""A keyed operator in one task: new rows meet stored ones, windows leave, changes are stored.

What is stored is a bag of partial rows; rows of the same key and pane are merged when they are
read. So a batch writes only what it brought, and old rows are touched only when windows that need
them leave, or when segments are merged by size.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Chunk, concat, decode_block
from millstream.ops.windowed import WindowJob, close, live, merge_panes
from millstream.run.batch import Batch, Control
from millstream.state.segments import Segment, read_segments, safe_name, write_segment

TABLES = ("panes", "values")
_SEGMENTS = 6  # per shard, before small ones are merged


def run_keyed(
    job: WindowJob,
    rows: dict[tuple[str, str], list[bytes]],
    watermark: int,
    batch: Batch,
    control: Control,
    src: int,
) -> Chunk:
    """Process one operator's share of a batch; segments and accounts go into `control`."""
    closed = batch.closed[job.name]
    closing = max(closed, job.span.closes_at(watermark))
    shares = {
        table: _Share(job, table, rows.get((job.name, table), []), batch, control.part)
        for table in TABLES
        if (job.combines if table == "panes" else job.holds)
    }
    due = closing > closed and any(share.due(closing) for share in shares.values())
    loaded = {table: share.all_rows() if due else None for table, share in shares.items()}
    panes, values = loaded.get("panes"), loaded.get("values")
    if panes is not None and len(panes):
        panes = merge_panes(job, panes)
    results, last, dead = close(job, panes, values, closed, closing, src)
    control.dead.extend(dead)
    if dead:
        control.ledger.setdefault(job.name, Counter())["failed"] += len(dead)
    control.last_end[job.name] = last
    for share in shares.values():
        share.store(closing, control)
    return results


class _Share:
    """The rows of one table of an operator that belong to the shards of this task."""

    def __init__(
        self, job: WindowJob, table: str, blocks: list[bytes], batch: Batch, part: int
    ) -> None:
        self.job = job
        self.table = table
        self.batch = batch
        self.part = part
        self.root = Path(batch.checkpoint) / "state"
        stored = batch.segments.get(job.name, {}).get(table, {})
        self.stored = {
            shard: segments
            for shard, segments in stored.items()
            if int(shard) % batch.parallelism == part and segments
        }
        self.new = self._merged([decode_block(block) for block in blocks])

    def _merged(self, tables: list[pa.Table]) -> pa.Table | None:
        tables = [table for table in tables if len(table)]
        if not tables:
            return None
        table = concat(tables)
        return merge_panes(self.job, table) if self.table == "panes" else table

    def due(self, closing: int) -> bool:
        """Whether any window with rows here ends at or before `closing`."""
        first = [s.low for segments in self.stored.values() for s in segments]
        if self.new is not None:
            first.append(int(np.asarray(self.new.column("pane")).min()))
        return any(pane < closing for pane in first)

    def all_rows(self) -> pa.Table | None:
        """New and stored rows that a window not yet closed can need."""
        closed = self.batch.closed[self.job.name]
        wanted = [
            s for segments in self.stored.values() for s in segments if _alive(self.job, s, closed)
        ]
        tables = read_segments(self.root, wanted, self.batch.files)
        if self.new is not None:
            tables.append(self.new)
        if not tables:
            return None
        return live(self.job.span, concat(tables), closed)

    def store(self, closing: int, control: Control) -> None:
        """Write what is new and still needed; drop segments of closed windows; merge small ones."""
        span = self.job.span
        kept = {
            shard: [s for s in segments if _alive(self.job, s, closing)]
            for shard, segments in self.stored.items()
        }
        fresh = live(span, self.new, closing) if self.new is not None else None
        merging = self._to_merge(kept, 0 if fresh is None else len(fresh))
        tables = read_segments(self.root, merging, self.batch.files)
        if fresh is not None and len(fresh):
            tables.append(fresh)
        tables = [live(span, table, closing) for table in tables]
        written: dict[int, Segment] = {}
        combined = self._merged(tables)
        if combined is not None:
            name = (
                f"{safe_name(self.job.name)}/{self.table}/"
                f"{self.batch.number:08d}-{self.part:04d}-{control.attempt}.arrow"
            )
            file, written = write_segment(self.root, name, combined)
            control.files.append(file)
        gone = set(merging)
        result = {shard: [s for s in segments if s not in gone] for shard, segments in kept.items()}
        for shard, segment in written.items():
            result.setdefault(str(shard), []).append(segment)
        control.segments.setdefault(self.job.name, {})[self.table] = {
            **{shard: [] for shard in self.stored},
            **result,
        }

    def _to_merge(self, kept: dict[str, list[Segment]], fresh: int) -> list[Segment]:
        """Newest segments, while they are not much larger than what is written anyway."""
        chosen: list[Segment] = []
        share = max(1, fresh // max(1, len(kept) or 1))
        for segments in kept.values():
            if len(segments) < _SEGMENTS:
                continue
            size = share
            for segment in reversed(segments):
                if segment.rows > 2 * size and len(segments) < 4 * _SEGMENTS:
                    break
                chosen.append(segment)
                size += segment.rows
        return chosen


def _alive(job: WindowJob, segment: Segment, closed: int) -> bool:
    """Whether a window that has not closed can need rows of a segment."""
    return bool(job.span.last_end(np.array([segment.high]))[0] > closed)
