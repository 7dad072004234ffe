"""Running a batch on Spark: one job, one stage per level, blocks of bytes in between.

The RDD interface is used on purpose: rows never pass through the JVM, only opaque blocks do, and a
job needs no query planning (measured in docs/decisions/0002-one-job-per-batch-on-rdds.md).
"""

from __future__ import annotations

import errno
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, NoReturn, TypeVar

from pyspark import RDD, SparkContext, TaskContext, cloudpickle
from pyspark.errors import PySparkException

from millstream.api.aggregates import Builtin
from millstream.api.programs import Program
from millstream.errors import ConfigError, MillstreamError, RunError
from millstream.graph import nodes
from millstream.io.firsts import is_glance
from millstream.operators.batch import Batch, Heard
from millstream.ops.records import describe
from millstream.ops.updates.job import DictCodec
from millstream.plan.stages import Plan
from millstream.run.spark.installed import is_installed
from millstream.run.spark.steering import Steering
from millstream.run.tasks.calls import Call
from millstream.run.tasks.executors import caught_up, gathered, run_whole, shared_out
from millstream.run.tasks.splits import AnySplit, Item
from millstream.run.tasks.task import Task, levels_of
from millstream.run.tasks.watching import Attempt, Notes, hung, watched

P = TypeVar("P")
T = TypeVar("T")

_FEW = 16  # files at whose beginning the driver looks by itself
_MARK = "millstream-error:"
_BACKUPS = "millstream.backups"  # a property of jobs: whether Spark may run a task twice at once


class OnSpark:
    """Runs the tasks of a flow's batches in one Spark session."""

    waited = 0.0

    def __init__(
        self, context: SparkContext, plan: Plan, checkpoint: Path, timeout: int | None
    ) -> None:
        self.context = context
        self.watch = Attempt(str(checkpoint), "", 0, timeout)
        self.plan = plan
        self.key = uuid.uuid4().hex
        self.program = self.context.broadcast((self.key, packed_plan(plan)))
        self.steering = Steering(context, partial(loaded, self.program))
        # A tag and not a group: a thread has one group, and an executor that is made for a look at
        # another program would leave this one with jobs that it cannot cancel.
        self._jobs = f"millstream-{self.key}"
        self.context.addJobTag(self._jobs)
        self.context.setInterruptOnCancel(True)
        backups = self.context.getConf().get("spark.speculation", "false")
        self.context.setLocalProperty(_BACKUPS, str(backups))
        self.context.setJobDescription(f"millstream {plan.flow}")

    @property
    def cores(self) -> int:
        """Cores that are there now and keep up: executors come and go."""
        return self.steering.cores

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        """One Spark job; an error of a user's function or of ours arrives in one piece."""
        found = self._run(batch, parts)
        self.steering.learn()
        return found

    def _run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        program, steer = self.program, self.steering.steer
        if batch.parallelism == 1:
            splits = [split for part in parts for split in part]
            return self._collected(
                steer(self.context.parallelize([0], 1)).mapPartitions(
                    lambda rest: whole_task(program, batch, splits, rest)
                )
            )
        bare, tasks = shared_out(self.plan, batch, parts)
        rdd = steer(self.context.parallelize(tasks, len(tasks))).mapPartitions(
            lambda given: ingest_task(program, bare, given)
        )
        known = bare
        for level in range(1, levels_of(self.plan, batch) + 1):
            pairs = rdd.map(lambda item: (item[0], item))
            sent = steer(pairs.partitionBy(batch.parallelism + batch.gathers, lambda part: part))
            heard = None
            if batch.gathers:
                known, heard = caught_up(known, self._gathered(sent, batch.parallelism))
            rdd = sent.mapPartitionsWithIndex(keyed_task(program, known, level, heard))
        return self._collected(rdd)

    def _gathered(self, sent: RDD[tuple[int, Item]], part: int) -> Heard:
        """What tasks said to all: a job that runs them, and looks at the partition for that.

        Its shuffle is kept by Spark, so the next job does not run them again.
        """
        (heard,) = self._collected(sent, [part], lambda pairs: [gathered(i for _, i in pairs)])
        assert isinstance(heard, Heard)
        return heard

    def probe(self, step: str, look: Callable[[Iterable[P]], list[T]], things: list[P]) -> list[T]:
        """What a look at each of some files or other things shows: a small job of its own.

        The first times of a few files take less than a job does, and are found right here.
        """
        if len(things) <= _FEW and is_glance(look):
            return look(things)
        parts = min(len(things), self.cores)
        watch = self.watch
        return self._collected(
            self.context.parallelize(things, parts).mapPartitionsWithIndex(
                lambda part, mine: watched_task(
                    watch, f"probe-{part}", lambda: probe_task(step, look, mine)
                )
            )
        )

    def _collected(
        self,
        rdd: RDD[Any],
        parts: list[int] | None = None,
        work: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    ) -> list[Any]:
        """What a job gives; what its tasks noted, if some failed, is read and removed."""
        notes = Notes(self.watch.checkpoint)
        notes.remove()  # of an earlier run
        try:
            if parts is not None:
                return list(self.context.runJob(rdd, work, parts))
            found = list(rdd.collect())
            rdd.cleanShuffleDependencies()  # Spark itself keeps its blocks until Java collects them
            return found
        except Exception as error:
            self.raise_told(error, notes)
        finally:
            notes.remove()

    def raise_told(self, error: Exception, notes: Notes) -> NoReturn:
        """Say what went wrong in a job, if that is what went wrong."""
        of_spark = isinstance(error, PySparkException | ConnectionError | EOFError)
        if of_spark or type(error).__module__.startswith("py4j"):
            raise told_of(error, self.plan, self.watch, notes) from error
        raise error

    def cancel(self) -> None:
        """Give up the job under way, from another thread; Spark ends the workers it is in."""
        with suppress(Exception):  # Spark may be gone
            self.context.cancelJobsWithTag(self._jobs)

    def close(self) -> None:
        """Give the program's memory back; if Spark is gone, it is given back."""
        with suppress(Exception):
            self.context.removeJobTag(self._jobs)
            self.program.unpersist()


