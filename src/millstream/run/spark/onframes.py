"""Running a batch on DataFrames: the same tasks as on RDDs, where there is no SparkContext.

Spark Connect has neither RDDs nor broadcasts. Items travel as rows of a partition's number and
bytes; `repartitionById` sends them to where they are addressed, and `mapInArrow` runs the tasks.
The program travels with the function, and is unpacked once per worker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException

from millstream.operators.batch import Batch
from millstream.plan.stages import Plan
from millstream.run.spark.onspark import (
    ingest_task,
    keyed_task,
    packed_plan,
    probe_task,
    told_of,
    watched_task,
    whole_task,
)
from millstream.run.tasks.executors import shared_out
from millstream.run.tasks.splits import AnySplit, Item
from millstream.run.tasks.task import levels_of
from millstream.run.tasks.watching import Attempt, Notes

P = TypeVar("P")
T = TypeVar("T")

_ITEMS = pa.schema([("p", pa.int32()), ("b", pa.binary())])
_SPARK_ITEMS = "p int, b binary"
_ROWS = 64  # items in one Arrow batch: blocks are large


@dataclass(frozen=True)
class Carried:
    """What a broadcast is on RDDs: the program, as part of the function."""

    value: tuple[str, bytes]


class OnFrames:
    """Runs the tasks of a flow's batches in one Spark session, also a remote one."""

    waited = 0.0

    def __init__(self, session: Any, plan: Plan, checkpoint: Path, timeout: int | None) -> None:
        self.context = session
        self.plan = plan
        self.watch = Attempt(str(checkpoint), "", 0, timeout)
        self.program = Carried((uuid.uuid4().hex, packed_plan(plan)))
        # What is planned is done: tasks are as many as were asked for.
        for name in ("spark.sql.adaptive.enabled", "spark.sql.execution.arrow.useLargeVarTypes"):
            session.conf.set(name, "false")
        self.cores = self._count_cores()

    def _count_cores(self) -> int:
        """As many as Spark parts a range into by itself."""
        parts = self.context.range(0, 4096).selectExpr("spark_partition_id() AS p").distinct()
        return max(1, int(self._collected(lambda: parts.count())))

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        """One query; an error of a user's function or of ours arrives in one piece."""
        program = self.program
        batch = replace(batch, gathers=False)  # every task hears every other one
        if batch.parallelism == 1:
            splits = [split for part in parts for split in part]
            frame = self._frame([(0, splits)], 1)
            return self._items(
                frame, lambda _, items: whole_task(program, batch, next(items), items)
            )
        bare, tasks = shared_out(self.plan, batch, parts)
        frame = self._frame(list(enumerate(tasks)), len(tasks))
        work: Callable[[int, Iterator[Any]], Iterable[Item]]
        work = lambda _, items: ingest_task(program, bare, items)  # noqa: E731
        for level in range(1, levels_of(self.plan, batch) + 1):
            frame = frame.mapInArrow(_mapper(work, addressed=True), _SPARK_ITEMS)
            frame = frame.repartitionById(batch.parallelism, "p")
            work = _keyed(keyed_task(program, bare, level, None))
        return self._items(frame, work)

    def _frame(self, things: list[tuple[int, Any]], parts: int) -> Any:
        """One row for every task."""
        frame = self.context.createDataFrame(pa.Table.from_batches([_rows(things)]))
        return frame.repartitionById(parts, "p")

    def _items(self, frame: Any, work: Callable[[int, Iterator[Any]], Iterable[Any]]) -> list[Any]:
        """What the tasks of the last level give."""
        frame = frame.mapInArrow(_mapper(work, addressed=False), _SPARK_ITEMS)
        found = self._collected(frame.toArrow).column("b").to_pylist()
        return [cloudpickle.loads(one) for one in found]

    def probe(self, step: str, look: Callable[[Iterable[P]], list[T]], things: list[P]) -> list[T]:
        """What a look into each of some things shows: a small query of its own."""
        parts, watch = max(1, min(len(things), self.cores)), self.watch
        size = -(-len(things) // parts)
        some = [(at, things[at * size : (at + 1) * size]) for at in range(parts)]
        frame = self._frame(some, parts)
        found = self._items(frame, partial(_probed, watch, step, look))
        return [one for _, several in sorted(found, key=lambda pair: pair[0]) for one in several]

    def _collected(self, work: Callable[[], T]) -> T:
        notes = Notes(self.watch.checkpoint)
        notes.remove()  # of an earlier run
        try:
            return work()
        except (PySparkException, ConnectionError, EOFError) as error:
            raise told_of(error, self.plan, self.watch, notes) from error
        finally:
            notes.remove()

    def cancel(self) -> None:
        """Give up the query under way."""
        with suppress(Exception):  # Spark may be gone
            self.context.interruptAll()

    def close(self) -> None:
        """Nothing is held."""


def _mapper(work: Callable[[int, Iterator[Any]], Iterable[Any]], *, addressed: bool) -> Any:
    """A function of Arrow batches that runs one task.

    addressed: what it gives are items, sent to the partition each names.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = (one for batch in batches for one in batch.column("b").to_pylist())
        items = (cloudpickle.loads(one) for one in given)
        first = next(items, None)
        if first is None:
            return
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        made = ((one[0] if addressed else 0, one) for one in work(part, chain([first], items)))
        while some := list(islice(made, _ROWS)):
            yield _rows(some)
        for _ in items:  # a worker whose input was not read to its end is not used again
            pass

    return run


def _keyed(task: Any) -> Callable[[int, Iterator[Any]], Iterable[Item]]:
    """A task of a level, which on RDDs gets items in pairs."""
    return lambda part, items: task(part, ((item[0], item) for item in items))


def _probed(
    watch: Attempt,
    step: str,
    look: Callable[[Iterable[P]], list[T]],
    part: int,
    items: Iterator[Any],
) -> list[tuple[int, list[T]]]:
    things = next(items)
    work = partial(probe_task, step, look, things)
    return [(part, list(watched_task(watch, f"probe-{part}", work)))]


def _rows(things: list[tuple[int, Any]]) -> pa.RecordBatch:
    """Things and the partitions they go to."""
    packed = [cloudpickle.dumps(one) for _, one in things]  # type: ignore[no-untyped-call]
    parts = pa.array([part for part, _ in things], pa.int32())
    return pa.record_batch([parts, pa.array(packed, pa.binary())], schema=_ITEMS)
