"""Window jobs: what a keyed operator over windows computes, and which of them share their panes.

A job is one operator of the graph. Jobs over the same stream and key form a *family*: records are
reduced to panes once, the panes are kept once, and every job slides over them in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from millstream.ops.aggregates.holding import ObjectKernel
from millstream.ops.aggregates.kernels import Kernel
from millstream.ops.chunks import Int64
from millstream.ops.emitting.firing import FINAL, Emission
from millstream.ops.times.fidelity import Closing
from millstream.ops.times.spans import Span


@dataclass(frozen=True)
class Window:
    """The window a reduce function works on: [start, end), both None for the whole input."""

    start: datetime | None
    end: datetime | None


@dataclass(frozen=True)
class Measure:
    """One output column: how it is computed from one input column (or from whole records)."""

    name: str
    state: str  # names its state: measures of a family with equal names share it
    column: str | None
    kernel: Kernel | None = None  # vectorised states
    objects: ObjectKernel | None = None  # a user's states
    fold: Callable[[list[Any]], Any] | None = None  # kept values, folded; None: as a list
    lists: Callable[[pa.Array], pa.Array] | None = None  # the same for all windows at once
    by: str | None = None  # a second column
    numbers: str | None = None  # the one of its columns that must be of numbers

    @property
    def held(self) -> bool:
        """Its values are kept until the window leaves."""
        return self.kernel is None and self.objects is None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it looks at; none if it takes whole records."""
        return tuple(name for name in (self.column, self.by) if name is not None)


@dataclass(frozen=True)
class WindowJob:
    """All a task needs to know of one windowed operator."""

    name: str
    keys: tuple[str, ...]
    span: Span
    measures: tuple[Measure, ...] = ()
    reducer: Callable[[Any, list[Any], Window], Any] | None = None
    packed: bool = False  # a MapReduce job: key and value are packed Python values
    keep_null_keys: bool = False
    ordered: bool = False  # its results leave in the order of keys
    partition: Callable[[Any], int] | None = None  # which shard a key belongs to; None: by hash
    kept: int = 0  # panes kept after their last window, so that running values can lose them
    kind: str = "time"  # or "landmark", "session", "rows", "bytes"
    emission: Emission = FINAL
    logical: Span | None = None  # windows over rows or bytes: their arithmetic
    over_stream: bool = False  # these are counted over all keys together, in one shard
    growing: bool = False  # nothing leaves them: landmarks over rows or bytes
    changes: bool = False  # its input takes back, or is cut anywhere: values and signs are kept
    closing: Closing | None = None  # its results tell their fidelity; windows may be evicted

    @property
    def evicts(self) -> bool:
        """Windows may leave before they are complete."""
        return self.closing is not None and self.closing.policy is not None

    @property
    def counted_by(self) -> tuple[str, ...]:
        """The key of those who count rows or bytes: none if all are counted together."""
        return () if self.over_stream else self.keys

    def needed_until(self, panes: Int64) -> Int64:
        """The window end at which panes may be forgotten."""
        return self.span.last_end(panes) + self.kept

    @property
    def lifts(self) -> bool:
        """It has states."""
        return any(not m.held for m in self.measures)

    @property
    def lists(self) -> bool:
        """It needs the values of a window, in order."""
        return (self.reducer is not None and not self.lifts) or any(m.held for m in self.measures)

    @property
    def whole_rows(self) -> bool:
        """States are made late: of rows that are numbered in order, or can be taken back."""
        return self.logical is not None or self.changes

    @property
    def combines(self) -> bool:
        """States per pane are kept for it."""
        return self.lifts and not self.whole_rows

    @property
    def holds(self) -> bool:
        """Values are kept for it."""
        return self.lists or self.whole_rows


@dataclass(frozen=True)
class Family:
    """Jobs over the same stream and key: one exchange, one set of panes."""

    name: str
    jobs: tuple[WindowJob, ...]
    extra: tuple[Measure, ...] = ()  # states nobody asked for, but a strategy needs

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns all jobs share."""
        return self.jobs[0].keys

    @property
    def span(self) -> Span:
        """Any job's span: all count time in the same panes."""
        return self.jobs[0].span

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The measures whose states are kept, each once."""
        asked = (m for job in self.jobs for m in job.measures if not m.held)
        states = {m.state: m for m in (*asked, *self.extra)}
        return tuple(states.values())

    @property
    def kind(self) -> str:
        """How its windows are found; only windows of plain time can share."""
        return self.jobs[0].kind

    @property
    def changes(self) -> bool:
        """What comes in may be taken back."""
        return any(job.changes for job in self.jobs)

    @property
    def combines(self) -> bool:
        """It has states per pane."""
        return any(job.combines for job in self.jobs)

    @property
    def holds(self) -> bool:
        """It keeps values."""
        return any(job.holds for job in self.jobs)

    def users(self, table: str) -> list[WindowJob]:
        """The jobs that need rows of a table."""
        return [job for job in self.jobs if (job.combines if table == "panes" else job.holds)]
