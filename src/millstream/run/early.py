"""Early answers: a flow over stored files that is looked at while it runs.

The engine, its commits and its results are those of any run. Different are only the source, which
is read in random order (`blocks.py`), and the window that is looked at, which also reports what
each block gave (`operators/early/`). What is looked at is always committed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.api.early import ESTIMATE, Looks, Snapshot, Unseen
from millstream.api.sources import Files
from millstream.errors import ConfigError, RunError
from millstream.graph import nodes
from millstream.operators.early.logs import Log
from millstream.operators.early.sampling import Sampled
from millstream.operators.windows.family import Windows
from millstream.ops.estimating.answers import Answers, estimated
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.intervals import PROMISES
from millstream.ops.estimating.unseen import unseen
from millstream.plan.stages import Plan
from millstream.run.blocks import BlocksTracker
from millstream.run.engine import Engine
from millstream.run.sources import make_tracker
from millstream.serve.answers import publish_snapshot
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage


@dataclass(frozen=True)
class Looked:
    """The window that is looked at, and the plan that has its blocks reported."""

    plan: Plan
    step: str
    windows: Sampled

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key columns."""
        return self.windows.family.keys


def looked_at(plan: Plan, step: str | None) -> Looked:
    """Find the window that is to be looked at; refuses flows whose input has an order."""
    _check_source(plan)
    first = [one for one in plan.operators.values() if plan.level_of(one) == 1]
    for one in first:
        if not isinstance(one, Windows) or not one.family.span.whole:
            raise ConfigError(
                f"snapshots(): {one.steps[0]!r} works on its input in the order of time, and "
                "blocks are read in random order; only aggregates over the whole input, like "
                ".key_by(...).agg(...), have early answers"
            )
    steps = [name for one in first for name in one.steps]
    if not steps:
        raise ConfigError(
            "snapshots(): this flow aggregates nothing; add .key_by(...).agg(...), or use run()"
        )
    if step is None and len(steps) > 1:
        raise ConfigError(
            f"snapshots(): the flow has several aggregates ({', '.join(steps)}); say which with "
            "step="
        )
    step = steps[0] if step is None else step
    windows = plan.operator_of(step) if step in steps else None
    if not isinstance(windows, Windows):
        raise ConfigError(f"snapshots(step={step!r}): there are {', '.join(steps)}")
    sampled = Sampled(windows.family, windows.numbers)
    operators = {**plan.operators, windows.name: sampled}
    return Looked(replace(plan, operators=operators), step, sampled)


def _check_source(plan: Plan) -> None:
    sources = plan.sources()
    spec = sources[0].spec
    if len(sources) > 1 or not isinstance(spec, Files) or spec.follow:
        found = ", ".join(f"{node.name} ({type(node.spec).__name__})" for node in sources)
        raise ConfigError(
            f"snapshots(): needs one source of stored files, ms.Files(...) without follow; the "
            f"flow has {found}"
        )
    if spec.lateness_micros() is not None or spec.participant is not None:
        raise ConfigError(
            f"snapshots(): source {sources[0].name!r} has lateness= or participant=, which go by "
            "the order of records, and blocks are read in random order; leave them out"
        )
    for node in plan.nodes:
        if isinstance(node, nodes.Process | nodes.Published | nodes.Update):
            raise ConfigError(
                f"snapshots(): {node.name!r} publishes or updates in the order of time, and blocks "
                "are read in random order; use run()"
            )