def packed_plan(plan: Plan) -> bytes:
    """A plan as it is sent to workers."""
    _send_by_value(plan)
    try:
        return bytes(cloudpickle.dumps(plan))  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise ConfigError(
            f"flow {plan.flow!r} cannot be sent to Spark's workers: {error}; functions must "
            "not hold open files, sockets, locks or Spark objects"
        ) from error


def keyed_task(program: Any, batch: Batch, level: int, heard: Heard | None) -> Any:
    """A function of its own, so that every stage keeps its own level."""

    def run(part: int, pairs: Iterable[tuple[int, Item]]) -> Iterator[Item]:
        if part == batch.parallelism:  # what was gathered
            list(pairs)
            return iter(())
        items = (item for _, item in pairs)
        return batch_task(
            batch,
            level,
            part,
            lambda: Task(loaded(program), batch, level, part).keyed(items, heard),
        )

    return run


def ingest_task(program: Any, batch: Batch, given: Iterable[Any]) -> Iterator[Item]:
    (task,) = list(given)
    yield from task.stored
    yield from batch_task(
        batch, 0, task.part, lambda: Task(loaded(program), batch, 0, task.part).ingest(task.splits)
    )


def whole_task(
    program: Any, batch: Batch, splits: list[AnySplit], rest: Iterable[Any]
) -> Iterator[Item]:
    list(rest)  # a worker whose input was not read to its end is not used again
    yield from batch_task(batch, 0, 0, lambda: run_whole(loaded(program), batch, splits))


_plans: dict[str, Plan] = {}  # those used last, the latest at the end
_MOST_PLANS = 256  # as many flows may be run by one worker without unpacking theirs every time


def loaded(program: Any) -> Plan:
    """The plan, unpacked once per worker."""
    key, packed = program.value
    plan = _plans.pop(key) if key in _plans else cloudpickle.loads(packed)
    _plans[key] = plan
    while len(_plans) > _MOST_PLANS:
        del _plans[next(iter(_plans))]
    return plan


def batch_task(batch: Batch, level: int, part: int, work: Any) -> Iterator[Item]:
    """One attempt at a task of a batch, with the functions it calls watched."""
    watch = Attempt(batch.checkpoint, "", 0, batch.function_timeout)
    return watched_task(watch, f"{level}-{part}", work)


def watched_task(watch: Attempt, task: str, work: Any) -> Iterator[Any]:
    context = TaskContext.get()
    tried = 0 if context is None else context.attemptNumber()
    backups = context is not None and context.getLocalProperty(_BACKUPS) == "true"
    attempt = replace(watch, task=task, number=tried, noting=2 if backups else 1)

    def attentive() -> Iterator[Any]:
        with watched(attempt):
            yield from work()

    return _marked(attentive)


def probe_task(
    operator: str, look: Callable[[Iterable[P]], list[T]], things: Iterable[P]
) -> list[T]:
    """What a look at things shows; `operator` is what `run/tasks/calls.py` names."""
    return look(things)


def _marked(work: Any) -> Iterator[Any]:
    """Errors meant for people keep their text on the way through Spark."""
    try:
        yield from work()
    except (MillstreamError, OSError) as error:
        text = str(error).encode("utf-8", "backslashreplace").decode()
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            text += "; what was committed stays valid: correct that and start again"
        raise RuntimeError(f"{_MARK}{text}{_MARK}") from error
    except (SystemExit, KeyboardInterrupt) as error:  # of a user's class, where none is expected
        raise RuntimeError(f"{_MARK}{describe(error)}{_MARK}") from error


