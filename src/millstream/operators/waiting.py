"""What operators have in common: those that wait for the watermark, and those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.protocol import Backlog, Done, Host, Known, Share
from millstream.ops.chunks import Chunk, Mask, concat, decode_block
from millstream.ops.times.progress import END
from millstream.ops.times.spans import NOTHING_CLOSED
from millstream.ops.updates.cells import Publication
from millstream.state.manifests import Manifest

Op = TypeVar("Op")


@dataclass(frozen=True)
class Passed:
    """What a task of such an operator reports."""

    reached: int  # how far it came
    next: int = END  # the time of the first row that waits


class OneStep:
    """An operator of one step of the graph, whose records nobody has to count."""

    name: str
    counted: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        """That step."""
        return (self.name,)

    def holds(self, known: Known) -> dict[str, int]:
        """It takes all that came."""
        return {}


class Waiting(OneStep):
    """The side of such an operator that stands in the driver, and how far it goes in a batch."""

    def order(self, known: Known) -> int:
        """How far rows have been looked at."""
        reached = known.reached(self.name)
        return NOTHING_CLOSED if reached is None else reached

    @property
    def queued(self) -> tuple[str, ...]:
        """The tables with rows that wait for the watermark."""
        return ("waiting",)

    def backlog(self, known: Known) -> Backlog | None:
        """Rows that wait."""
        return backlog_by_time(self.name, self.queued, self.order(known)) if self.queued else None

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Whether the watermark alone has passed rows that wait."""
        memo = known.manifest.memos.get(self.name, {})
        return bool(memo.get("next", END) < watermarks[self.name])

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """How far it came, and when the next row is due."""
        reports: list[Passed] = done.reports(self.name)
        if not reports:
            return
        reached = self.all_reached([one.reached for one in reports])
        if reached > NOTHING_CLOSED:
            manifest.closed[self.name] = max(reached, self.order(known))
        manifest.memos[self.name] = {"next": min(one.next for one in reports)}

    def all_reached(self, tasks: list[int]) -> int:
        """How far it came, from how far its tasks did."""
        return min(tasks)

    def times(self, share: Share) -> tuple[int, int]:
        """Up to when rows were looked at before this batch, and up to when in it."""
        closed: int = share.host.batch.orders[self.name]
        return closed, max(closed, share.clocks.watermarks[self.name])

    def reached(self, share: Share, watermark: int) -> int:
        """How far a task comes; at the end of the input that is past the last record."""
        return share.clocks.stands(self.name, watermark, share.host.batch.orders[self.name])

    def tell(self, share: Share, watermark: int, next_time: int = END) -> None:
        """Report how far this task came."""
        reached = self.reached(share, watermark)
        share.host.control.reports[self.name] = Passed(reached, next_time)


class Immediate(OneStep):
    """The same side of an operator that works on all that came and keeps all in its store."""

    def order(self, known: Known) -> None:
        """All it needs is stored."""

    def backlog(self, known: Known) -> None:
        """Nothing waits."""

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Time alone changes nothing."""
        return False

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """Nothing to remember beside what is stored."""


def backlog_by_time(owner: str, tables: tuple[str, ...], worked: int) -> Backlog:
    """Rows that wait for a watermark to pass their time."""
    return Backlog(owner, tables, worked, _itself, _itself, _itself)


def _itself(at: int) -> int:
    return at


@dataclass
class Gathered(Generic[Op]):
    """An inlet whose records become rows of one table, kept until the task has read all."""

    operator: Op
    host: Host
    tables: list[pa.Table] = field(default_factory=list, init=False)

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Published events come as records."""
        return False

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """All of them."""
        if self.tables:
            yield "rows", concat(self.tables)


def addressed(hashes: Any, checks: Any, shards: int, by: Any = None) -> dict[str, pa.Array]:
    """The marks of rows that go to the shard of their first hash, or `by` another number."""
    spread = hashes if by is None else by
    return {
        "shard": pa.array((spread % np.uint64(shards)).astype(np.int32)),
        "hash": pa.array(hashes),
        "check": pa.array(checks),
    }


def rows_for(share: Share, table: str = "rows") -> pa.Table | None:
    """The rows of a table that came for the shards of a task."""
    blocks = [decode_block(block) for block in share.rows.pop(table, [])]
    return concat(blocks) if blocks else None


def give(host: Host, step: str, chunk: Chunk, results: int | None = None) -> None:
    """Give results to the steps after an operator; those that take nothing back are counted."""
    added = int((chunk.weights() > 0).sum()) if results is None else results
    host.ledger(step)["results"] += added
    host.control.results += added
    host.push(step, chunk)


def without_late(host: Host, step: Node, chunk: Chunk, late: Mask) -> Chunk:
    """Account for records that arrive at a step, and set those aside that are late."""
    counts = host.ledger(step.name)
    counts["offered"] += len(chunk)
    counts["late"] += int(late.sum())
    counts["aggregated"] += len(chunk) - int(late.sum())
    host.push_late(step.name, chunk.take(late))
    return chunk.take(~late)
