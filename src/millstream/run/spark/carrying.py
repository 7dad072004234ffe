"""Small batches of several flows as one Spark job.

A job costs Spark the same whether its task holds the batch of one flow or of twenty, and for small
batches that is most of what they cost. So whoever has a small batch waits for the moment it takes
others to come, and they are carried together: each in one task through all levels, several in a
task, one task per core. What a flow reads, computes and commits is its own, as if it ran alone; but
of flows that read the same files those go into one task, where each piece is read once.

What goes wrong stays with the flow it belongs to. An error meant for people is told to that flow. A
task that ends in any other way is the fault of somebody in it: then all of them run by themselves.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from millstream.api.sources import Files
from millstream.errors import RunError
from millstream.io.formats import Format
from millstream.io.readers import Split
from millstream.operators.batch import Batch
from millstream.plan.stages import Plan
from millstream.run.spark.cores import cores_of
from millstream.run.spark.onspark import OnSpark, loaded, meant_for_people, watched_task
from millstream.run.spark.turns import GIVEN_UP, Turns
from millstream.run.tasks.executors import run_whole
from millstream.run.tasks.once import reading_once
from millstream.run.tasks.splits import AnySplit, Aside, Item
from millstream.run.tasks.watching import Attempt, Notes

_GATHER = 0.01  # seconds without another one, after which a job leaves
_LONGEST = 0.05  # seconds for which it waits at most
_PEERS = 0.1  # the same, for flows that read what one that waits reads
_TOGETHER = 8  # such flows in one task; of more, several tasks read the same
_JOBS = 2  # at once: while the batches of one are committed, the tasks of another work
_SLOW = 1.0  # seconds of a batch that would hold others up; it gets a job of its own
_GROUP = "millstream-carried"
_FORGET = 0.5  # share by which what is known of a batch's cost moves to what was measured last


@dataclass(frozen=True)
class Load:
    """The batch of one flow, for a task."""

    flow: str  # the key of its program
    watch: Attempt
    batch: Batch
    splits: list[AnySplit]

    @property
    def reads(self) -> str | None:
        """What it has in common with loads that read the same."""
        return next((one.path for one in self.splits if isinstance(one, Split)), None)


@dataclass(frozen=True)
class Delivered:
    """What became of a load: items, or an error; neither if it must be tried alone."""

    flow: str
    seconds: float = 0.0
    items: list[Any] | None = None
    error: str | None = None
    saved: int = 0  # records that were read for another flow already


@dataclass
class _Waiting:
    load: Load
    answer: Future[Delivered] = field(default_factory=Future)


class Carrier:
    """Puts loads together into jobs; flows hand them over and wait."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._programs: dict[str, Any] = {}  # all of them go with every job: workers keep them then
        self._seconds: dict[str, float] = {}  # what a batch of each flow costs
        self._waiting: list[_Waiting] = []
        self._asked: dict[str, _Waiting] = {}  # these, and those under way
        self._sources: dict[str, frozenset[str]] = {}  # what each flow reads
        self.saved = 0  # records that were not read again
        # Large batches take all cores, and as much memory as may be had: one flow after the other.
        self.large = Turns()
        self._news = threading.Condition()
        self._closed = False
        self._gathering = threading.Lock()
        for _ in range(_JOBS):  # nobody waits for these threads: a job may hang in a function
            threading.Thread(target=self._go_on, name=_GROUP, daemon=True).start()

    def join(self, flow: str, program: Any, sources: frozenset[str]) -> None:
        """A flow will have loads, which this program is for, from these sources."""
        with self._news:
            self._programs[flow], self._sources[flow] = program, sources

    def part(self, flow: str) -> None:
        """It will have none any more."""
        with self._news:
            for known in (self._programs, self._sources, self._seconds):
                known.pop(flow, None)

    def carry(self, load: Load) -> Delivered:
        """Have a load carried to the workers and back; one that takes long goes by itself.

        What its own job meets is raised: nobody else can have brought that about.
        """
        if self._seconds.get(load.flow, 0.0) >= _SLOW:
            return self._carried([load]).get(load.flow) or Delivered(load.flow)
        one = _Waiting(load)
        with self._news:
            self._asked[load.flow] = one
            self._waiting.append(one)
            self._news.notify()
        return one.answer.result()

    def let_go(self, flow: str) -> None:
        """Nobody waits any more for what a flow has under way; it goes on for the others."""
        with self._news:
            one = self._asked.pop(flow, None)
            self._waiting = [other for other in self._waiting if other is not one]
        if one is not None:
            one.answer.set_exception(RunError(GIVEN_UP))

    def close(self) -> None:
        """No flow is left."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    # -- the threads ----------------------------------------------------------------------------

    def _go_on(self) -> None:
        """One job after the other."""
        while True:
            with self._gathering:
                several = self._gathered()
            if several is None:
                return
            self._go(several)

    def _gathered(self) -> list[_Waiting] | None:
        """Those who go together; None once there will be no more."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._closed)
            begun, count = time.monotonic(), 0
            while not self._closed and self._is_worth_waiting(time.monotonic() - begun, count):
                count = len(self._waiting)
                self._news.wait(_GATHER)
            several, self._waiting = self._waiting, []
            return None if self._closed and not several else several

    def _is_worth_waiting(self, waited: float, count: int) -> bool:
        """Whether others may come; `count` is how many there were at the last look."""
        if len(self._asked) >= len(self._programs):
            return False  # nobody is left to come
        if waited < _LONGEST and len(self._waiting) > count:
            return True
        reads = {path for one in self._waiting for path in self._sources[one.load.flow]}
        return waited < _PEERS and any(
            not reads.isdisjoint(sources)
            for flow, sources in self._sources.items()
            if flow not in self._asked
        )

    def _go(self, several: list[_Waiting]) -> None:
        try:
            self._context.setJobGroup(_GROUP, f"batches of {len(several)} flows", True)
            self._context.setLocalProperty("spark.scheduler.pool", _GROUP)
            found = self._carried([one.load for one in several])
        except Exception:  # each tries alone, and meets its own
            found = {}
        for one in several:
            flow = one.load.flow
            with self._news:
                waits = self._asked.get(flow) is one and self._asked.pop(flow) is one
            if waits:
                one.answer.set_result(found.get(flow) or Delivered(flow))

    def _carried(self, loads: list[Load]) -> dict[str, Delivered]:
        """A job with these loads."""
        with self._news:
            programs = dict(self._programs)
        tasks = dealt(loads, self._seconds, cores_of(self._context))
        rdd = self._context.parallelize(tasks, len(tasks)).mapPartitions(
            lambda given: carried_task(programs, given)
        )
        found = {one.flow: one for one in rdd.collect()}
        for one in found.values():
            if one.items is not None:
                known = self._seconds.get(one.flow, one.seconds)
                self._seconds[one.flow] = known + _FORGET * (one.seconds - known)
                self.saved += one.saved
        return found


