"""Beside the readers: rows of both sides of a join on their way to the shard of their key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.joins.layout import Layout
from millstream.operators.protocol import Host
from millstream.operators.waiting import Waiting, addressed, without_late
from millstream.ops.chunks import ROW, Chunk, Int64, Mask, concat, marked
from millstream.ops.keys.hashing import blended, canonical, content_hash
from millstream.ops.keys.names import both_hashes
from millstream.ops.updates.cells import Publication
from millstream.ops.updates.job import NEVER

SIDES = ("left", "right")
_WAITING = ("waiting", *(f"{side} waiting" for side in SIDES))
FILED = {  # how rows lie in the tables that joins have
    **{side: Filed("trace", "expires", "match") for side in SIDES},
    **{table: Filed("spans", "time", "match") for table in _WAITING},
    "latest": Filed("newest", "expires", "match"),  # of the right side
    "keys": Filed("newest", "expires", "hash"),  # how many rows each side has
}


@dataclass(frozen=True)
class Side:
    """One side of a join: what is sent of its rows."""

    changes: bool = False  # rows may be taken back
    holds: bool = True  # their columns are needed; else only that they are there
    unmatched: bool = False  # rows without a key are given, with null on the other side
    timed: bool = False  # rows of a key are found by their time
    placed: bool = False  # which of two rows of the same time is the later one counts


@dataclass(frozen=True)
class Joining(Waiting):
    """What the operators of all joins have in common."""

    name: str
    number: int
    layout: Layout
    sides: tuple[Side, Side]

    @property
    def waits(self) -> bool:
        """Whether what the watermark has passed is too late."""
        return True

    def inlet(self, host: Host) -> Arriving:
        """Rows of both sides by the hash of their key."""
        return Arriving(self.layout, self.sides, host, self.waits)

    def stored(self) -> Tables:
        """Rows of both sides."""
        return {self.name: FILED}


@dataclass
class Arriving:
    """Rows of both sides in one task."""

    layout: Layout
    sides: tuple[Side, Side]
    host: Host
    waits: bool  # what the watermark has passed is too late
    tables: tuple[list[pa.Table], list[pa.Table]] = field(default_factory=lambda: ([], []))

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Set late records aside; the others go to their side, or both if one stream is both."""
        late = chunk.late() if chunk.weight is None else np.zeros(len(chunk), np.bool_)
        if self.waits:
            late |= chunk.ts < self.host.batch.orders[step.name]
        chunk = without_late(self.host, step, chunk, late)
        for number, one in enumerate(step.inputs):
            if one is before and len(chunk):
                self._add(number, chunk)

    def _add(self, number: int, chunk: Chunk) -> None:
        side = self.sides[number]
        keys = [
            canonical(self.layout.comparable(at, chunk.column(pair[number])))
            for at, pair in enumerate(self.layout.keys)
        ]
        null = _any_null(keys, len(chunk))
        if null.any() and not side.unmatched:  # it equals nothing, and so matches nothing
            some = np.flatnonzero(~null)
            chunk, keys = chunk.take(some), [key.take(pa.array(some)) for key in keys]
            null = null[some]
        if not len(chunk):
            return
        zeros = np.zeros(len(chunk), np.uint64)
        hashes, checks = both_hashes(keys) if keys else (zeros, zeros)
        src = np.full(len(chunk), chunk.src, np.int64)
        who = blended(src, chunk.pos, chunk.mark("window"))
        revision = chunk.mark("revision")
        spread = np.where(null, who.astype(np.uint64), hashes)
        marks = {
            **addressed(hashes, checks, self.host.batch.shards, spread),
            "expires": pa.array(np.full(len(chunk), NEVER)),
            "same": pa.array(_same(side, chunk, who, revision)),
            "weight": pa.array(chunk.weights()),
            "ts": pa.array(chunk.ts),
            "who": pa.array(who),
            "revision": pa.array(revision),
            "null": pa.array(null),
        }
        if side.placed:
            marks |= {"src": pa.array(src), "pos": pa.array(chunk.pos)}
        rows = {}
        if side.holds:
            rows = {f"{ROW}{name}": chunk.column(name) for name in chunk.table.column_names}
        self.tables[number].append(marked(marks, chunk.table, rows))

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Published events come as records."""
        return False

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """All of them, side by side."""
        for name, tables in zip(SIDES, self.tables, strict=True):
            if tables:
                yield name, concat(tables)


def _same(side: Side, chunk: Chunk, who: Int64, revision: Int64) -> Int64:
    """What only a row and those that take it back have in common: its place and its content.

    Where nothing is taken back it is the order in which rows of a key are stored.
    """
    if not side.changes:
        return chunk.ts if side.timed else who
    return blended(who, revision, content_hash(chunk.table))


def _any_null(columns: list[pa.Array], count: int) -> Mask:
    found = np.zeros(count, np.bool_)
    for column in columns:
        if column.null_count:
            found |= np.asarray(pc.is_null(column))
    return found
