"""`Stream.distinct`: every row once, as long as the input has it.

Rows are counted by their content. Where the count leaves zero the row is given, where it comes back
to zero the row is taken back. Records are looked at in the order of time, once the watermark has
passed them, so that which of several equal ones gives the time does not depend on batches. Changes
are counted as they come, all of a batch together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.protocol import Columns, Host, Inputs, KeyedStep, Share
from millstream.operators.stores import Queue, Table, in_order
from millstream.operators.waiting import Gathered, Waiting, addressed, give, rows_for, without_late
from millstream.ops.chunks import ROW, Chunk, Int64, Mask, begins, marked, numbers, own_columns
from millstream.ops.keys.hashing import key_arrays
from millstream.ops.keys.names import both_hashes
from millstream.ops.times.progress import END
from millstream.state.bags import Keys


@dataclass(frozen=True, eq=False, kw_only=True)
class Distinct(KeyedStep):
    """Rows that differ in some columns, or in any."""

    keys: tuple[str, ...] = ()

    def operator(self, number: int, changes: bool) -> Counting:
        """Counts rows by their content."""
        return Counting(self.name, number, changes, self.keys)

    def columns(self, have: Columns) -> Columns:
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

    def described(self, inputs: Inputs) -> dict[str, Any]:
        """Also those that it has not named, if it compares all there are."""
        return self.remembered() | ({} if self.keys else whole_rows(inputs))


def whole_rows(inputs: Inputs) -> dict[str, Any]:
    """What a checkpoint has of steps that compare whole rows: the columns they have."""
    known = [sorted(one.columns) for one in inputs if one.columns is not None]
    return {"compared": known[0]} if known else {}


@dataclass(frozen=True)
class Comparer(Waiting):
    """An operator that looks up rows by what is compared, once the watermark has passed them."""

    name: str
    number: int
    changes: bool  # rows may be taken back: then all of a batch count together, at once
    table: ClassVar[str] = "counts"  # what is known of each content

    @property
    def queued(self) -> tuple[str, ...]:
        """Changes count at once."""
        return () if self.changes else ("waiting",)

    def run(self, share: Share) -> None:
        """Look at the rows that the watermark has passed."""
        batch, control = share.host.batch, share.host.control
        closed, watermark = self.times(share)
        until = END if self.changes else watermark
        waiting = Queue(self.name, "waiting", rows_for(share), batch, control)
        table = Table(self.name, self.table, batch, control)
        due = waiting.due(closed, until)
        if due is not None:
            self.compare(due, table, share.host)
        next_time = waiting.store(until)
        table.store(self.gone_by(share, watermark))
        self.tell(share, closed if self.changes else watermark, next_time)

    def compare(self, rows: pa.Table, table: Table, host: Host) -> None:
        """Look rows up, give what that comes to, and put what is to be stored."""
        raise NotImplementedError

    def gone_by(self, share: Share, watermark: int) -> int | None:
        """What expires by then is needed no more; None: all is."""
        return None

    def stored(self) -> Tables:
        """Rows that wait, and what is known of each content, by its hash."""
        waiting, known = Filed("spans", "time", "hash"), Filed("newest", "expires", "hash")
        return {self.name: {"waiting": waiting, self.table: known}}


@dataclass(frozen=True)
class OfRecords(Comparer):
    """One that compares records of one stream."""

    keys: tuple[str, ...]
    whole: ClassVar[bool] = False  # rows keep all their columns

    def inlet(self, host: Host) -> ComparedRows:
        """Rows by the hash of their content."""
        return ComparedRows(self, host)


@dataclass(frozen=True)
class Counting(OfRecords):
    """The operator: how often the input has each row."""

    def compare(self, rows: pa.Table, table: Table, host: Host) -> None:
        """Add rows to the counts of their content; gives those that are new, or gone."""
        rows = in_order(rows)
        keys = _Keys(rows, table)
        turned, here, brought = keys.turns(self.changes)
        ts, since = keys.since(brought)
        keys.store(table, ts, since)
        pos = keys.found.keys.names[keys.group[turned]]
        chunk = Chunk(own_columns(rows).take(pa.array(turned)), ts[turned], pos, self.number)
        if self.changes:
            chunk = replace(chunk, weight=np.where(here[turned], 1, -1), revision=since[turned])
        give(host, self.name, chunk, len(chunk))


class ComparedRows(Gathered[OfRecords]):
    """Records on their way to be compared, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Set late records aside; hash the others."""
        name, batch = step.name, self.host.batch
        late = chunk.late() | (chunk.ts < batch.orders[name])
        if self.operator.changes:  # what is taken back was given, and must not stay
            late = np.zeros(len(chunk), np.bool_)
        chunk = without_late(self.host, step, chunk, late)
        if not len(chunk):
            return
        every = tuple(chunk.table.column_names)
        names = self.operator.keys or every
        kept = dict.fromkeys((*every, *names) if self.operator.whole else names)
        columns = {name: chunk.column(name) for name in kept}
        hashes, checks = both_hashes(key_arrays(pa.table(columns), names))
        marks = {
            **addressed(hashes, checks, batch.shards),
            "time": pa.array(chunk.ts),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
            "weight": pa.array(chunk.weights()),
        }
        rows = {f"{ROW}{name}": column for name, column in columns.items()}
        self.tables.append(marked(marks, chunk.table, rows))


class _Keys:
    """Rows in order, and what is stored of their content."""

    def __init__(self, rows: pa.Table, counts: Table) -> None:
        def column(name: str) -> Any:
            return numbers(rows, name)

        self.weight, self.ts = column("weight"), column("time")
        self.record = _mixed(self.ts, column("src"), column("pos"))
        first = begins(column("hash"), column("check"))
        self.start = np.flatnonzero(first)
        self.end = np.r_[self.start[1:], len(rows)] - 1
        self.group = np.cumsum(first) - 1
        self.found = counts.find(Keys.of(rows, self.start))
        total = np.cumsum(self.weight)
        before = self.found.numbers("count") - (total[self.start] - self.weight[self.start])
        self.count = total + before[self.group]

    def turns(self, together: bool) -> tuple[Int64, Mask, Int64]:
        """The rows with which their content comes to be there or is gone; whether it is there after
        each row, and which row brought it, -1 if it was there before.

        `together`: only what all rows of this batch come to.
        """
        at, here = np.arange(len(self.count)), self.count > 0
        if together:
            here, before = here[self.end], self.found.numbers("count") > 0
            adds = np.where(self.weight > 0, at, len(at))
            brought = np.where(here & ~before, np.minimum.reduceat(adds, self.start), -1)
            return self.start[here != before], here[self.group], brought[self.group]
        turns = here != (self.count - self.weight > 0)
        last = np.maximum.accumulate(np.where(turns & here, at, -1))
        return at[turns], here, np.where(last >= self.start[self.group], last, -1)

    def since(self, brought: Int64) -> tuple[Int64, Int64]:
        """For every row since when its content is there: the time, and a name of the record."""
        stored = (self.found.numbers(name)[self.group] for name in ("ts", "since"))
        found = (self.ts[brought], self.record[brought])
        ts, since = (
            np.where(brought >= 0, now, old) for now, old in zip(found, stored, strict=True)
        )
        return ts, since

    def store(self, counts: Table, ts: Int64, since: Int64) -> None:
        """Put what is to be stored of every content."""
        count = self.count[self.end]
        own = {"count": count, "ts": ts[self.end], "since": since[self.end]}
        counts.put_of(self.found.keys, count == 0, own)


def _mixed(ts: Int64, src: Int64, pos: Int64) -> Int64:
    """A number that names the record with which a content came to be there."""
    mixed = ts * 31 + src
    return (mixed * 1_000_003 + pos) & ((1 << 62) - 1)