class Looker:
    """Looks at what is committed: estimates from blocks, or the exact answer.

    It works in the thread of the engine; who waits for snapshots takes them out of `found`, which
    ends with None.
    """

    def __init__(self, engine: Engine, looked: Looked, looks: Looks) -> None:
        self.engine, self.looked, self.looks = engine, looked, looks
        self.found: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self.newest: Snapshot | None = None
        self.ended_by: str | None = None
        self._place = None if looks.publish is None else open_storage(looks.publish)
        self._log = Log(engine.checkpoint.store, looked.windows.name)
        self._answers: Answers | None = None
        self._read = self._batch = 0  # blocks and batches taken in so far
        self._started = time.monotonic()
        self._shown: float | None = None  # progress of the last snapshot
        self._at = self._started
        self._complete = True  # all batches were reported

    def after_step(self) -> bool:
        """Look at what was committed; True if that is enough."""
        if self.ended_by is None and (snapshot := self._look()) is not None:
            self.newest = snapshot
            if self._place is not None:
                program = self.engine.checkpoint.read_program() or {}
                publish_snapshot(self._place, snapshot, str(program.get("id")))
            self.found.put(snapshot)
        return self.ended_by is not None

    def _look(self) -> Snapshot | None:
        """A snapshot, if it is time for one."""
        engine = self.engine
        if engine.manifest.batch < 0:
            return None
        if engine.done:
            return self._exact()
        answers = self._take_in()
        progress = answers.blocks.progress
        sure = Confidence(self.looks.confidence, self.looks.interval, engine.manifest.batch + 1)
        due, bound = self._due(progress), self.looks.until.error is not None
        found = answers.estimates(sure) if self._complete and (due or bound) else {}
        self.ended_by = self._bound(found)
        if self.ended_by is None and not due:
            return None
        if self._complete and not found:  # time is up
            found = answers.estimates(sure)
        self._shown, self._at = progress, time.monotonic()
        return self._snapshot(answers, found, progress)

    def _take_in(self) -> Answers:
        """Add what batches reported since the last look."""
        tracker = self._tracker
        if self._answers is None:
            population = tracker.population
            sizes = population.sizes[population.by_place]
            measures = self.looked.windows.family.jobs[0].measures
            self._answers = Answers(self.looked.keys, measures, population.starts, sizes)
        source = self.engine.plan.sources()[0].name
        state = self.engine.manifest.sources.get(source) or SourceState()
        read = state.extra.get("blocks", 0)
        self._answers.read(tracker.population.places[self._read : read])
        self._read = read
        while self._batch <= self.engine.manifest.batch:
            if not self._log.has(self._batch, "blocks"):
                self._complete = False
            elif (given := self._log.read(self._batch, "blocks")) is not None:
                self._answers.add(given)
            for kind, name in self.looked.windows.values.items():
                values = self._log.read(self._batch, kind) if self._complete else None
                if values is not None:
                    self._answers.add_values(name, values)
            self._batch += 1
        return self._answers

    @property
    def _tracker(self) -> BlocksTracker:
        (tracker,) = self.engine.trackers.values()
        assert isinstance(tracker, BlocksTracker)
        return tracker

    def _due(self, progress: float) -> bool:
        """Whether a mark was passed since the last snapshot, or its time has come."""
        last = self._shown or 0.0
        if any(last < mark <= progress * (1 + 1e-9) for mark in self.looks.at):
            return True
        every = self.looks.every
        return every is not None and (time.monotonic() - self._at) * 1e6 >= every

    def _bound(self, found: dict[str, Estimates]) -> str | None:
        """What ends the run now, if anything does."""
        until = self.looks.until
        if until.within is not None and (time.monotonic() - self._started) * 1e6 >= until.within:
            return str(replace(until, error=None))
        if until.error is not None and found:
            within = np.concatenate([_errors(one) <= until.error for one in found.values()])
            if len(within) and within.mean() >= until.share:
                return str(replace(until, within=None))
        return None

    def _snapshot(self, answers: Answers, found: dict[str, Estimates], progress: float) -> Snapshot:
        job = self.looked.windows.family.jobs[0]
        columns = answers.key_columns()
        notes = [
            f"{m.name}: {m.state} has no estimate before all was read"
            for m in job.measures
            if not estimated(m)
        ]
        if not job.measures:
            notes.append(f"{job.name}: a reduce function has no estimate before all was read")
        if not self._complete:
            notes.append("some batches ran without snapshots, so there are no estimates")
        for measure in job.measures:
            one = found.get(measure.name)
            for end, values in zip(ESTIMATE, _columns(one, answers.groups), strict=True):
                columns[measure.name + end] = values
        population, read = self._tracker.population, self._read
        left = population.sizes[read:] / population.sizes.sum()
        held = unseen(len(population.blocks), read, left, 1 - self.looks.confidence)
        return Snapshot(
            progress,
            pa.table(columns),
            exact=False,
            confidence=self.looks.confidence,
            promise=PROMISES[self.looks.interval],
            unseen=Unseen(held.blocks, held.share) if self.looked.keys else None,
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
            notes=tuple(notes),
        )

    def _exact(self) -> Snapshot:
        """The answer of the whole input, as it left the window."""
        batch = self.engine.manifest.batch
        while batch >= 0 and not self._log.has(batch, "exact"):
            batch -= 1
        if batch < 0:
            raise RunError(
                "snapshots(): this checkpoint is complete, and its last batches ran without "
                "snapshots; its answer is in the sinks of the flow"
            )
        table = self._log.read(batch, "exact")
        job = self.looked.windows.family.jobs[0]
        measures = [m.name for m in job.measures]
        if table is None:
            table = pa.table({name: pa.nulls(0) for name in (*self.looked.keys, *measures)})
        columns: dict[str, Any] = {name: table.column(name) for name in self.looked.keys}
        if not measures:
            columns = {name: table.column(name) for name in table.column_names}
        for name in measures:
            columns |= {name + end: table.column(name) for end in ESTIMATE}
        self.ended_by = "all was read"
        return Snapshot(
            1.0,
            pa.table(columns),
            exact=True,
            confidence=1.0,
            promise="exact",
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
        )


def _errors(found: Estimates) -> Any:
    """How far bounds are from estimates, as a share of these; infinite where there are none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.maximum(found.upper - found.value, found.value - found.lower)
        errors = np.where(far == 0, 0.0, far / np.abs(found.value))
    return np.where(np.isnan(errors), np.inf, errors)


def _columns(found: Estimates | None, rows: int) -> list[pa.Array]:
    """An estimate and its bounds as columns, null where there are none."""
    if found is None:
        return [pa.nulls(rows, pa.float64())] * 3
    values = (found.value, found.lower, found.upper)
    return [pa.array(one, pa.float64(), mask=~np.isfinite(one)) for one in values]


def trackers_of(looks: Looks) -> Callable[..., Any]:
    """How sources are opened: in a random order of blocks."""
    return partial(make_tracker, looks=looks)
