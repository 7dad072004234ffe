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
from millstream.ops.closing import close
from millstream.ops.jobs import Family
from millstream.ops.preparing import live, merge_panes
from millstream.run.batch import Batch, Control
from millstream.state.segments import Segment, read_segments, safe_name, write_segment

TABLES = ("panes", "values")
_SEGMENTS = 6  # per shard, before small ones are merged


def run_keyed(
    family: Family,
    rows: dict[str, list[bytes]],
    watermarks: dict[str, int],
    batch: Batch,
    control: Control,
    numbers: dict[str, int],
) -> dict[str, Chunk]:
    """Process one family's share of a batch; segments and accounts go into `control`."""
    closing = {
        job.name: max(batch.closed[job.name], job.span.closes_at(watermarks[job.name]))
        for job in family.jobs
    }
    shares = {
        table: _Share(family, table, rows.get(table, []), batch, control.part)
        for table in TABLES
        if (family.combines if table == "panes" else family.holds)
    }
    due = any(share.due(closing) for share in shares.values())
    loaded = {table: share.all_rows() if due else None for table, share in shares.items()}
    panes, values = loaded.get("panes"), loaded.get("values")
    if panes is not None and len(panes):
        panes = merge_panes(family, panes)
    results = {}
    for job in family.jobs:
        name = job.name
        results[name], last, dead = close(
            job,
            panes if job.combines else None,
            values if job.holds else None,
            batch.closed[name],
            closing[name],
            numbers[name],
        )
        control.last_end[name] = last
        control.dead.extend(dead)
        if dead:
            control.ledger.setdefault(name, Counter())["failed"] += len(dead)
    for share in shares.values():
        share.store(closing, control)
    return results


class _Share:
    """The rows of one table of an operator that belong to the shards of this task."""

    def __init__(
        self, family: Family, table: str, blocks: list[bytes], batch: Batch, part: int
    ) -> None:
        self.family = family
        self.table = table
        self.batch = batch
        self.part = part
        self.root = Path(batch.checkpoint) / "state"
        stored = batch.segments.get(family.name, {}).get(table, {})
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
        return merge_panes(self.family, table) if self.table == "panes" else table

    def due(self, closing: dict[str, int]) -> bool:
        """Whether windows leave, and any of them may have rows here."""
        ends = [
            closing[job.name]
            for job in self.family.jobs
            if closing[job.name] > self.batch.closed[job.name]
        ]
        first = [s.low for segments in self.stored.values() for s in segments]
        if self.new is not None:
            first.append(int(np.asarray(self.new.column("pane")).min()))
        return bool(ends and first) and min(first) < max(ends)

    def all_rows(self) -> pa.Table | None:
        """New and stored rows that a window not yet closed can need."""
        closed = self.batch.closed
        wanted = [
            s
            for segments in self.stored.values()
            for s in segments
            if _alive(self.family, s, closed)
        ]
        tables = read_segments(self.root, wanted, self.batch.files)
        if self.new is not None:
            tables.append(self.new)
        if not tables:
            return None
        return live(self.family, concat(tables), closed)

    def store(self, closing: dict[str, int], control: Control) -> None:
        """Write what is new and still needed; drop segments of closed windows; merge small ones."""
        kept = {
            shard: [s for s in segments if _alive(self.family, s, closing)]
            for shard, segments in self.stored.items()
        }
        fresh = live(self.family, self.new, closing) if self.new is not None else None
        merging = self._to_merge(kept, 0 if fresh is None else len(fresh))
        tables = read_segments(self.root, merging, self.batch.files)
        if fresh is not None and len(fresh):
            tables.append(fresh)
        tables = [live(self.family, table, closing) for table in tables]
        written: dict[int, Segment] = {}
        combined = self._merged(tables)
        if combined is not None:
            name = (
                f"{safe_name(self.family.name)}/{self.table}/"
                f"{self.batch.number:08d}-{self.part:04d}-{control.attempt}.arrow"
            )
            file, written = write_segment(self.root, name, combined)
            control.files.append(file)
        gone = set(merging)
        result = {shard: [s for s in segments if s not in gone] for shard, segments in kept.items()}
        for shard, segment in written.items():
            result.setdefault(str(shard), []).append(segment)
        control.segments.setdefault(self.family.name, {})[self.table] = {
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


def _alive(family: Family, segment: Segment, closed: dict[str, int]) -> bool:
    """Whether a window that has not closed can need rows of a segment."""
    high = np.array([segment.high])
    return any(bool(job.span.last_end(high)[0] > closed[job.name]) for job in family.jobs)
