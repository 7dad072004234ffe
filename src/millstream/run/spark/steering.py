"""Steering tasks away from executors that are slow: what of that is Spark's.

What tasks took and where is read from what Spark keeps for its own pages, also without them. Tasks
are steered by preferred locations, which is as soft as can be: Spark gives a task to one of these
executors if it is idle, and to any other if none is; nothing waits, and nothing is lost or begun
anew. While nobody is slow, no job is any different.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pyspark import RDD, InheritableThread, SparkContext, TaskContext
from pyspark.serializers import NoOpSerializer

from millstream.run.spark.cores import cores_of
from millstream.run.spark.sidelining import Ran, Sidelines

T = TypeVar("T")

_LOOK = 0.5  # seconds between looks at what tasks took
_LOOKING = 0.05  # share of the driver's time that these may take
_MOST = 10_000  # tasks of a stage that are looked at
_JOBS = 16  # the last ones, if there were more
_BESIDE = 2  # executors that do what others are tried with, to compare
_AT_ONCE = 16  # executors that are tried
_ROUNDS = 5_000_000  # of a trial: about 100 ms; in less, chance decides
_WAIT = 0.5  # seconds for which a batch waits at most for those
_LONGEST = 20.0  # seconds for which the others wait for one that is tried
_AGAIN = 0.02  # seconds between looks at which of them did it
_PATIENCE = 1.0  # seconds after which one that has not done it gets no tasks until it has
_TRIAL = "millstream: which executors keep up"

_log = logging.getLogger("millstream.executors")


@dataclass(frozen=True)
class _Place:
    host: str
    cores: int


class Steering:
    """Gives the tasks of a context to executors that keep up."""

    def __init__(self, context: SparkContext, prepare: Callable[[], object] = dict) -> None:
        """`prepare`: in a worker, gets all that a task of a batch needs."""
        self._context, self._prepare = context, prepare
        self.sidelines = Sidelines()
        self._several = not str(context.master).startswith("local")
        self._places: dict[str, _Place] = {}
        self._cores = 0  # of all of them
        self._job = 0  # the first that was not looked at
        self._next_look = 0.0
        self._trial: threading.Thread | None = None
        self._at_it: dict[str, threading.Thread] = {}  # who is or was tried
        self._tried: tuple[list[str], float] = [], 0.0  # in the last trial, and since when
        self._idle = threading.Event()  # who keeps up has done its part of a trial
        self._told: tuple[list[str], dict[str, float]] | None = None  # by the last trial
        self._writer: Any = None

    @property
    def cores(self) -> int:
        """Cores that are there now and keep up: executors come and go."""
        self._take_up()
        before, self._cores = self._cores, cores_of(self._context)
        if self._several and (self.sidelines.out or self._cores != before):
            with suppress(Exception):  # Spark may be gone; whoever runs a job hears of it
                self._look_for_places()
        if not self.sidelines.out:
            return self._cores
        return max(1, sum(self._places[one].cores for one in self._well()))

    def _well(self) -> list[str]:
        """Who gets tasks."""
        out = self.sidelines.out
        return [one for one in self._places if one not in out]

    def steer(self, rdd: RDD[T]) -> RDD[T]:
        """The same, with tasks that prefer executors that keep up, if some do not."""
        if not self.sidelines.out:
            return rdd
        if self._trial is not None:
            self._idle.wait(_WAIT)  # Spark would give the task to whoever is idle
        # All records paired with one that has a place, without it: the place is left.
        placed = rdd._jrdd.cartesian(self._placed([self._well()])).keys()
        return RDD(placed, self._context, rdd._jrdd_deserializer)

    def learn(self) -> None:
        """Look at what the tasks of the last batch took, and try who is out."""
        if not self._several:
            return
        now = time.monotonic()
        self._take_up()
        self._give_up(now)
        with suppress(Exception):  # no batch fails for want of figures
            if now >= self._next_look:
                self._accuse()
                spent = time.monotonic() - now
                self._next_look = now + max(_LOOK, spent / _LOOKING)
            self._try_again()

    def _accuse(self) -> None:
        accused = self.sidelines.accuse(self._ran())
        if not accused:
            return
        self._look_for_places()
        for one in self.sidelines.sideline(accused, self._places):
            _log.warning(
                "executor %s at %s took %.0f times as long as others: it gets no tasks until it is "
                "as fast again",
                *(one, self._places[one].host, accused[one]),
            )

    # -- what Spark knows -----------------------------------------------------------------------

    def _ran(self) -> list[Ran]:
        """Tasks of the jobs since the last look."""
        sc = self._context._jsc.sc()
        before, self._job = self._job, int(sc.dagScheduler().nextJobId())
        found, now = [], time.time()
        for job in range(max(before, self._job - _JOBS), self._job):
            with suppress(Exception):  # Spark keeps those of the last jobs only
                of_job = self._json(sc.statusStore().job(job))
                stages = of_job["stageIds"] if of_job.get("description") != _TRIAL else []
                found += [_ran(stage, task, now) for stage in stages for task in self._tasks(stage)]
        return found

    def _tasks(self, stage: int) -> list[dict[str, Any]]:
        with suppress(Exception):  # one whose output was there already has none
            return list(self._json(self._context._jsc.sc().statusStore().taskList(stage, 0, _MOST)))
        return []

    def _look_for_places(self) -> None:
        listed = self._json(self._context._jsc.sc().statusStore().executorList(True))
        self._places = {
            one["id"]: _Place(one["hostPort"].rpartition(":")[0], int(one["totalCores"]))
            for one in listed
            if one["id"] != "driver"
        }
        self.sidelines.keep(self._places)

    def _json(self, value: Any) -> Any:
        """What Spark keeps of something, in one call instead of one for every figure."""
        if self._writer is None:
            jvm: Any = self._context._jvm
            self._writer = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        return json.loads(self._writer.writeValueAsString(value))

    # -- places ---------------------------------------------------------------------------------

    def _placed(self, groups: list[list[str]]) -> Any:
        """An RDD with one empty record for each group of executors, which prefers these."""
        jvm: Any = self._context._jvm
        records = [
            jvm.scala.Tuple2(b"", jvm.PythonUtils.toSeq([self._location(one) for one in group]))
            for group in groups
        ]
        any_class = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
        made = self._context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(records), any_class)
        return made.toJavaRDD()

    def _location(self, executor: str) -> str:
        return f"executor_{self._places[executor].host}_{executor}"

    # -- trials ---------------------------------------------------------------------------------

    def _try_again(self) -> None:
        """Try who is due, beside the batches: while one is committed, executors are idle."""
        if self._told or (self._trial is not None and self._trial.is_alive()):
            return
        self._at_it = {one: at for one, at in self._at_it.items() if at.is_alive()}
        due = [one for one in self.sidelines.due() if one not in self._at_it][:_AT_ONCE]
        if not due:
            return
        well = [one for one in self._well() if one not in due][:_BESIDE]
        beside = self._placed([[one] for one in well])
        # One job each: Spark runs no backup of a stage's only task, which may need a new process.
        # Of an executor that has come as many as it has cores: each of these needs one.
        new = self.sidelines.is_new
        trials = {e: self._placed([[e]] * (self._places[e].cores if new(e) else 1)) for e in due}
        self._idle.clear()
        self._tried = due, time.monotonic()
        self._trial = _thread(lambda: self._try(due, beside, trials))

    def _try(self, due: list[str], beside: Any, trials: dict[str, Any]) -> None:
        """One that hangs, as a process that was stopped, holds none of the others up."""
        took: dict[str, float] = {}

        def go(placed: Any) -> threading.Thread:
            return _thread(lambda: took.update(self._took(placed)))

        until = time.monotonic() + _LONGEST
        # All at once, while no batch runs: who is busy does not do it, but another one.
        self._at_it |= {executor: go(placed) for executor, placed in trials.items()}
        go(beside).join(_LONGEST)
        self._idle.set()
        for executor in due:
            self._at_it[executor].join(max(0.0, until - time.monotonic()))
        self._told = due, dict(took)

    def _took(self, placed: Any) -> dict[str, float]:
        """The seconds of a trial in each executor that did it, wherever it was asked for."""
        prepare = self._prepare
        rdd: RDD[bytes] = RDD(placed, self._context, NoOpSerializer())
        with suppress(Exception):  # the context may be stopped at any time
            self._context.setJobDescription(_TRIAL)
            told = rdd.mapPartitions(lambda records: trial_task(prepare, records)).collect()
            where = self._where({stage for stage, _, _ in told}, {task for _, task, _ in told})
            return {where[task]: seconds for _, task, seconds in told if task in where}
        return {}

    def _where(self, stages: set[int], tasks: set[int]) -> dict[int, str]:
        """The executor of each task; Spark keeps what it hears of, and that may come later."""
        until = time.monotonic() + _LONGEST
        while True:
            known = (task for stage in stages for task in self._tasks(stage))
            found = {task["taskId"]: task["executorId"] for task in known}
            if tasks <= found.keys() or time.monotonic() > until:
                return found
            time.sleep(_AGAIN)

    def _take_up(self) -> None:
        """What the last trial came to."""
        if self._told is not None:
            (due, took), self._told = self._told, None
            came = {one for one in due if self.sidelines.is_new(one)}
            back, gone = self.sidelines.tried(due, took)
            for one in back:
                if one not in came:
                    _log.warning("executor %s is as fast as others again: it gets tasks", one)
            self._tell(gone)

    def _give_up(self, now: float) -> None:
        """Wait no longer for a trial of those that have tasks."""
        due, since = self._tried
        if self._trial is not None and self._trial.is_alive() and now - since > _PATIENCE:
            self._tell(self.sidelines.sideline(due, self._places))

    def _tell(self, gone: list[str]) -> None:
        for one in gone:
            _log.warning("executor %s is slower than others again: it gets no tasks", one)


def _thread(work: Callable[[], object]) -> threading.Thread:
    """One that has begun, and holds nobody up who wants to end."""
    thread: threading.Thread = InheritableThread(target=work, name="spark-trial", daemon=True)
    thread.start()
    return thread


def trial_task(
    prepare: Callable[[], object], records: Iterable[bytes]
) -> Iterator[tuple[int, int, float]]:
    """Work that is the same everywhere: the stage and task that did it, and its seconds.

    What a new process needs seconds for is done before: it is one of those that batches get.
    """
    list(records)  # a worker whose input was not read to its end is not used again
    prepare()
    context = TaskContext.get()
    assert context is not None
    begun = time.perf_counter()
    for _ in range(_ROUNDS):
        pass
    yield context.stageId(), context.taskAttemptId(), time.perf_counter() - begun


def _ran(stage: int, task: dict[str, Any], now: float) -> Ran:
    """A task as Spark keeps it; `now` as time.time()."""
    seconds = task.get("duration")
    if seconds is None or task["status"] == "RUNNING":
        begun = datetime.fromisoformat(task["launchTime"].removesuffix("GMT") + "+00:00")
        seconds = 1000 * max(0.0, now - begun.timestamp())
    return Ran(stage, task["executorId"], seconds / 1000, task["status"] == "SUCCESS")
