"""A family's share of a batch in one task: where time stands, and how far each operator goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from millstream.operators.batch import Batch, Clocks, Control
from millstream.operators.protocol import Senders
from millstream.ops.chunks import Chunk
from millstream.ops.emitting.firing import Firing
from millstream.ops.times.fidelity import Ranges
from millstream.ops.windows.closing import Outcome
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.state.manifests import Left


@dataclass(frozen=True)
class Order:
    """What the tasks of a family must know of the last manifest."""

    closed: dict[str, int]  # operator -> the last window end that has left, in panes
    firing: dict[str, Firing] = field(default_factory=dict)  # operators with early results
    since: dict[str, int] = field(default_factory=dict)  # state that came later -> from when on
    single: bool = False  # each value is kept by itself, not panes
    merges: bool = True  # rows of all chunks of a task are merged before they are sent
    lasting: bool = False  # over the whole input: what was given may change when there is more
    again: bool = False  # something was given before, and this is to be said of everything
    evicted: dict[str, dict[int, str]] = field(default_factory=dict)  # operator -> window ends, why

    def evicts_to(self, operator: str) -> int:
        """The last window end that leaves whether it is complete or not."""
        return max(self.evicted.get(operator, ()), default=self.closed[operator])


@dataclass
class Report:
    """What a task tells the driver of a family."""

    last_end: dict[str, int] = field(default_factory=dict)  # operator -> how far it came, in panes
    firing: dict[str, Firing] = field(default_factory=dict)
    strategies: dict[str, str] = field(default_factory=dict)  # operator -> how windows slid
    brought: Ranges = field(default_factory=list)  # panes with new records, if windows are evicted
    # operator -> records per tree and pane, of what agents send
    panes: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    late: dict[str, Senders] = field(default_factory=dict)  # operator -> whose records were late
    left: dict[str, Left] = field(default_factory=dict)  # operator -> what its last window stood on
    filled: tuple[int, int] = (0, 0)  # panes that entered windows of the longest, and windows
    merged: tuple[int, int, float] = (0, 0, 0.0)  # rows of chunks, rows sent, seconds of merging
    took: float = 0.0  # seconds on the reduce side


@dataclass
class Work:
    """One family's share of a batch in one task."""

    family: Family
    order: Order
    report: Report
    batch: Batch
    control: Control
    numbers: dict[str, int]  # operator -> its number in the identity of records
    clocks: Clocks
    counts: Counter[str]  # operator -> records it got in this batch

    def closed(self, job: WindowJob) -> int:
        """The last window end that had left before this batch."""
        return self.order.closed[job.name]

    def closing(self, job: WindowJob) -> int:
        """The last window end that leaves with this batch."""
        complete = job.span.closes_at(self.clocks.watermarks[job.name])
        return max(self.order.evicts_to(job.name), complete)

    def all_closing(self) -> dict[str, int]:
        """The same for all operators of the family."""
        return {job.name: self.closing(job) for job in self.family.jobs}

    def account(self, job: WindowJob, last: int, outcome: Outcome) -> Chunk:
        """Note how far an operator came, and results that could not be computed."""
        self.report.last_end[job.name] = last
        return self.count(job, outcome)

    def count(self, job: WindowJob, outcome: Outcome) -> Chunk:
        """Note how many results there were, and which failed; gives those that did not."""
        self.control.dead.extend(outcome.dead)
        if outcome.asked:
            counts = self.control.ledger.setdefault(job.name, Counter())
            counts["answered"] += outcome.asked - len(outcome.dead)
            if outcome.dead:
                counts["failed"] += len(outcome.dead)
        return outcome.chunk
