"""Early answers: a flow over stored files that is looked at while it runs.

The engine, its commits and its results are those of any run. Different are only the source, which
is read in random order (`blocks.py`), and the window that is looked at, which also reports what
each block gave (`operators/early/`). A look is taken before a batch is committed, so that rows of a
snapshot that go to sinks are committed with it; it is told to others afterwards.
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

from millstream.api.early import Looks, Snapshot, Unseen
from millstream.errors import RunError
from millstream.operators.batch import Batch, Control
from millstream.operators.early.logs import Log
from millstream.ops.estimating.answers import Answers
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.intervals import PROMISES
from millstream.ops.estimating.unseen import unseen
from millstream.plan.stages import Plan
from millstream.run.blocks import BlocksTracker
from millstream.run.engine import Engine
from millstream.run.looked import Looked
from millstream.run.snapshots import estimated_table, exact_table, given, notes_of
from millstream.run.sources import make_tracker
from millstream.run.splits import Item
from millstream.run.tracking import Tracker
from millstream.serve.answers import publish_snapshot
from millstream.serve.drawing import drawn, shortened
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage

_LONGER = 2  # times as long as batches of other runs
_MARGIN = 1.05  # more blocks than seem to be enough


class Looker:
    """Looks at what was read: estimates from blocks, or the exact answer.

    It works in the thread of the engine; who waits for snapshots takes them out of `found`, which
    ends with None.
    """

    def __init__(self, engine: Engine, looked: Looked, looks: Looks) -> None:
        self.engine, self.looked, self.looks = engine, looked, looks
        self.found: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self.newest: Snapshot | None = None  # the last one that was told
        self._told: list[Snapshot] = []  # those before it, cut short
        self.ended_by: str | None = None
        self._place = None if looks.publish is None else open_storage(looks.publish)
        self._log = Log(engine.checkpoint.store, looked.windows.name)
        self._results = Log(engine.checkpoint.store, looked.answers.name)
        self._answers: Answers | None = None
        self._read = self._batch = 0  # blocks and batches taken in so far
        self._started = time.monotonic()
        self._made: Snapshot | None = None  # not committed yet
        self._shown = 0.0  # progress of the last look
        self._at = self._started
        self._complete = True  # all batches were reported
        self._dead = 0  # letters so far
        self._first: tuple[float, float] | None = None  # when a look first had how much
        engine.beside = self.before_commit
        if looks.every is None and looks.until.within is None:
            # Nobody waits for the next batch, but for a share of the input or for its end.
            engine.batch_seconds *= _LONGER

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All that was told, for the live page."""
        if self.newest is None:
            return None
        return drawn(self.looked.answers.step, self._told, len(self.newest.table))

    # -- when the engine calls ------------------------------------------------------------------

    def at_start(self) -> bool:
        """Look before the first step: a kill may have come between a commit and its look."""
        manifest = self.engine.manifest
        self._dead = manifest.dead
        if manifest.complete or manifest.batch < 0 or not self._draws:
            return False
        state = manifest.sources.get(self.engine.plan.sources()[0].name) or SourceState()
        self._tracker.poll()
        self._catch_up()
        self._made = self._look(state.extra.get("blocks", 0))
        self._shown = self._progress
        return self.after_step()

    def before_commit(self, batch: Batch, controls: list[Control]) -> list[Item]:
        """Take a look if it is time for one; gives its rows, for sinks that are to get them."""
        self._dead = self.engine.manifest.dead + sum(len(one.dead) for one in controls)
        if self.engine.trackers and all(one.ended for one in self.engine.trackers.values()):
            self._made = self._exact(self.looked.answers.reported(controls, "exact"))
        elif self._draws:
            self._catch_up()
            self._take_in(partial(self.looked.windows.reported, controls))
            self._made = self._look(self._tracker.taken)
        if self._made is None or not self.looked.answers.held:
            return []
        whole = self._known.whole if self._draws else set()
        return list(given(self.looked, batch, self._made, whole))

    def after_step(self) -> bool:
        """Tell what was committed; True if that is enough."""
        made, self._made = self._made, None
        if made is None and self.engine.done and self.newest is None:
            made = self._exact(self._kept_results())
        if made is not None:
            self.newest = made
            self._told.append(shortened(made))
            if self._place is not None:
                program = self.engine.checkpoint.read_program() or {}
                publish_snapshot(self._place, made, str(program.get("id")))
            self.found.put(made)
        return self.ended_by is not None

    # -- taking in ------------------------------------------------------------------------------

    @property
    def _draws(self) -> bool:
        """Whether blocks are read at random; who only tries a flow reads its first records."""
        return all(isinstance(one, BlocksTracker) for one in self.engine.trackers.values())

    @property
    def _tracker(self) -> BlocksTracker:
        (tracker,) = self.engine.trackers.values()
        assert isinstance(tracker, BlocksTracker)
        return tracker

    @property
    def _known(self) -> Answers:
        """What blocks gave so far."""
        if self._answers is None:
            population = self._tracker.population
            sizes = population.sizes[population.by_place]
            measures = self.looked.windows.job.measures
            self._answers = Answers(
                self.looked.keys,
                measures,
                population.starts,
                sizes,
                self.looks.metric,
                dict(self.looks.ratios),
            )
        return self._answers

    @property
    def _progress(self) -> float:
        return self._known.blocks.progress

    def _catch_up(self) -> None:
        """Add what batches before this run reported."""
        while self._batch <= self.engine.manifest.batch:
            if self._log.has(self._batch, "blocks"):
                self._take_in(partial(self._log.read, self._batch))
            else:
                self._complete = False
                self._batch += 1

    def _take_in(self, reported: Callable[[str], pa.Table | None]) -> None:
        """Add what one batch reported."""
        table = reported("blocks")
        if table is not None:
            self._known.add(table)
        for kind, name in self.looked.windows.values.items():
            values = reported(kind)
            if values is not None:
                self._known.add_values(name, values)
        self._batch += 1

    # -- looking --------------------------------------------------------------------------------

    def _look(self, read: int) -> Snapshot | None:
        """A snapshot after so many blocks, if it is time for one."""
        answers, population = self._known, self._tracker.population
        answers.read(population.places[self._read : read])
        self._read = read
        self._first = self._first or (time.monotonic(), self._progress)
        sure = Confidence(self.looks.confidence, self.looks.interval, self._batch)
        due, bound = self._due(), self.looks.until.error is not None
        found = self._estimates(sure) if self._complete and (due or bound) else {}
        self.ended_by = self._bound(found)
        if self.ended_by is None and not due:
            return None
        if self._complete and not found:  # time is up
            found = self._estimates(sure)
        self._shown, self._at = self._progress, time.monotonic()
        return self._snapshot(found)

    def _estimates(self, sure: Confidence) -> dict[str, Estimates]:
        estimate = partial(self._known.estimates, sure)
        if self.looks.metric is None:
            return estimate()
        return self.engine.hands.ask("snapshots(metric=)", estimate)

    def _due(self) -> bool:
        """Whether a share was passed since the last look, or its time has come."""
        progress = self._progress * (1 + 1e-9)
        if any(self._shown < mark <= progress for mark in self.looks.at):
            return True
        every = self.looks.every
        return every is not None and (time.monotonic() - self._at) * 1e6 >= every

    def _bound(self, found: dict[str, Estimates]) -> str | None:
        """What ends the run now, if anything does."""
        until = self.looks.until
        if until.within is not None and (time.monotonic() - self._started) * 1e6 >= until.within:
            return str(replace(until, error=None))
        if until.error is not None and found:
            errors = np.sort(np.concatenate([_errors(one) for one in found.values()]))
            if len(errors):
                error = float(errors[int(np.ceil(until.share * len(errors))) - 1])
                if error <= until.error:
                    return str(replace(until, within=None))
                self._aim_at(error / until.error)
        return None

    def _aim_at(self, times: float) -> None:
        """Let the next batch read as much as makes errors so many times smaller, if it may be so.

        They go with the root of the number of blocks. A batch more than needed costs as much as
        some hundred thousand rows.
        """
        engine, tracker = self.engine, self._tracker
        count = len(tracker.population.blocks)
        if not np.isfinite(times):
            tracker.aim = None
            return
        draws = self._known.blocks.draws * times**2
        tracker.aim = int(np.ceil(_MARGIN * draws * count / (count + draws)))
        more = tracker.population.blocks[self._read : tracker.aim]
        weight = sum(tracker.weigh(tracker.population.split(0, block)) for block in more)
        if self.looks.until.within is not None:
            return  # a batch that is under way when time is up is waited for
        most = engine.settings.batch_rows
        engine.rows_target = min(most, max(engine.rows_target, int(weight / engine.cores) + 1))

    def _snapshot(self, found: dict[str, Estimates]) -> Snapshot:
        looks, population, read = self.looks, self._tracker.population, self._read
        notes = notes_of(self.looked)
        if self._known.scaled:
            notes.append(f"{', '.join(self._known.scaled)}: scaled by the metric that was given")
        if not self._complete:
            notes.append("some batches ran without snapshots, so there are no estimates")
        notes += self._set_aside()
        left = population.sizes[read:] / population.sizes.sum()
        held = unseen(len(population.blocks), read, left, 1 - looks.confidence)
        return Snapshot(
            self._progress,
            estimated_table(self.looked, looks, self._known, found, self._batch),
            exact=False,
            confidence=looks.confidence,
            promise=PROMISES[looks.interval],
            unseen=Unseen(held.blocks, held.share, self._holds()) if self.looked.keys else None,
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
            notes=tuple(notes),
            left=self._left(),
        )

    def _holds(self) -> dict[str, float]:
        """What a group that was in no block has at most of every count and sum, where known."""
        sure = Confidence(self.looks.confidence, self.looks.interval, self._batch)
        most = {name: self._known.unseen_total(name, sure) for name in self._known.totals}
        return {name: most for name, most in most.items() if np.isfinite(most)}

    def _left(self) -> float | None:
        """Seconds until all is read, by how fast it went since the first look."""
        assert self._first is not None
        (since, before), progress = self._first, self._progress
        if self.ended_by is not None or progress <= before:
            return None
        return (time.monotonic() - since) * (1 - progress) / (progress - before)

    def _exact(self, table: pa.Table | None) -> Snapshot:
        """The answer of the whole input, as it left the window."""
        self.ended_by = "all was read"
        return Snapshot(
            1.0,
            exact_table(self.looked, self.looks, table),
            exact=True,
            confidence=1.0,
            promise="exact",
            ended_by=self.ended_by,
            elapsed=time.monotonic() - self._started,
            notes=tuple(self._set_aside()),
        )

    def _set_aside(self) -> list[str]:
        """What no answer is made of, though it was read."""
        if not self._dead:
            return []
        are = "record is a dead letter" if self._dead == 1 else "records are dead letters"
        return [f"{self._dead:,} {are} (in the checkpoint), and not in the answer"]

    def _kept_results(self) -> pa.Table | None:
        """The answer that an earlier run came to."""
        batch = self.engine.manifest.batch
        while batch >= 0 and not self._results.has(batch, "exact"):
            batch -= 1
        if batch < 0:
            raise RunError(
                "snapshots(): this checkpoint is complete, and its last batches ran without "
                "snapshots; its answer is in the sinks of the flow"
            )
        return self._results.read(batch, "exact")


def _errors(found: Estimates) -> Any:
    """How far bounds are from estimates, as a share of these; infinite where there are none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.maximum(found.upper - found.value, found.value - found.lower)
        errors = np.where(far == 0, 0.0, far / np.abs(found.value))
    return np.where(np.isnan(errors), np.inf, errors)


def engine_of(
    plan: Plan,
    place: Checkpoint,
    settings: Settings,
    looking: tuple[Looks, Looked] | None,
    trackers: Callable[..., Tracker] | None = None,
) -> tuple[Engine, Looker | None]:
    """An engine for a plan, and who looks at it, if somebody does.

    trackers: how sources are opened; if it is not said and somebody looks, in a random order of
    blocks.
    """
    if looking is None:
        return Engine(plan, place, settings, trackers=trackers or make_tracker), None
    looks, looked = looking
    by_blocks = partial(make_tracker, looks=looks)
    engine = Engine(looked.plan, place, settings, trackers=trackers or by_blocks)
    return engine, Looker(engine, looked, looks)
