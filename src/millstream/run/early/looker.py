"""Early answers: a flow over stored files that is looked at while it runs.

The engine, its commits and its results are those of any run. Different are only the source, which
is read in random order (`run/sources/files/blocks.py`), and the window that is looked at, which
also reports what each block gave (`operators/early/`). A look is taken before a batch is committed,
so that rows of a snapshot that go to sinks are committed with it; it is told to others afterwards.
"""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.api.early import Looks, Snapshot, Unseen
from millstream.errors import RunError
from millstream.operators.batch import Batch, Control
from millstream.operators.early.logs import Log
from millstream.ops.estimating.estimates import Estimates
from millstream.ops.estimating.intervals import PROMISES
from millstream.ops.estimating.unseen import unseen
from millstream.run.batches.engine import Engine
from millstream.run.early.bounding import Bounded
from millstream.run.early.gathering import Gathered
from millstream.run.early.snapshots import (
    estimated_table,
    exact_table,
    given,
    notes_of,
    told_of_tails,
)
from millstream.run.early.target import Target
from millstream.run.tasks.splits import Item
from millstream.serve.answers import check_run, publish_snapshot
from millstream.serve.drawing import drawn, shortened
from millstream.state.storage import open_storage

_LONGER = 2  # times as long as batches of other runs


