"""`Stream.last("5m")`: rows while they are no older than that, as changes.

A row is given when it comes, and taken back when it is too old, or when its input takes it back
before. Rows wait in a queue by the time at which they leave; one that was taken back is there a
second time, with a weight of -1, and the two vanish when the queue is written anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.durations import text
from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.grouped.arriving import names_of
from millstream.operators.grouped.moves import VALUE
from millstream.operators.protocol import Host, Inputs, KeyedStep, Known, Names, Share
from millstream.operators.stores import Queue
from millstream.operators.waiting import Gathered, Passed, Waiting, give, rows_for, without_late
from millstream.ops.chunks import Chunk, Int64, concat, numbers, own_columns, with_column
from millstream.ops.mixed import beside
from millstream.ops.times.progress import END
from millstream.state.bags import added_up
from millstream.state.segments import Segment


@dataclass(frozen=True, eq=False, kw_only=True)
class Last(KeyedStep):
    """Rows that are no older than so long, as a stream of changes."""

    gives_changes: ClassVar[bool] = True
    keys: tuple[str, ...] = ()
    size: int  # microseconds

    def operator(self, number: int, changes: bool) -> Lasting:
        """Keeps rows until they are too old."""
        return Lasting(self.name, self.size, number)

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """Those of the rows it keeps."""
        return before[0]

    def words(self) -> str:
        """For the plan."""
        return f"rows of the last {text(self.size)}, as changes"

    def remembered(self) -> dict[str, Any]:
        """How long rows stay."""
        return {"keys": [], "size": self.size}


@dataclass(frozen=True)
class Lasting(Waiting):
    """The operator: rows that wait for the time at which they leave."""

    name: str
    size: int
    number: int

    queued = ()  # rows are given as they come; what waits is when they leave

    def inlet(self, host: Host) -> LastRows:
        """Rows by what readers know them by."""
        return LastRows(self, host)

    def run(self, share: Share) -> None:
        """Give what comes, take back what has become too old."""
        host, batch, control = share.host, share.host.batch, share.host.control
        closed: int = batch.orders[self.name]
        now = share.clocks.watermarks[self.name]
        if now >= END:  # the input has ended: its latest record says what time it is
            now = share.clocks.ends[self.name]
        now = max(now, closed)
        new = rows_for(share)
        if new is not None:  # what is too old by now comes and goes within this batch
            new = new.filter(pa.array(numbers(new, "time") > now))
        waiting = LeavingRows(self.name, "waiting", new, batch, control)
        old = waiting.due(closed + 1, now + 1)
        parts = [] if new is None or not len(new) else [new]
        if old is not None:
            gone = _counted(old, -1)
            parts.append(gone.filter(pa.array(numbers(gone, "count") < 0)))
        if parts:
            self._push(host, concat(parts))
        following = waiting.store(now + 1)
        control.reports[self.name] = Passed(now, following)

    def _push(self, host: Host, rows: pa.Table) -> None:
        count = numbers(rows, "count")
        rows = rows.take(pa.array(np.repeat(np.arange(len(rows)), np.abs(count))))
        time, row, revision = (numbers(rows, name) for name in ("time", "row", "revision"))
        weight = np.repeat(np.sign(count), np.abs(count))
        table = own_columns(rows, VALUE)
        give(host, self.name, Chunk(table, time - self.size, row, self.number, weight, revision))

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """At the end of the input the watermark says nothing of what time it is."""
        memo, at = known.manifest.memos.get(self.name, {}), watermarks[self.name]
        return at < END and bool(memo.get("next", END) <= at)

    def all_reached(self, tasks: list[int]) -> int:
        """What time it is for one it is for all."""
        return max(tasks)

    def stored(self) -> Tables:
        """Rows that wait, by what they are known by."""
        return {self.name: {"waiting": Filed("spans", "time", "hash")}}


class LeavingRows(Queue):
    """Rows by the time at which they leave, with weights."""

    def _write(
        self, rows: pa.Table | None, suffix: str = "", *, cold: bool = False
    ) -> dict[int, Segment]:
        return super()._write(None if rows is None else _counted(rows), suffix, cold=cold)


def _counted(rows: pa.Table, sign: int = 1) -> pa.Table:
    """Equal rows as one, without those that come to nothing."""
    found = added_up(rows, ())
    count: Int64 = numbers(found, "count") * sign
    return with_column(found, "count", count)


class LastRows(Gathered[Lasting]):
    """Rows on their way to where they wait, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Set aside what is late, and has nothing to take back."""
        name, batch, size = step.name, self.host.batch, self.operator.size
        late = chunk.late() & (chunk.weights() > 0) & (chunk.ts + size <= batch.orders[name])
        chunk = without_late(self.host, step, chunk, late)
        if not len(chunk):
            return
        src = np.full(len(chunk), chunk.src, np.int64)
        row = names_of(src, chunk.pos, chunk.mark("window"))
        marks = {
            "shard": pa.array((row % batch.shards).astype(np.int32)),
            "hash": pa.array(row.astype(np.uint64)),
            "check": pa.array(np.zeros(len(chunk), np.uint64)),
            "time": pa.array(chunk.ts + size),
            "row": pa.array(row),
            "revision": pa.array(chunk.mark("revision")),
            "count": pa.array(chunk.weights()),
        }
        self.tables.append(beside(marks, chunk.table, VALUE))
