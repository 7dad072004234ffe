"""The engine: plans batches, has them run, commits them. It knows no Spark.

There is no write-ahead log: a batch that was not committed is simply planned again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from millstream.errors import RunError
from millstream.operators.batch import Batch, Control
from millstream.plan.stages import Plan
from millstream.run import faults
from millstream.run.batches.attempts import Attempts, controls_of
from millstream.run.batches.batching import plan_batch
from millstream.run.batches.committing import Commits, Reported
from millstream.run.batches.footing import Footing
from millstream.run.batches.intake import Intake, Taken
from millstream.run.batches.noticing import Noticing
from millstream.run.batches.outlook import Outlook
from millstream.run.batches.pacing import Pace
from millstream.run.batches.patience import Patience
from millstream.run.batches.rerunning import go_on
from millstream.run.batches.warming import Warmth, keep_warm
from millstream.run.outputs.bundling import overdue
from millstream.run.outputs.handing import Hands
from millstream.run.pressure.memory import SHARE, Memory, give_back, of_machine
from millstream.run.pressure.queues import Costs
from millstream.run.pressure.scheduler import Grants, Room, Scheduler
from millstream.run.program.program import LEAST_SHARDS
from millstream.run.sources.received.spool import PATIENCE
from millstream.run.sources.shedding import held_sources
from millstream.run.sources.trackers import make_tracker
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.executors import Executor
from millstream.run.tasks.splits import AnySplit, Item
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest
from millstream.state.traffic import Traffic
from millstream.state.unflushed import is_ahead_of_flush

_LOOKS = (0.0, 0.1, 0.5, 2.0)  # seconds before followed files that have moved are looked for again


class Engine:
    """A flow on its checkpoint: every `step` is at most one committed batch."""

    def __init__(
        self,
        plan: Plan,
        checkpoint: Checkpoint,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        trackers: Callable[..., Tracker] = make_tracker,
    ) -> None:
        self.checkpoint, self.settings = checkpoint, settings
        self.done = False
        self.patience = Patience(settings.disk_full_wait)
        self.noticing = Noticing(settings, lambda: self.patience.on_pause())
        self.notes = self.noticing.notes
        # What somebody makes of a batch before it is committed, to be committed with it.
        self.beside: Callable[[Batch, list[Control]], list[Item]] = lambda batch, controls: []
        self.moved = Traffic()  # of the state, in the last batch
        self.warmth: Warmth | None = None
        self.hands = Hands(settings.function_micros)
        self.pace = Pace(settings)
        self.intake = Intake(checkpoint.store, trackers)
        self.trackers = self.intake.trackers
        self.attempts = Attempts()
        self.footing = Footing(plan, checkpoint, settings.retain, self.patience)
        self.outlook = Outlook(self.footing, self.intake, self.pace, settings, self.hands, clock)
        self._commits = Commits(self.footing, self.intake, self.outlook, settings, self.hands)
        self.scheduler = Scheduler(settings.policy, plan.flow)
        self.costs = Costs(self.manifest)
        self.memory = Memory(settings.memory_bytes or int(SHARE * of_machine()))

    @property
    def plan(self) -> Plan:
        """Of the program that runs."""
        return self.footing.plan

    @property
    def manifest(self) -> Manifest:
        """Of the last batch."""
        return self.footing.manifest

    # -- beginning and end ----------------------------------------------------------------------

    def open(self, cores: int, least_shards: int = LEAST_SHARDS) -> None:
        """Take the checkpoint over: check the program, finish the last batch, drop leftovers."""
        self.keep_warm()
        self.notes += self.footing.open(self.settings, self.hands, cores, least_shards)
        self.costs = Costs(self.manifest)
        self.outlook.begin()
        self.intake.open(self.plan, self.manifest)

    def keep_warm(self) -> Warmth:
        """What is kept in memory beside the checkpoint, from the first time it is asked for."""
        if self.warmth is None:
            self.warmth = keep_warm(self.checkpoint.state, self.settings)
        return self.warmth

    def replace(
        self, plan: Plan, prepare: Callable[[], None], *, dry_run: bool = False
    ) -> list[str]:
        """Go on with another plan, between two batches; gives what is to be said of the change."""
        notes = self.footing.replace(plan, prepare, dry_run=dry_run)
        if not dry_run:
            self.notes += notes
        return notes

    def close(self) -> None:
        """Stop receivers and give the checkpoint back; raises if something received is lost."""
        lost = self.intake.close(min(PATIENCE, self.settings.stop_timeout / 4))
        self.footing.close()
        self.hands.close()
        if self.warmth is not None:
            self.warmth.close()
        self.checkpoint.close()
        if lost:
            raise RunError("; ".join(lost))

    # -- one batch ------------------------------------------------------------------------------

    def step(self, executor: Executor) -> bool:
        """Run and commit one batch if there is anything to do; False if there was nothing."""
        self.footing.patiently(partial(self._poll, executor))
        waiting = self.intake.waiting()
        self.outlook.looked(waiting)
        fresh = {name for name, much in waiting.items() if much}
        if not (fresh or self.outlook.wakes() or self.footing.dropped or self._overdue()):
            self.done = self.intake.ended
            return False
        self.noticing.note(go_on(self.plan, self.manifest, fresh, self.settings.incremental))
        self.pace.begin(executor.cores)
        grants = self._request(waiting)
        held = held_sources(self.plan, self.outlook.known)
        taken = self.intake.take(waiting, grants.sources, held, self.pace.cores)
        started = time.perf_counter()
        batch, items = self._tasks(executor, taken, grants, held, sum(waiting.values()))
        faults.crash_point("tasks-done", batch.number)
        found = self._reported(batch, items)
        worked = self.costs.learn(self.plan, found.controls, taken.sizes)
        self.memory.learn(max(worked, grants.size), found.controls)
        self._commit(executor, found)
        self.outlook.all_taken(taken.emptied)
        self._learn(found.controls, taken, time.perf_counter() - started, executor.waited)
        if self.memory.tight:
            give_back()
        self.noticing.say(self.memory.cramped)
        self.done = self.manifest.complete
        return True

    def bring_out(self, executor: Executor) -> None:
        """Let readers see what waits for a size or in memory, by a batch that reads nothing."""
        unflushed = any(map(is_ahead_of_flush, self.manifest.segments.values()))
        if not self.manifest.waiting and not unflushed:
            return
        self.outlook.ending = True
        try:
            batch = self._batch(1, {})
            items = self._run(executor, batch, {name: [] for name in self.trackers})
            self._commit(executor, self._reported(batch, items), last=True)
        finally:
            self.outlook.ending = False

    def _poll(self, executor: Executor) -> None:
        self.intake.poll(executor)
        noticing, outlook = self.noticing, self.outlook
        told = list(noticing.silence(self.trackers, outlook.clock()))
        now = outlook.now()
        outlook.attention.check(now)
        since = outlook.attention.since
        told += noticing.idleness(self.plan, self.manifest, self.trackers, since, now)
        noticing.say(*told, outlook.wrong)

    def _overdue(self) -> bool:
        return overdue(self.manifest, self.footing.outside.sinks, self.outlook.wall())

    def _request(self, waiting: dict[str, int]) -> Grants:
        """Ask the scheduler who gets the room of a batch."""
        room = Room(*self.pace.room, self.memory.room, self.memory.pressure)
        known, holdings = self.outlook.known(), self.footing.holdings()
        return self.scheduler.request(
            self.plan, known, holdings, self.costs, waiting, room, self.hands.ask
        )

    def _tasks(
        self, executor: Executor, taken: Taken, grants: Grants, held: set[str], pending: int
    ) -> tuple[Batch, list[Item]]:
        """Plan a batch and run its tasks; again if something moved before it was read."""
        looks = iter(_LOOKS)
        while True:
            batch = self._batch(self.pace.tasks(pending), grants.holds)
            faults.crash_point("batch-planned", batch.number)
            try:
                with self.memory.watching():
                    return batch, self._run(executor, batch, taken.splits)
            except (RunError, OSError) as error:
                moving, pause = self.intake.moving(self.plan, error), next(looks, None)
                if not moving or pause is None:
                    raise
                time.sleep(pause)
                self.footing.discard(batch)
                for name in moving - held:
                    again = self.intake.look_again(name, self.plan, self.manifest, executor)
                    taken.splits[name] = again.take(*grants.sources[name], self.pace.cores)

    def _batch(self, tasks: int, held: dict[str, int]) -> Batch:
        warm, trims = self.keep_warm().kept, self.memory.tight
        return plan_batch(self.footing, self.outlook, self.settings, tasks, held, warm, trims=trims)

    def _run(
        self, executor: Executor, batch: Batch, splits: dict[str, list[AnySplit]]
    ) -> list[Item]:
        def run(batch: Batch, tasks: list[list[AnySplit]]) -> list[Item]:
            return self.footing.patiently(partial(executor.run, batch, tasks), batch)

        return self.attempts.run(run, batch, splits, self.trackers, self.footing.discard)

    def _reported(self, batch: Batch, items: list[Item]) -> Reported:
        items = [*items, *self.beside(batch, controls_of(items))]
        return Reported(batch, controls_of(items), items, self.attempts.readers)

    def _commit(self, executor: Executor, found: Reported, *, last: bool = False) -> None:
        self._commits.commit(executor, found, self.costs, last=last)
        self.keep_warm().committed(self.manifest.files)
        self.moved = sum((control.moved for control in found.controls), Traffic())

    def _learn(self, controls: list[Control], taken: Taken, seconds: float, waited: float) -> None:
        """Take in what a batch came to."""
        rows = sum(control.rows_in for control in controls)
        shed = max((control.shedding for control in controls), default=0.0)
        self.attempts.spreading.learn(controls)
        self.intake.learn(controls, [name for name, one in taken.splits.items() if one])
        self.pace.learn(rows, seconds, shed + waited, first=self.manifest.batch == 0)
