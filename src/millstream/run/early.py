"""Early answers: a flow over stored files that is looked at while it runs.

The engine, its commits and its results are those of any run. Different are only the source, which
is read in random order (`blocks.py`), and the window that is looked at, which also reports what
each block gave (`operators/early/`). What is looked at is always committed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.early import ESTIMATE, Looks, Snapshot, Unseen
from millstream.errors import RunError
from millstream.operators.early.logs import Log
from millstream.ops.estimating.answers import Answers, estimated
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.intervals import PROMISES
from millstream.ops.estimating.places import places
from millstream.ops.estimating.unseen import unseen
from millstream.ops.keys import factorize, key_arrays
from millstream.run.blocks import BlocksTracker
from millstream.run.engine import Engine
from millstream.run.looked import Looked, Top
from millstream.run.sources import make_tracker
from millstream.serve.answers import publish_snapshot
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage


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
        self._results = Log(engine.checkpoint.store, looked.answers.name)
        self._answers: Answers | None = None
        self._read = self._batch = 0  # blocks and batches taken in so far
        self._started = time.monotonic()
        self._shown: float | None = None  # progress of the last snapshot
        self._at = self._started
        self._complete = True  # all batches were reported

    def at_start(self) -> bool:
        """The same before the first step: a kill may have come between a commit and its look."""
        return not self.engine.manifest.complete and self.after_step()

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
        tracker.poll()
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
        table = pa.table(columns)
        if self.looked.top is not None and found:
            table = self._top(self.looked.top, answers, table)
        population, read = self._tracker.population, self._read
        left = population.sizes[read:] / population.sizes.sum()
        held = unseen(len(population.blocks), read, left, 1 - self.looks.confidence)
        return Snapshot(
            progress,
            table,
            exact=False,
            confidence=self.looks.confidence,
            promise=PROMISES[self.looks.interval],
            unseen=Unseen(held.blocks, held.share) if self.looked.keys else None,
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
            notes=tuple(notes),
        )

    def _top(self, top: Top, answers: Answers, table: pa.Table) -> pa.Table:
        """The ranking as far as it is known, with the places that can no longer change."""
        looks, groups = self.looks, max(1, answers.groups)
        sure = Confidence(1 - (1 - looks.confidence) / (groups + 1), looks.interval, self._batch)
        bounds = answers.estimates_of(top.by, sure)
        beyond = answers.unseen_total(top.by, sure)
        owner, _ = factorize(key_arrays(table, top.keys)) if top.keys else (None, None)
        owner = np.zeros(len(table), np.int64) if owner is None else owner
        ties = np.argsort(np.asarray(pc.rank(table.column(top.column), tiebreaker="first")))
        value, lower, upper = (one[ties] for one in (bounds.value, bounds.lower, bounds.upper))
        found = places(owner[ties], value, lower, upper, beyond, top.k)
        table = table.take(pa.array(ties[found.rows]))
        kept = [*top.keys, top.column, *(top.by + end for end in ESTIMATE)]
        return (
            table.select(kept)
            .add_column(len(top.keys), "place", pa.array(found.place))
            .append_column("settled", pa.array(found.settled))
        )

    def _exact(self) -> Snapshot:
        """The answer of the whole input, as it left the window."""
        batch = self.engine.manifest.batch
        while batch >= 0 and not self._results.has(batch, "exact"):
            batch -= 1
        if batch < 0:
            raise RunError(
                "snapshots(): this checkpoint is complete, and its last batches ran without "
                "snapshots; its answer is in the sinks of the flow"
            )
        table = self._results.read(batch, "exact")
        job, top = self.looked.answers.family.jobs[0], self.looked.top
        measures = [m.name for m in job.measures]
        if table is None:
            table = pa.table({name: pa.nulls(0) for name in (*job.keys, *measures)})
        self.ended_by = "all was read"
        return Snapshot(
            1.0,
            _with_bounds(table, measures) if top is None else _as_places(top, table),
            exact=True,
            confidence=1.0,
            promise="exact",
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
        )


def _with_bounds(table: pa.Table, measures: list[str]) -> pa.Table:
    """Exact values are their own bounds."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        columns |= {
            name + end: table.column(name) for end in ESTIMATE if name in measures or not end
        }
    return pa.table(columns)


def _as_places(top: Top, table: pa.Table) -> pa.Table:
    """An exact ranking, one row for each place."""
    rows = [
        {
            **{name: row[name] for name in top.keys},
            "place": place,
            top.column: one["value"],
            **{top.by + end: one["total"] for end in ESTIMATE},
            "settled": True,
        }
        for row in table.to_pylist()
        for place, one in enumerate(row[top.name], 1)
    ]
    return pa.Table.from_pylist(rows)


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
