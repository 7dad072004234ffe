"""`Stream.distinct`: every row once, as long as the input has it.

Rows are counted by their content. Where the count leaves zero the row is given, where it comes back
to zero the row is taken back. Rows are looked at in the order of time, once the watermark has
passed them, so that which of several equal rows gives the time does not depend on batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.protocol import Done, Host, KeyedStep, Known, Share
from millstream.operators.stores import Queue, Table
from millstream.ops.chunks import Chunk, Int64, concat, decode_block, flat
from millstream.ops.keys import key_arrays
from millstream.ops.progress import END
from millstream.ops.spans import NOTHING_CLOSED
from millstream.ops.updates import Publication, both_hashes
from millstream.state.manifests import Manifest

_ROW = "row."  # before the names of a row's own columns


@dataclass(frozen=True, eq=False, kw_only=True)
class Distinct(KeyedStep):
    """Rows that differ in some columns, or in any."""

    keys: tuple[str, ...] = ()

    def operator(self, number: int) -> Counting:
        """Counts rows by their content."""
        return Counting(self.name, self.keys, number)

    def columns(self, have: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Those that were named, or all."""
        return self.keys or have

    def uses(self, wanted: set[str] | None) -> set[str] | None:
        """Which rows are equal depends on all of them."""
        return set(self.keys) or None

    def words(self) -> str:
        """For the plan."""
        return f"distinct {', '.join(self.keys) or 'rows'}"

    def answers(self, rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
        """The first of all equal rows."""
        first: dict[str, tuple[int, dict[str, Any]]] = {}
        for at, row in enumerate(rows):
            mine = {name: row.get(name) for name in self.keys or row}
            first.setdefault(repr(sorted(mine.items())), (at, mine))
        return list(first.values())

    def remembered(self) -> dict[str, Any]:
        """The columns that are compared."""
        return {"keys": list(self.keys)}


@dataclass(frozen=True)
class Counting:
    """The operator: how often the input has each row."""

    name: str
    keys: tuple[str, ...]
    number: int
    counted: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        """One step."""
        return (self.name,)

    def inlet(self, host: Host) -> Rows:
        """Rows by the hash of their content."""
        return Rows(self, host)

    def run(self, share: Share) -> None:
        """Count the rows that the watermark has passed; give and take back what changes."""
        host, batch, control = share.host, share.host.batch, share.host.control
        closed: int = batch.orders[self.name]
        watermark = max(closed, share.clocks.watermarks[self.name])
        blocks = [decode_block(block) for block in share.rows.get("rows", [])]
        new = concat(blocks) if blocks else None
        waiting = Queue(self.name, "waiting", new, batch, control)
        counts = Table(self.name, "counts", batch, control)
        due = waiting.due(closed, watermark)
        if due is not None:
            chunk = _count(due, counts, self.number)
            host.ledger(self.name)["results"] += len(chunk)
            control.results += len(chunk)
            host.push(self.name, chunk)
        next_time = waiting.store(watermark)
        counts.store()
        latest = max(share.clocks.latest, share.clocks.furthest[self.name]) + 1
        reached = min(watermark, max(closed, latest)) if watermark >= END else watermark
        control.reports[self.name] = _Report(reached, next_time)

    def order(self, known: Known) -> int:
        """How far rows have been counted."""
        reached = known.reached(self.name)
        return NOTHING_CLOSED if reached is None else reached

    def holds(self, known: Known) -> dict[str, int]:
        """It takes all that came."""
        return {}

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Whether the watermark alone has passed rows that wait."""
        memo = known.manifest.memos.get(self.name, {})
        return bool(memo.get("next", END) < watermarks[self.name])

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """How far it came, and when the next row is due."""
        reports: list[_Report] = done.reports(self.name)
        reached = min(one.reached for one in reports)
        if reached > NOTHING_CLOSED:
            manifest.closed[self.name] = max(reached, self.order(known))
        manifest.memos[self.name] = {"next": min(one.next for one in reports)}


@dataclass(frozen=True)
class _Report:
    reached: int
    next: int  # the time of the first row that waits


@dataclass
class Rows:
    """Records on their way to be counted, in one task."""

    operator: Counting
    host: Host
    tables: list[pa.Table] = field(default_factory=list)

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Set late records aside; hash the others."""
        name, batch = step.name, self.host.batch
        late = chunk.late() | (chunk.ts < batch.orders[name])
        counts = self.host.ledger(name)
        counts["offered"] += len(chunk)
        counts["late"] += int(late.sum())
        counts["aggregated"] += len(chunk) - int(late.sum())
        self.host.push_late(name, chunk.take(late))
        chunk = chunk.take(~late)
        if not len(chunk):
            return
        names = self.operator.keys or tuple(chunk.table.column_names)
        columns = {name: chunk.column(name) for name in names}
        hashes, checks = both_hashes(key_arrays(pa.table(columns), names))
        marks = {
            "shard": pa.array((hashes % np.uint64(batch.shards)).astype(np.int32)),
            "pane": pa.array(chunk.ts),
            "hash": pa.array(hashes),
            "check": pa.array(checks),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
            "weight": pa.array(chunk.weights()),
        }
        self.tables.append(pa.table(marks | {f"{_ROW}{n}": c for n, c in columns.items()}))

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Published events come as records."""
        return False

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """All of them, one each."""
        if self.tables:
            yield "rows", concat(self.tables)


def _count(due: pa.Table, counts: Table, number: int) -> Chunk:
    """Add rows to the counts of their content; gives those whose count left zero or came back."""
    names = ("pos", "src", "pane", "check", "hash")
    order = np.lexsort(tuple(np.asarray(flat(due.column(name))) for name in names))
    due = due.take(pa.array(order))
    hashes, checks, ts, src, pos, weight = (
        np.asarray(flat(due.column(name)))
        for name in ("hash", "check", "pane", "src", "pos", "weight")
    )
    first = np.ones(len(due), np.bool_)
    first[1:] = (np.diff(hashes) != 0) | (np.diff(checks) != 0)
    start = np.flatnonzero(first)
    group = np.cumsum(first) - 1
    shard = np.asarray(flat(due.column("shard"))).astype(np.int64)[start]
    known = _Known(*counts.rows.find(shard, hashes[start], checks[start]))
    total = np.cumsum(weight)
    base = known.column("count") - (total[start] - weight[start])
    after = total + base[group]
    here, there = after > 0, (after - weight) > 0
    turned = np.flatnonzero(here != there)
    # When a row came to be there: by itself, by the last turn before in this batch, or as stored.
    came = np.where(here & ~there, np.arange(len(due)), -1)
    last = np.maximum.accumulate(came)
    fresh = (last >= start[group]) & (last >= 0)
    since_ts = np.where(fresh, ts[last], known.column("ts")[group])
    since = np.where(fresh, _mixed(ts, src, pos)[last], known.column("since")[group])
    end = np.r_[start[1:], len(due)] - 1
    counts.put_hashed(
        pa.table(
            {
                "shard": pa.array(shard.astype(np.int32)),
                "pane": pa.array(np.zeros(len(start), np.int64)),
                "hash": pa.array(hashes[start]),
                "check": pa.array(checks[start]),
                "gone": pa.array(after[end] == 0),
                "count": pa.array(after[end]),
                "ts": pa.array(since_ts[end]),
                "since": pa.array(since[end]),
            }
        )
    )
    columns = [name for name in due.column_names if name.startswith(_ROW)]
    rows = due.select(columns).rename_columns([name.removeprefix(_ROW) for name in columns])
    sign = np.where(here, 1, -1)[turned]
    names_of = (hashes >> np.uint64(1)).astype(np.int64)[turned]
    rows, times = rows.take(pa.array(turned)), since_ts[turned]
    return Chunk(rows, times, names_of, number, sign, since[turned])


class _Known:
    """What is stored of some keys, zero for those of which nothing is."""

    def __init__(self, place: Int64, rows: pa.Table | None) -> None:
        self.place, self.rows = place, rows

    def column(self, name: str) -> Int64:
        """One column of it."""
        if self.rows is None:
            return np.zeros(len(self.place), np.int64)
        values = np.asarray(flat(self.rows.column(name)))
        return np.where(self.place >= 0, values[np.maximum(self.place, 0)], 0)


def _mixed(ts: Int64, src: Int64, pos: Int64) -> Int64:
    """A number that names the record of which a row came to be there."""
    mixed = ts * 31 + src
    return (mixed * 1_000_003 + pos) & ((1 << 62) - 1)
