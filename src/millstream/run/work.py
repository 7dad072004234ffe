"""One family's share of a batch in one task: where time stands, and how far each operator goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from millstream.ops.chunks import Chunk
from millstream.ops.closing import Outcome
from millstream.ops.jobs import Family, WindowJob
from millstream.run.batch import Batch, Control


@dataclass(frozen=True)
class Clocks:
    """Where time stands in this batch: per operator the watermark, with and without lateness."""

    watermarks: dict[str, int]
    on_time: dict[str, int]
    latest: int  # the latest event time of all
    furthest: dict[str, int]  # per operator a time that no watermark of its input has passed


@dataclass
class Work:
    """One family's share of a batch in one task."""

    family: Family
    batch: Batch
    control: Control
    numbers: dict[str, int]  # operator -> its number in the identity of records
    clocks: Clocks
    counts: Counter[str]  # operator -> records it got in this batch

    def closed(self, job: WindowJob) -> int:
        """The last window end that had left before this batch."""
        return self.batch.closed[job.name]

    def closing(self, job: WindowJob) -> int:
        """The last window end that leaves with this batch."""
        return max(self.closed(job), job.span.closes_at(self.clocks.watermarks[job.name]))

    def all_closing(self) -> dict[str, int]:
        """The same for all operators of the family."""
        return {job.name: self.closing(job) for job in self.family.jobs}

    def account(self, job: WindowJob, last: int, outcome: Outcome) -> Chunk:
        """Note how far an operator came, and results that could not be computed."""
        self.control.last_end[job.name] = last
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
