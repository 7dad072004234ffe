"""The engine: plans batches, has them run, commits them. It knows neither Spark nor threads.

A batch is committed by the rename of its manifest and by nothing else. Whatever a batch wrote
before is garbage until then; whatever is to be published afterwards is named in the manifest, so
that publishing can be repeated. There is no write-ahead log: a batch that was not committed is
simply planned again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from millstream.api.sinks import FileSink
from millstream.api.sources import Files
from millstream.api.sources.kafka import Kafka
from millstream.errors import CheckpointError, RunError
from millstream.graph import nodes
from millstream.io.bundles import put_together
from millstream.io.kafka.consuming import GONE
from millstream.io.prints import MOVED
from millstream.operators.batch import Batch, Control, held_back
from millstream.operators.protocol import Evicting, Known, Times
from millstream.ops.chunks import concat, decode_block, in_place
from millstream.ops.fidelity import standings
from millstream.ops.overload import Shed
from millstream.ops.progress import SourceProgress
from millstream.ops.records import DeadLetter
from millstream.plan.stages import Plan
from millstream.run import faults, fitting
from millstream.run.adopting import adopt, without_dropped
from millstream.run.again import go_on
from millstream.run.agreeing import disagreement, jumbled_sources, same_attempts
from millstream.run.arrival import LAST, ArrivalClock
from millstream.run.attending import Attention
from millstream.run.bundling import bundle, overdue
from millstream.run.committing import next_manifest, shares_of_updaters
from millstream.run.executors import Executor
from millstream.run.handing import Hands
from millstream.run.letters import Letters
from millstream.run.memory import SHARE, Memory, give_back, of_machine
from millstream.run.noticing import Noticing
from millstream.run.opening import take_over
from millstream.run.outside import Outside
from millstream.run.patience import Patience
from millstream.run.program import LEAST_SHARDS, check_owners
from millstream.run.publishing import publish, stage_delivery
from millstream.run.queues import Costs, settled
from millstream.run.scheduler import Grants, Room, Scheduler
from millstream.run.shedding import bytes_read, held_sources
from millstream.run.shedlog import write_shed
from millstream.run.sources import make_tracker, progress_of
from millstream.run.splits import AnySplit, Item
from millstream.run.spool import PATIENCE
from millstream.run.spreading import Spreading, readers
from millstream.run.tracking import Tracker
from millstream.run.warming import Warmth, keep_warm
from millstream.settings import Settings
from millstream.state.bases import Change, Segments
from millstream.state.checkpoint import Checkpoint
from millstream.state.holdings import Holdings
from millstream.state.manifests import Manifest, SourceState
from millstream.state.segments import SegmentFile
from millstream.state.traffic import Traffic
from millstream.state.unflushed import is_ahead_of_flush

_SMALL = 20_000  # rows a single task handles faster than two and an exchange
_FIRST_ROWS = 100_000  # per core
_LEAST_ROWS = 500  # per core
GATHERED = 16  # above so many partitions a job that puts together what tasks say pays
_GARBAGE_EVERY = 10
_ORDERED = 8  # batches for which a source that was jumbled is read in order
_TRIES = 8  # times a batch is run whose tasks do not agree
_LOOKS = (0.0, 0.1, 0.5, 2.0)  # seconds before followed files that have moved are looked for again

T = TypeVar("T")


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
        self.plan = plan
        self.checkpoint = checkpoint
        self.settings = settings
        self.clock = clock
        # A clock that a test owns goes as far as it says.
        self._steady = ArrivalClock(clock) if clock is time.time else ArrivalClock(clock, clock)
        self.attention = Attention()
        self._make_tracker = trackers
        self.done = False
        self.patience = Patience(settings.disk_full_wait)
        self.noticing = Noticing(settings)
        # What somebody makes of a batch before it is committed, to be committed with it.
        self.beside: Callable[[Batch, list[Control]], list[Item]] = lambda batch, controls: []
        self.watermarks: dict[str, int] = {}
        self.rows_target = min(settings.batch_rows, _FIRST_ROWS)  # per core
        self.batch_seconds = settings.batch_seconds
        self.cores = 1  # tasks at once in the last batch
        self.last_seconds = 0.0
        self.last_rows = 0
        self.moved = Traffic()  # of the state, in the last batch
        self.warmth: Warmth | None = None
        self._ending = False  # nothing may stay in memory alone after this batch
        self.manifest = Manifest(-1)
        self.trackers: dict[str, Tracker] = {}
        self.letters = Letters(checkpoint.dead, settings, self.trackers)
        self.notes: list[str] = []
        self.spreading = Spreading()
        self.scheduler = Scheduler(settings.policy, plan.flow)
        self.costs = Costs(self.manifest)
        self.memory = Memory(settings.memory_bytes or int(SHARE * of_machine()))
        self._taken: dict[str, int] = {}  # bytes taken of each source in this batch
        self.ordered: dict[str, int] = {}  # sources read in order, up to which batch
        self.readers: dict[str, int] = {}  # tasks that read each source in the last batch
        self.outside: Outside | None = None
        self.hands = Hands(settings.function_micros)
        self._all_taken: dict[str, int] = {}  # source -> by the clock until when nothing waits
        self._heard_by: tuple[Manifest, dict[str, dict[str, int]]] | None = None
        self._held: Holdings | None = None
        self._written: Manifest | None = None  # the last one, if it was committed by this run
        self._dropped = False  # state was dropped, and no manifest says so yet

    # -- starting -------------------------------------------------------------------------------

    def open(self, cores: int, least_shards: int = LEAST_SHARDS) -> None:
        """Take the checkpoint over: check the program, finish the last batch, drop leftovers."""
        self.keep_warm()
        opened = take_over(
            self.plan,
            self.checkpoint,
            self.settings,
            self.hands,
            self.patience.pause,
            cores,
            least_shards,
        )
        self.outside, self._lease, self.notes = opened.outside, opened.lease, opened.notes
        self.shards: int = opened.program["shards"]
        self.manifest, self._dropped = opened.manifest, opened.dropped
        self.costs = Costs(self.manifest)
        self._follow(opened.program)
        self._steady.raise_to(int(self.manifest.at * 1e6) + 1)
        self.attention.since = self._polled = self._now()
        self.watermarks = {
            name: at for name, at in self.manifest.watermarks.items() if name in self.plan.levels
        }
        for node in self.plan.sources():
            self.trackers[node.name] = self._tracker_of(node.name)

    def keep_warm(self) -> Warmth:
        """What is kept in memory beside the checkpoint, from the first time it is asked for."""
        if self.warmth is None:
            self.warmth = keep_warm(self.checkpoint.state, self.settings)
        return self.warmth

    def _follow(self, program: dict[str, Any]) -> None:
        """Take the state for what the program says it is."""
        self.born: dict[str, int] = program["born"]
        self.since: dict[str, dict[str, int]] = program["since"]
        manifest = without_dropped(self.manifest, program)
        self._dropped |= manifest is not self.manifest and not manifest.complete
        self.manifest = manifest

    def _outside_of(self, plan: Plan, program: dict[str, Any]) -> Outside:
        state, pause = self.checkpoint.state, self.patience.pause
        return Outside(plan, program, self._lease, state, pause)

    def replace(
        self, plan: Plan, prepare: Callable[[], None], *, dry_run: bool = False
    ) -> list[str]:
        """Go on with another plan, between two batches; gives what is to be said of the change.

        Whatever can fail comes first. The change is made by the one step that writes the program,
        so a crash finds the old one or the new one.
        """
        known = self._known_program()
        check_owners(plan, self.checkpoint.path, known)
        program, notes = adopt(plan, known, self.manifest)
        before, outside = self._taken_over, self._outside_of(plan, program)
        try:
            # Topics are taken over when there is something to send.
            outside.check(self.manifest.batch, self.checkpoint.gave)
            prepare()
            if dry_run:
                outside.close()
                return notes
            outside.take(before.owned, self._lease, self.manifest.batch)
            faults.crash_point("before-switch", self.manifest.batch)
            self._patiently(lambda: self.checkpoint.write_program(program))
        except BaseException:
            outside.close(but=before.owned)
            raise
        faults.crash_point("after-switch", self.manifest.batch)
        before.close(but=outside.owned)
        self.plan, self.outside = plan, outside
        self._follow(program)
        self.watermarks = {n: at for n, at in self.watermarks.items() if n in plan.levels}
        self.notes = [*self.notes, *notes]
        if self.manifest.batch >= 0:
            outside.mirror(self.manifest, self.checkpoint.before(self.manifest))
        return notes

    @property
    def _taken_over(self) -> Outside:
        assert self.outside is not None  # from the start on
        return self.outside

    def _known_program(self) -> dict[str, Any]:
        known = self.checkpoint.read_whole_program()
        assert known is not None  # it was written at the start
        return known

    def close(self) -> None:
        """Stop receivers and give the checkpoint back; raises if something received is lost."""
        lost = self._stop_receiving()
        if self.outside is not None:
            self.outside.close()
        self.hands.close()
        if self.warmth is not None:
            self.warmth.close()
        self.checkpoint.close()
        if lost:
            raise RunError("; ".join(lost))

    def _stop_receiving(self) -> list[str]:
        """Stop all receivers together, and say what was received and could not be kept."""
        lost = []
        for tracker in self.trackers.values():
            tracker.ask_to_stop(min(PATIENCE, self.settings.stop_timeout / 4))
        for tracker in self.trackers.values():
            try:
                tracker.close()
            except RunError as error:
                lost.append(str(error))
        return lost

    def _check_claims(self) -> None:
        """Neither the checkpoint nor an output directory has been taken by another run."""
        self.checkpoint.check_lock()
        self._taken_over.owned.check()

    # -- one batch ------------------------------------------------------------------------------

    def bring_out(self, executor: Executor) -> None:
        """Let readers see what waits for a size or in memory, by a batch that reads nothing."""
        unflushed = any(map(is_ahead_of_flush, self.manifest.segments.values()))
        if not self.manifest.waiting and not unflushed:
            return
        self._ending = True
        try:
            batch = self._batch(1)
            items = self._run(executor, batch, {name: [] for name in self.trackers})
            items = [*items, *self.beside(batch, _controls(items))]
            self._commit(executor, batch, _controls(items), items, last=True)
        finally:
            self._ending = False

    def step(self, executor: Executor) -> bool:
        """Run and commit one batch if there is anything to do; False if there was nothing."""
        self._patiently(partial(self._poll, executor))
        waiting = {name: tracker.pending() for name, tracker in self.trackers.items()}
        pending, self._polled = sum(waiting.values()), self._now()
        self._all_taken.update({name: self._polled for name, much in waiting.items() if not much})
        if not (pending or self._time_moved() or self._dropped or self._overdue()):
            self.done = all(tracker.ended for tracker in self.trackers.values())
            return False
        fresh = {name for name, much in waiting.items() if much}
        told = go_on(self.plan, self.manifest, fresh, self.settings.incremental)
        self.notes = [*self.notes, *(note for note in told if note not in self.notes)]
        parts = self.cores = max(1, self.settings.parallelism or executor.cores)
        rows, size = self.rows_target * parts, self.settings.batch_bytes * parts
        grants = self._request(waiting, rows, size)
        held = held_sources(self.plan, lambda: self._known(self._progress()))
        splits = {
            name: [] if name in held else tracker.take(*grants.sources[name], parts)
            for name, tracker in self.trackers.items()
        }
        self._taken = {n: bytes_read(one, waiting[n]) for n, one in self.trackers.items()}
        taken = [name for name, one in self.trackers.items() if not one.pending()]
        started = time.perf_counter()
        for pause in (*_LOOKS, None):
            batch = self._batch(self._parallelism(pending, parts), grants.holds)
            faults.crash_point("batch-planned", batch.number)
            try:
                with self.memory.watching():
                    items = self._run(executor, batch, splits)
                break
            except (RunError, OSError) as error:
                gone = any(word in str(error) for word in (MOVED, GONE))
                rotated = self._followed() if gone else set()
                if not rotated or pause is None:
                    raise
                time.sleep(pause)
                self._discard(batch)
                for name in rotated - held:
                    again = self._look_again(name, executor)
                    splits[name] = again.take(*grants.sources[name], parts)
        faults.crash_point("tasks-done", batch.number)
        items = [*items, *self.beside(batch, _controls(items))]
        controls = _controls(items)
        worked = self.costs.learn(self.plan, controls, self._taken)
        self.memory.learn(max(worked, grants.size), controls)
        self._commit(executor, batch, controls, items)
        self._all_taken.update(dict.fromkeys(taken, self._polled))
        self.last_seconds = time.perf_counter() - started
        self._adapt(controls, splits, executor.waited)
        if self.memory.tight:
            give_back()
        self._say(self.memory.cramped)
        self.done = self.manifest.complete
        return True

    def _request(self, waiting: dict[str, int], rows: int, size: int) -> Grants:
        """Ask the scheduler who gets the room of a batch."""
        seconds = self.batch_seconds * self.cores
        room = Room(seconds, rows, size, self.memory.room, self.memory.share)
        return self.scheduler.request(
            self.plan,
            self._known(self._progress()),
            self._holdings(),
            self.costs,
            waiting,
            room,
            self.hands.ask,
        )

    def _followed(self) -> set[str]:
        """Sources of which something may go between the plan of a batch and its reading."""
        specs = {node.name: node.spec for node in self.plan.sources()}
        return {
            name
            for name, spec in specs.items()
            if isinstance(spec, Kafka) or (isinstance(spec, Files) and spec.follow)
        }

    def _look_again(self, name: str, executor: Executor) -> Tracker:
        """Forget what was seen of files since the last commit, and look for them anew."""
        self.trackers[name] = self._tracker_of(name)
        self.trackers[name].poll(partial(executor.probe, name))
        return self.trackers[name]

    def _tracker_of(self, name: str) -> Tracker:
        nodes = {node.name: (number, node) for number, node in enumerate(self.plan.sources())}
        state = self.manifest.sources.get(name) or SourceState()
        fmt = self.plan.formats[name]
        return self._make_tracker(*nodes[name], fmt, self.checkpoint.store, state)

    def _poll(self, executor: Executor) -> None:
        for name, tracker in self.trackers.items():
            tracker.poll(partial(executor.probe, name))
        told = list(self.noticing.silence(self.trackers, self.clock()))
        now = self._now()
        self.attention.check(now)
        since = self.attention.since
        told += self.noticing.idleness(self.plan, self.manifest, self.trackers, since, now)
        self._say(*told, self._steady.wrong)

    def _say(self, *told: str | None) -> None:
        """Tell what was not told before, at once."""
        new = [one for one in told if one is not None and one not in self.notes]
        if new:
            self.notes = [*self.notes, *new]
            self.patience.on_pause()

    def _parallelism(self, pending: int, parts: int) -> int:
        if self.settings.parallelism is not None:
            return self.settings.parallelism
        return 1 if min(pending / 64, self.rows_target * parts) < _SMALL else parts

    def _time_moved(self) -> bool:
        """Whether windows can leave although nothing came: input ended, clock or idle time-outs."""
        if all(tracker.ended for tracker in self.trackers.values()):
            return not self.manifest.complete
        known = self._known(self._progress())
        assert known.times is not None
        marks = known.times.inputs
        return any(one.wakes(known, marks) for one in self.plan.operators.values())

    def _overdue(self) -> bool:
        return overdue(self.manifest, self._taken_over.sinks, self.wall())

    def _now(self) -> int:
        """The wall clock; for timers and arrival it never goes back, nor far ahead for a moment."""
        now = max([self._steady.now(), *self.manifest.rung.values()])
        if now >= LAST:  # a manifest with such a time could not be read again
            raise CheckpointError(
                f"checkpoint {self.checkpoint.path} says that it was written after the year 2999; "
                "run with a new checkpoint, or one from before the clock was wrong"
            )
        return now

    def sign(self) -> None:
        """This process runs: whoever gives such signs does so in short intervals."""
        self.attention.sign(self._steady.now())

    def wall(self) -> float:
        """The same in seconds."""
        return self._now() / 1e6

    def _known(self, progress: dict[str, SourceProgress] | None = None) -> Known:
        """What operators may know between two batches."""
        return Known(
            self.manifest,
            self.settings,
            self._now(),
            self.born,
            self.since,
            self.cores,
            self._ending,
            None if progress is None else self._times(progress),
            self._name_of,
            self.hands.ask,
        )

    def _times(self, progress: dict[str, SourceProgress]) -> Times:
        manifest, since, heard = self.manifest, self.attention.since, self._heard()
        marks = {name: one.watermark() for name, one in progress.items()}
        left = self.plan.evicted(manifest.closed)
        inputs, outputs = self.plan.times(marks, None, manifest.watermarks, left)
        return Times(progress, heard, inputs, outputs, since, dict(self._all_taken))

    def _heard(self) -> dict[str, dict[str, int]]:
        """The wall clock when participants of sources brought something last.

        It is asked for at every look for input, and changes with the manifest alone.
        """
        if self._heard_by is None or self._heard_by[0] is not self.manifest:
            found = {
                name: {who: int(at * 1e6) for who, at in state.seen_at.items()}
                for name, state in self.manifest.sources.items()
            }
            self._heard_by = (self.manifest, found)
        return self._heard_by[1]

    def participants(self, source: str, progress: SourceProgress) -> dict[str, tuple[int, float]]:
        """How far everybody is who takes part in a source, and for how long each was silent."""
        since, now = self.attention.since, self._now()
        return {
            self._name_of(source, one.who): (
                one.at,
                max(0.0, (now - max(one.heard, since)) / 1e6),
            )
            for one in standings([source], {source: progress}, {}, self._heard())
        }

    def _name_of(self, source: str, who: str | int) -> str:
        """What people know a participant by: a file by its name, a whole source by its own."""
        tracker = self.trackers.get(source)
        if isinstance(who, int):
            return str(who) if tracker is None else tracker.name_of(who)
        return who or source

    def _progress(self) -> dict[str, SourceProgress]:
        self.attention.check(self._now())
        return {node.name: self.progress_of(node) for node in self.plan.sources()}

    def progress_of(self, node: nodes.Source) -> SourceProgress:
        """How far a source is, with the pieces that were taken of it."""
        name, tracker = node.name, self.trackers[node.name]
        state = self.manifest.sources.get(name) or SourceState()
        since = self.attention.since
        read = self._all_taken.get(name, since) if tracker.pending() else self._polled
        return progress_of(node.spec, state, tracker, self._now(), since, read)

    def _batch(self, parallelism: int, held: dict[str, int] | None = None) -> Batch:
        progress, operators = self._progress(), self.plan.operators.values()
        known = self._known(progress)
        orders = {one.name: one.order(known) for one in operators}
        evicting = [one for one in operators if isinstance(one, Evicting)]
        base, segments, files = self._stored()
        holds = held_back(held or {}, *(one.holds(known) for one in operators))
        return Batch(
            number=self.manifest.batch + 1,
            now=known.now,
            trusted=min(known.now, int(self.clock() * 1e6)),
            parallelism=parallelism,
            shards=self.shards,
            checkpoint=str(self.checkpoint.path),
            progress=progress,
            watermarks=self.manifest.watermarks,
            told=self.manifest.told,
            shares=shares_of_updaters(self.plan, self.manifest),
            orders=orders,
            left={s: at for one in evicting for s, at in one.leaves(orders[one.name]).items()},
            segments=segments,
            files=files,
            base=base,
            totals=self._holdings().totals(),
            holds=holds,
            levels=self._levels(known),
            gathers=parallelism > GATHERED,
            trims=self.memory.tight,
            debug=self.settings.debug,
            warm=self.keep_warm().kept,
            compression=self.settings.compression,
            max_key=self.settings.max_key,
            max_participants=self.settings.max_participants,
            written=self.manifest.written,
            times=self.settings.times,
            function_timeout=self.settings.function_micros,
        )

    def _levels(self, known: Known) -> int | None:
        """How many exchanges can have work: as if nothing held watermarks back, to be sure."""
        assert known.times is not None
        levels = self.plan.levels_with_work(known.times.inputs)
        beyond = (one for one in self.plan.operators.values() if self.plan.level_of(one) > levels)
        owners = (owner for one in beyond for owner in one.stored())
        return None if any(map(known.has_state, owners)) else levels

    def _stored(self) -> tuple[tuple[int, str] | None, Segments, dict[str, SegmentFile]]:
        """What tasks are told of the state: all of it, or a base and what has changed since."""
        manifest = self.manifest
        found = self.checkpoint.stored_since(manifest) if self._written is manifest else None
        if found is None:
            return None, manifest.segments, manifest.files
        base, segments = found
        shards = (one for tables in segments.values() for one in tables.values())
        used = {one.file for several in shards for found in several.values() for one in found}
        return base, segments, {name: manifest.files[name] for name in used}

    def _run(
        self, executor: Executor, batch: Batch, splits: dict[str, list[AnySplit]]
    ) -> list[Item]:
        """Run the tasks; again as a whole if they differ in what they saw, judged or wrote."""
        for _ in range(_TRIES + len(self.trackers)):  # each source may once be found out of order
            ordered = {name for name, until in self.ordered.items() if batch.number <= until}
            tasks = self.spreading.spread(splits, self.trackers, batch.parallelism, ordered)
            self.readers = readers(tasks, list(self.trackers))
            items = self._patiently(partial(executor.run, batch, tasks), batch)
            controls = _controls(items)
            written, agree = fitting.agreed(batch.written, controls)
            jumbled = jumbled_sources(batch, controls) - ordered
            counts = same_attempts(controls) and not jumbled
            if counts and agree:
                return items
            self.ordered.update(dict.fromkeys(jumbled, batch.number + _ORDERED))
            self._discard(batch)
            if counts:  # else its results are others next time, and so may be their columns
                batch = replace(batch, written=written)
        raise disagreement(batch.number, _TRIES, counts)

    def _patiently(self, work: Callable[[], T], batch: Batch | None = None) -> T:
        """Do something that can be done again; wait and do it again while the disk is full."""
        undo = partial(self._discard, batch) if batch is not None else lambda: None
        return self.patience.keep_trying(work, self.manifest.batch + 1, undo)

    def _discard(self, batch: Batch) -> None:
        """Remove what a batch wrote that will not be committed."""
        self.checkpoint.discard_uncommitted(batch.number - 1)
        self._discard_staged(batch.number - 1)

    def _discard_staged(self, batch: int) -> None:
        """Remove files of results that no batch needs which one may still go back to."""
        self._taken_over.owned.discard_staged(batch, self.checkpoint.waiting(self.settings.retain))

    # -- committing -----------------------------------------------------------------------------

    def _commit(
        self,
        executor: Executor,
        batch: Batch,
        controls: list[Control],
        items: list[Item],
        *,
        last: bool = False,
    ) -> None:
        outside = self._taken_over
        manifest = self._patiently(lambda: self._next_manifest(batch, controls))
        dead = [letter for control in controls for letter in control.dead]
        self.letters.check(self.plan, self.manifest, manifest, dead)
        manifest.outputs, manifest.waiting = self._patiently(
            lambda: bundle(
                manifest,
                self.manifest,
                outside.sinks,
                lambda sink, orders: executor.probe(sink, put_together, orders),
                due=last,
            )
        )
        faults.crash_point(faults.BUNDLED, batch.number)
        change = self._change(controls)
        shed = [one for control in controls for one in control.shed]
        self._patiently(lambda: self._write(batch, manifest, dead, shed, items, change))
        self._holdings().follow(manifest, change)
        self._written = manifest
        before, self.manifest, self._dropped = self.manifest, manifest, False
        self.moved = sum((control.moved for control in controls), Traffic())
        self.keep_warm().committed(manifest.files)
        faults.crash_point("after-manifest", batch.number)
        self._check_claims()
        self._patiently(
            lambda: publish(manifest, outside.sinks, self.checkpoint.staged, self.hands)
        )
        outside.mirror(manifest, before)
        faults.crash_point("published", batch.number)
        self._patiently(lambda: self.checkpoint.mark_published(batch.number))
        self.checkpoint.discard_delivered(batch.number)
        for tracker in self.trackers.values():
            tracker.committed()
        faults.crash_point("before-garbage", batch.number)
        if batch.number % _GARBAGE_EVERY == 0 or manifest.complete:
            self.checkpoint.collect_garbage(manifest, self.settings.retain)
            self._discard_staged(batch.number)

    def _write(
        self,
        batch: Batch,
        manifest: Manifest,
        dead: list[DeadLetter],
        shed: list[Shed],
        items: list[Item],
        change: Change,
    ) -> None:
        """Everything the manifest refers to that is not written yet, then the manifest."""
        files = [output for output in manifest.outputs if output.final is not None]
        staged = []
        for sink, spec in self._taken_over.sinks.items():
            blocks = [p for _, tag, name, p in items if tag == "deliver" and name == sink]
            if blocks and not isinstance(spec, FileSink):
                staged.append(self._stage(batch, sink, blocks))
        manifest.outputs = files + staged
        if dead:
            self.letters.write(self.plan, f"{batch.number:08d}", dead)
        write_shed(self.checkpoint.shed, self.plan, self.trackers, batch.number, shed)
        faults.crash_point("dead-letters-written", batch.number)
        faults.crash_point("before-manifest", batch.number)
        self._check_claims()
        self.checkpoint.commit(manifest, change if self._written is self.manifest else None)

    def _holdings(self) -> Holdings:
        """What the manifest's segments come to; counted anew where it is not the one written."""
        if self._held is None or self._held.manifest is not self.manifest:
            self._held = Holdings(self.manifest)
        return self._held

    def _change(self, controls: list[Control]) -> Change:
        files = chain.from_iterable(control.files for control in controls)
        return self._holdings().change([control.segments for control in controls], files)

    def _next_manifest(self, batch: Batch, controls: list[Control]) -> Manifest:
        change = self._change(controls)
        manifest, self.watermarks = next_manifest(
            self.plan,
            self._known(),
            batch,
            controls,
            self.trackers,
            self.readers,
            change,
        )
        manifest.queues = settled(
            self.plan,
            replace(self._known(), manifest=manifest),
            self._holdings(),
            change,
            self.costs,
            {name: tracker.pending() for name, tracker in self.trackers.items()},
            batch.holds,
        )
        return manifest

    def _stage(self, batch: Batch, sink: str, blocks: list[bytes]) -> Any:
        table = in_place(concat([decode_block(block) for block in blocks]))
        return stage_delivery(self.checkpoint.staged, batch.number, sink, table)

    # -- sizes ----------------------------------------------------------------------------------

    def _adapt(
        self, controls: list[Control], splits: dict[str, list[AnySplit]], waited: float
    ) -> None:
        """Let the next batch cost about `batch_seconds`; change by at most a factor of two.

        Waiting for other flows is no cost: they would make each other's batches ever smaller.
        """
        rows = sum(control.rows_in for control in controls)
        self.last_rows = rows
        self.spreading.learn(controls)
        reading = [name for name, taken in splits.items() if taken]
        for name in reading:
            read = sum(control.read.get(name, (0, 0.0))[0] for control in controls)
            self.trackers[name].learn(read, sum(control.sizes[name] for control in controls))
        if rows >= self.rows_target * self.cores // 2 and self.manifest.batch > 0:
            shed = max((control.shedding for control in controls), default=0.0)
            factor = self.batch_seconds / max(self.last_seconds - shed - waited, 1e-3)
            target = int(self.rows_target * min(2.0, max(0.5, factor)))
            self.rows_target = min(self.settings.batch_rows, max(_LEAST_ROWS, target))


def _controls(items: list[Item]) -> list[Control]:
    """What tasks told the driver."""
    return [payload for _, tag, _, payload in items if tag == "control"]
