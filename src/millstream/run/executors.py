"""Who runs the tasks of a batch: this process, or Spark.

Both run the same functions. A batch is one pass: level 0 reads splits, every further level takes
the items addressed to its partitions. Small batches run as one task without any exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from millstream.operators.batch import Batch
from millstream.plan.stages import Plan
from millstream.run.splits import AnySplit, Item
from millstream.run.tasks import Task

T = TypeVar("T")


class Executor(Protocol):
    """Runs all tasks of a batch and gives what is meant for the driver."""

    cores: int

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]: ...

    def probe(
        self, source: str, look: Callable[[Iterable[str]], list[T]], paths: list[str]
    ) -> list[T]: ...


def run_whole(plan: Plan, batch: Batch, splits: Iterable[AnySplit]) -> Iterator[Item]:
    """All levels in one task: what a batch with a parallelism of one is."""
    items: Iterable[Item] = Task(plan, batch, 0, 0).ingest(splits)
    for level in range(1, plan.depth + 1):
        items = Task(plan, batch, level, 0).keyed(items)
    yield from items


class InProcess:
    """Runs tasks in this process, one after the other: for tests and the test kit."""

    def __init__(self, plan: Plan, cores: int = 1) -> None:
        self.plan = plan
        self.cores = cores

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        """Every level in turn, every partition in turn."""
        if batch.parallelism == 1:
            return list(run_whole(self.plan, batch, [s for part in parts for s in part]))
        items = [
            item
            for number, splits in enumerate(parts)
            for item in self._ingest(batch, number, splits)
        ]
        for level in range(1, self.plan.depth + 1):
            routed: list[list[Item]] = [[] for _ in range(batch.parallelism)]
            for item in items:
                routed[item[0]].append(item)
            items = [
                item
                for number, mine in enumerate(routed)
                for item in self._keyed(batch, level, number, mine)
            ]
        return items

    def _ingest(self, batch: Batch, part: int, splits: list[AnySplit]) -> Iterable[Item]:
        return Task(self.plan, batch, 0, part).ingest(splits)

    def _keyed(self, batch: Batch, level: int, part: int, items: list[Item]) -> Iterable[Item]:
        return Task(self.plan, batch, level, part).keyed(items)

    def probe(
        self, source: str, look: Callable[[Iterable[str]], list[T]], paths: list[str]
    ) -> list[T]:
        """What a look into each file of a source shows."""
        return look(paths)