class Looker:
    """Looks at what was read: estimates from blocks, or the exact answer.

    It works in the thread of the engine; who waits for snapshots takes them out of `found`, which
    ends with None.
    """

    def __init__(self, engine: Engine, target: Target, looks: Looks) -> None:
        self.engine, self.target, self.looks = engine, target, looks
        self.found: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self.newest: Snapshot | None = None  # the last one that was told
        self.ended_by: str | None = None
        self.taken: list[tuple[float, int]] = []  # looks before the end: the share, and the batch
        self._told: list[Snapshot] = []  # those before it, cut short
        self._made: Snapshot | None = None  # not committed yet
        self._place = None if looks.publish is None else open_storage(looks.publish)
        self._results = Log(engine.checkpoint.store, target.answers.name)
        self._gathered = Gathered(engine, target, looks)
        self._bounded = Bounded(engine, self._gathered, looks.until)
        self._shown = 0.0  # progress of the last look
        self._at = time.monotonic()  # when it was taken
        self._first: tuple[float, float] | None = None  # when a look first had how much
        self._dead = 0  # letters so far
        engine.beside = self.before_commit
        if looks.every is None and looks.until.within is None:
            # Nobody waits for the next batch, but for a share of the input or for its end.
            engine.pace.seconds *= _LONGER

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All that was told, for the live page."""
        if self.newest is None:
            return None
        return drawn(self.target.answers.step, self._told, len(self.newest.table))

    @property
    def _run(self) -> str:
        """What the run is known by."""
        return str((self.engine.checkpoint.read_program() or {}).get("id"))

    # -- when the engine calls ------------------------------------------------------------------

    def at_start(self) -> bool:
        """Look before the first step: a kill may have come between a commit and its look."""
        if self._place is not None:
            check_run(self._place, self._run)  # not after hours of reading
        manifest = self.engine.manifest
        self._dead = manifest.dead
        if manifest.complete or manifest.batch < 0 or not self._gathered.draws:
            return False
        state = manifest.source(self.engine.plan.sources()[0].name)
        self._gathered.tracker.poll()
        self._gathered.catch_up()
        self._made = self._look(state.extra.get("blocks", 0))
        self._shown = self._gathered.progress
        return self.after_step()

    def before_commit(self, batch: Batch, controls: list[Control]) -> list[Item]:
        """Take a look if it is time for one; gives its rows, for sinks that are to get them."""
        gathered = self._gathered
        self._dead = self.engine.manifest.dead + sum(len(one.dead) for one in controls)
        if self.engine.trackers and all(one.ended for one in self.engine.trackers.values()):
            more = self._written_to() if gathered.draws else []
            self._made = self._exact(self.target.answers.reported(controls, "exact"), more)
        elif gathered.draws:
            gathered.catch_up()
            gathered.add(controls)
            self._made = self._look(gathered.tracker.taken)
        if self._made is None or not self.target.answers.held:
            return []
        types = gathered.answers.types if gathered.draws else {}
        return list(given(self.target, batch, self._made, types))

    def after_step(self) -> bool:
        """Tell what was committed; True if that is enough."""
        made, self._made = self._made, None
        if made is None and self.engine.done and self.newest is None:
            made = self._exact(self._kept_results(), [])
        if made is not None:
            self.newest = made
            if not made.exact:
                self.taken.append((made.progress, self.engine.manifest.batch))
            self._told.append(shortened(made))
            if self._place is not None:
                publish_snapshot(self._place, made, self._run)
            self.found.put(made)
        return self.ended_by is not None

    def at_stop(self) -> None:
        """Look at what was read up to here, if that is more than at the last look."""
        gathered, over = self._gathered, self.ended_by is not None or self.engine.done
        if over or not gathered.draws or gathered.progress <= self._shown:
            return
        self.ended_by, self._shown = "a stop", gathered.progress
        self._made = self._snapshot(gathered.estimates())
        self.after_step()

    # -- before all was read --------------------------------------------------------------------

    def _look(self, read: int) -> Snapshot | None:
        """A snapshot after so many blocks, if it is time for one."""
        gathered, bounded = self._gathered, self._bounded
        gathered.count(read)
        self._first = self._first or (time.monotonic(), gathered.progress)
        due, late = self._due(), bounded.by_time()
        asked = due or late is not None or self.looks.until.error is not None
        found = gathered.estimates() if asked else {}
        self.ended_by = late or bounded.by_error(found)
        if self.ended_by is None and not due:
            return None
        self._shown, self._at = gathered.progress, time.monotonic()
        return self._snapshot(found)

    def _due(self) -> bool:
        """Whether a share was passed since the last look, or its time has come."""
        progress = self._gathered.progress * (1 + 1e-9)
        if any(self._shown < mark <= progress for mark in self.looks.at):
            return True
        every = self.looks.every
        return every is not None and (time.monotonic() - self._at) * 1e6 >= every

    def _snapshot(self, found: dict[str, Estimates]) -> Snapshot:
        looks, gathered = self.looks, self._gathered
        answers, population = gathered.answers, gathered.population
        notes = notes_of(self.target)
        if answers.scaled:
            notes.append(f"{', '.join(answers.scaled)}: scaled by the metric that was given")
        if not gathered.complete:
            notes.append("some batches ran without snapshots, so there are no estimates")
        if answers.blocks.one_left_is_large:
            most = answers.blocks.largest_left / answers.blocks.size
            notes.append(
                f"no bounds yet: a file that cannot be cut, with {most:.0%} of the input, was not "
                "read; the others do not say what is in it"
            )
        heavy = () if self.target.top is not None else answers.heavy
        notes += told_of_tails(heavy, looks.confidence)
        notes += self._bounded.notes(found)
        notes += self._set_aside()
        left = population.sizes[gathered.read :] / population.sizes.sum()
        held = unseen(len(population.blocks), gathered.read, left, 1 - looks.confidence)
        return Snapshot(
            gathered.progress,
            estimated_table(self.target, looks, answers, found, gathered.batches),
            exact=False,
            confidence=looks.confidence,
            promise=PROMISES[looks.interval],
            unseen=Unseen(held.blocks, held.share, self._holds()) if self.target.keys else None,
            ended_by=self.ended_by,
            elapsed=self._bounded.elapsed,
            notes=tuple(notes),
            left=self._left(),
            heavy=heavy,
        )

    def _holds(self) -> dict[str, float]:
        """What a group that was in no block has at most of every count and sum, where known."""
        answers, sure = self._gathered.answers, self._gathered.sure
        most = {name: answers.unseen_total(name, sure) for name in answers.totals}
        return {name: most for name, most in most.items() if np.isfinite(most)}

    def _left(self) -> float | None:
        """Seconds until all is read, by how fast it went since the first look."""
        assert self._first is not None
        (since, before), progress = self._first, self._gathered.progress
        if self.ended_by is not None or progress <= before:
            return None
        return (time.monotonic() - since) * (1 - progress) / (progress - before)

    # -- once all was read ----------------------------------------------------------------------

    def _exact(self, table: pa.Table | None, more: list[str]) -> Snapshot:
        """The answer of the whole input, as it left the window, and what else is to be said."""
        self.ended_by = "all was read"
        return Snapshot(
            1.0,
            exact_table(self.target, self.looks, table),
            exact=True,
            confidence=1.0,
            promise="exact",
            ended_by=self.ended_by,
            elapsed=self._bounded.elapsed,
            notes=(*self._set_aside(), *more),
        )

    def _set_aside(self) -> list[str]:
        """What no answer is made of, though it was read."""
        if not self._dead:
            return []
        are = "record is a dead letter" if self._dead == 1 else "records are dead letters"
        return [f"{self._dead:,} {are} (in the checkpoint), and not in the answer"]

    def _written_to(self) -> list[str]:
        """What was added to files since blocks were drawn; a file that is another now is refused.

        Blocks of it that were read before and after have records of both.
        """
        rewritten, grown = self._gathered.population.written_to()
        if rewritten:
            files = f"{len(rewritten)} file{'s' * (len(rewritten) != 1)}"
            raise RunError(
                f"snapshots(): {files} changed while blocks were read (the first is "
                f"{rewritten[0]}), so there is no exact answer. Begin again with a new checkpoint, "
                "on files that nobody writes to"
            )
        if not grown:
            return []
        what = grown[0] if len(grown) == 1 else f"{len(grown):,} files"
        return [f"{what} grew while blocks were read; what was added is not in the answer"]

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