def dealt(loads: list[Load], seconds: dict[str, float], cores: int) -> list[list[Load]]:
    """Loads for as many tasks as there are cores: the longest first, to who has least so far.

    Those that read the same stay together.
    """
    usual = max(seconds.values(), default=1.0)
    groups: dict[Any, list[Load]] = {}
    for number, load in enumerate(loads):
        groups.setdefault(load.reads or number, []).append(load)
    parts = [
        several[at : at + _TOGETHER]
        for several in groups.values()
        for at in range(0, len(several), _TOGETHER)
    ]
    costs = [sum(seconds.get(one.flow, usual) for one in several) for several in parts]
    tasks: list[list[Load]] = [[] for _ in range(min(cores, len(parts)))]
    least = [(0.0, number) for number in range(len(tasks))]
    for cost, several in sorted(zip(costs, parts, strict=True), key=lambda one: -one[0]):
        busy, number = heapq.heappop(least)
        tasks[number].extend(several)
        heapq.heappush(least, (busy + cost, number))
    return tasks


def carried_task(programs: dict[str, Any], given: Iterable[list[Load]]) -> Iterator[Delivered]:
    """In a worker: the loads of a task, one after the other."""
    loads = [one for several in given for one in several]
    plans = {load.flow: loaded(programs[load.flow]) for load in loads}
    with reading_once(pieces_of(plans, loads)) as once:
        for load in loads:
            begun, before = time.perf_counter(), once.saved
            work = partial(run_whole, plans[load.flow], load.batch, load.splits)
            try:
                items = list(watched_task(load.watch, "0-0", work))
            except Exception as error:
                yield Delivered(load.flow, error=meant_for_people(error))
            else:
                seconds, saved = time.perf_counter() - begun, once.saved - before
                yield Delivered(load.flow, seconds, items, saved=saved)


def pieces_of(plans: dict[str, Plan], loads: list[Load]) -> Iterator[tuple[Format, Split]]:
    """The pieces of files that loads read, and how."""
    for load in loads:
        plan = plans[load.flow]
        sources = plan.sources()
        for split in load.splits:
            piece = split.piece if isinstance(split, Aside) else split
            if isinstance(piece, Split):
                yield plan.formats[sources[piece.source].name], piece


class Riding(OnSpark):
    """Runs the tasks of one flow among several: its small batches go together with others."""

    def __init__(
        self,
        context: SparkContext,
        plan: Plan,
        checkpoint: Path,
        timeout: int | None,
        carrier: Carrier,
    ) -> None:
        super().__init__(context, plan, checkpoint, timeout)
        context.setLocalProperty("spark.scheduler.pool", plan.flow)
        self._carrier, self._given_up = carrier, False
        specs = [node.spec for node in plan.sources()]
        files = frozenset(str(spec.path) for spec in specs if isinstance(spec, Files))
        carrier.join(self.key, self.program, files)

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        """One Spark job, or a part of one."""
        if batch.parallelism > 1:
            with self._carrier.large.turn(self.key) as self.waited:
                return super().run(batch, parts)
        splits = [split for part in parts for split in part]
        found = self._carried(Load(self.key, self.watch, batch, splits))
        return super().run(batch, parts) if found is None else found

    def _carried(self, load: Load) -> list[Any] | None:
        """What a load gave; None if it must be tried alone."""
        notes = Notes(self.watch.checkpoint)
        notes.remove()  # of an earlier run
        since = time.perf_counter()
        try:
            delivered = self._carrier.carry(load)
        except Exception as error:
            if self._given_up:
                raise RunError(GIVEN_UP) from error
            self.raise_told(error, notes)
        finally:
            notes.remove()
        if delivered.error is not None:
            raise RunError(delivered.error)
        if delivered.items is None and self._given_up:  # not to be tried again
            raise RunError(GIVEN_UP)
        self.waited = time.perf_counter() - since - delivered.seconds
        return delivered.items

    def cancel(self) -> None:
        """Give up the job under way; if others go with it, it goes on for them."""
        self._given_up = True
        self._carrier.large.let_go(self.key)
        self._carrier.let_go(self.key)
        super().cancel()

    def close(self) -> None:
        """Give the program's memory back."""
        self._carrier.part(self.key)
        super().close()
