"""Who runs the tasks of a batch: this process, or Spark.

Both run the same functions. A batch is one pass: level 0 reads splits, every further level takes
the items addressed to its partitions. Small batches run as one task without any exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, TypeVar

from millstream.operators.batch import Batch, Heard, hear, stored_of
from millstream.ops.times.progress import Reached, shares_since, told_since
from millstream.plan.stages import Plan
from millstream.run.tasks.splits import AnySplit, Item
from millstream.run.tasks.task import Task, levels_of

P = TypeVar("P")
T = TypeVar("T")


class Executor(Protocol):
    """Runs all tasks of a batch and gives what is meant for the driver."""

    waited: float  # seconds for which the last batch only waited for those of other flows

    @property
    def cores(self) -> int: ...

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]: ...

    def probe(
        self, step: str, look: Callable[[Iterable[P]], list[T]], things: list[P]
    ) -> list[T]: ...


def run_whole(plan: Plan, batch: Batch, splits: Iterable[AnySplit]) -> Iterator[Item]:
    """All levels in one task: what a batch with a parallelism of one is."""
    items: Iterable[Item] = Task(plan, batch, 0, 0).ingest(splits)
    for level in range(1, levels_of(plan, batch) + 1):
        items = Task(plan, batch, level, 0).keyed(items)
    yield from items


@dataclass(frozen=True)
class Reading:
    """What a task of level 0 is sent: what it reads, and what it hands on to keyed tasks."""

    part: int
    splits: list[AnySplit]
    stored: list[Item]


def shared_out(
    plan: Plan, batch: Batch, parts: list[list[AnySplit]]
) -> tuple[Batch, list[Reading]]:
    """A batch without what is stored, and its first tasks, which take that along.

    Every keyed task needs what lies in its own shards and nothing else. The driver cannot send it
    there, because the tasks of later levels get what others give them; so it travels with the rows.
    """
    bare = replace(batch, segments={}, files={})
    tasks = [Reading(number, splits, []) for number, splits in enumerate(parts)]
    for level in range(1, levels_of(plan, batch) + 1):
        for part, stored in stored_of(batch, plan.owners(level)).items():
            tasks[part % len(tasks)].stored.append((part, "stored", str(level), stored))
    return bare, tasks


def gathered(items: Iterable[Item]) -> Heard:
    """What all tasks of a level had to say to those of the next, put together."""
    return hear(payload for _, _, _, payload in items)


def caught_up(batch: Batch, heard: Heard) -> tuple[Batch, Heard]:
    """The same with how far sources have come by now, said once instead of before and since.

    With many participants that is most of what a task is told.
    """
    progress = {
        name: one.seen(heard.reached.get(name, Reached())) for name, one in batch.progress.items()
    }
    told = told_since(batch.told, heard.reached, progress)
    shares = shares_since(batch.shares, heard.reached)
    batch = replace(batch, progress=progress, told=told, shares=shares)
    return batch, replace(heard, reached={})


class InProcess:
    """Runs tasks in this process, one after the other: for tests and the test kit."""

    waited = 0.0

    def __init__(self, plan: Plan, cores: int = 1) -> None:
        self.plan = plan
        self.cores = cores

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        """Every level in turn, every partition in turn."""
        if batch.parallelism == 1:
            return list(run_whole(self.plan, batch, [s for part in parts for s in part]))
        bare, tasks = shared_out(self.plan, batch, parts)
        items = [item for task in tasks for item in self._ingest(bare, task)]
        for level in range(1, levels_of(self.plan, batch) + 1):
            routed: list[list[Item]] = [[] for _ in range(batch.parallelism + 1)]
            for item in items:
                routed[item[0]].append(item)
            heard = None
            if batch.gathers:
                bare, heard = caught_up(bare, gathered(routed.pop()))
            items = [
                item
                for number, mine in enumerate(routed[: batch.parallelism])
                for item in self._keyed(bare, level, number, mine, heard)
            ]
        return items

    def _ingest(self, batch: Batch, task: Reading) -> Iterable[Item]:
        return chain(task.stored, Task(self.plan, batch, 0, task.part).ingest(task.splits))

    def _keyed(
        self, batch: Batch, level: int, part: int, items: list[Item], heard: Heard | None
    ) -> Iterable[Item]:
        return Task(self.plan, batch, level, part).keyed(items, heard)

    def probe(self, step: str, look: Callable[[Iterable[P]], list[T]], things: list[P]) -> list[T]:
        """What a look at each of some files or other things shows; `step`: who wants to know."""
        return look(things)