# Not a full disk, which is waited for, nor files that have gone.
_OF_THE_MACHINE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
_ABSENT = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_DEAD_WORKER = ("Python worker exited unexpectedly", "EOFException")
_FRAMES = ("at ", "File ", "...")  # of Java and Python
_SAYS_WHY = ("aborted", "cancelled", "shut down", "stopped")
_PYTHON_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception|Interrupt|Exit)(: |$)(?!Traceback)")
_WORDS = 400  # characters of a line in a message
_NO_JVM = ("Answer from Java side is empty", "trying to connect to the Java server")


def meant_for_people(error: BaseException) -> str | None:
    """The text of an error that arrives in one piece; None for any other."""
    return str(error).split(_MARK)[1] if _MARK in str(error) else None


def told(error: Exception, steps: list[str], calls: Sequence[Call] = ()) -> RunError:
    """What went wrong in a Spark job in one line.

    `steps` are those with a user's functions, `calls` those that workers had begun when they died.
    """
    text = str(error)
    if (meant := meant_for_people(error)) is not None:
        return RunError(meant)
    if absent := _ABSENT.search(text):
        return RunError(
            f"Spark's workers cannot import {absent[1]!r}, which this process can: send it along "
            "with --spark spark.submit.pyFiles=FILE.py or spark.archives=..., or use an image that "
            "has it (docs/deploying.md). The batch was not committed"
        )
    gone = isinstance(error, ConnectionError | EOFError)
    if gone or type(error).__name__ == "Py4JNetworkError" or any(t in text for t in _NO_JVM):
        return RunError(
            f"Spark's JVM is gone ({type(error).__name__}): it was killed, by a person or for want "
            "of memory. The batch under way was not committed and nothing is lost: run the same "
            "command again; spark={'spark.driver.memory': '4g'} gives it more memory"
        )
    if any(t in text for t in _DEAD_WORKER):
        names = " or ".join(map(repr, steps)) or "the flow"
        if calls:
            names = f"{calls[-1].operator!r} on {calls[-1].given}"
        return RunError(
            f"a Python worker died while it ran functions of {names}, several times: one of them "
            "ended the process (os._exit), crashed in a library, or was killed for want of memory. "
            "The batch was not committed; look for such a call, or take less into a batch with "
            "batch_rows="
        )
    return RunError(f"a Spark job failed: {_cause(error)}. The batch was not committed")


def _cause(error: BaseException) -> str:
    """Why a job failed: what Spark says of it, and the innermost error, of Python if there is one.

    Spark's text is a page of frames, and sometimes there is none at all: the kind of the error, and
    what it came from, are said in any case.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_FRAMES)]
    whys = [line for line in lines if any(word in line for word in _SAYS_WHY)]
    errors = [line for line in lines if _PYTHON_ERROR.match(line)]
    errors = errors or [line for line in lines if "Error" in line or "Exception" in line]
    parts = list(dict.fromkeys(line[:_WORDS] for line in (*whys[:1], *(errors or lines)[-1:])))
    before = error.__cause__ or error.__context__
    if not parts and before is not None:
        parts = [_cause(before)]
    return ": ".join([type(error).__name__, *parts])


def told_of(error: Exception, plan: Plan, watch: Attempt, notes: Notes) -> RunError:
    """What went wrong in a Spark job, with what its tasks noted before they ended."""
    steps = with_functions(plan)
    if _MARK in str(error):
        return told(error, steps)
    return hung(notes, "*", watch.timeout) or told(error, steps, notes.calls("call"))


def with_functions(plan: Plan) -> list[str]:
    """The steps that run a user's functions in workers."""
    ours = (NoneType, Builtin, DictCodec)
    return [
        node.name
        for node in plan.nodes
        if any(one is not None and one not in ours for one in _user_objects(node))
    ]


def send_by_value(modules: Iterable[ModuleType]) -> None:
    """Let functions of modules travel as code, because workers may have imported older ones."""
    for module in modules:
        if not is_installed(module):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _send_by_value(plan: Plan) -> None:
    """Functions from a user's own files travel as code: workers need not be able to import them."""
    for node in plan.nodes:
        for value in _user_objects(node):
            module = sys.modules.get(getattr(value, "__module__", None) or "")
            send_by_value([] if module is None else [module])


def _user_objects(node: nodes.Node) -> Iterator[Any]:
    if isinstance(node, nodes.Update):
        job = node.job
        for fn in (job.fn, job.on_timer, job.merge, job.partition):
            if fn is not None:
                yield fn
                yield type(getattr(fn, "__self__", None))
        yield type(job.codec)
        return
    if isinstance(node, nodes.Source):
        yield getattr(node.spec, "reader", None)
    yield getattr(node, "partition", None)
    if isinstance(getattr(node, "job", None), Program):
        for method in node.job.methods.values():  # type: ignore[attr-defined]
            yield method.function
            yield method.owner if isinstance(method.owner, type) else type(method.owner)
        return
    for name in ("fn", "reducer"):
        if getattr(node, name, None) is not None:
            yield getattr(node, name)
    for value in (getattr(node, "job", None), *(agg for _, agg in getattr(node, "aggs", ()))):
        if value is not None:
            yield type(value)
