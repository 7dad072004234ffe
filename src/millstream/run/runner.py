"""Running a flow: an engine on Spark, on a thread of its own, behind a handle."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.api.early import Looks, Snapshot
from millstream.api.frames import plainly
from millstream.api.sinks import Redis
from millstream.api.sources import Collector, Http
from millstream.errors import MillstreamError, RunError
from millstream.io.mirrors import require_redis
from millstream.ops.jobs import timestamp
from millstream.plan.stages import Plan
from millstream.run.cores import wait_for_cores
from millstream.run.early import Looker, engine_of
from millstream.run.engine import Engine
from millstream.run.fleeting import forget_rows, make_fleeting, remove_fleeting
from millstream.run.looked import looked_for
from millstream.run.planning import plan_flow
from millstream.run.program import check_owners, check_program
from millstream.run.replacing import Replacement, replace_program
from millstream.run.session import (
    check_surroundings,
    close_session,
    end_java,
    has_session,
    open_session,
    remove_scratch,
)
from millstream.run.sources import progress_of
from millstream.run.spark import OnSpark
from millstream.run.telling import told_work, warnings_of
from millstream.serve.following import Follower
from millstream.serve.slates import Decoder
from millstream.serve.status import Live, View
from millstream.settings import Settings
from millstream.state.checkpoint import SCRATCH, Checkpoint
from millstream.state.manifests import SourceState

if TYPE_CHECKING:
    from pyspark import SparkContext

    from millstream.api.flow import Flow
    from millstream.serve.server import Server

_HISTORY = 300  # batches
_RESERVE = 2.0  # seconds of the time for a stop that ending processes may take


@dataclass(frozen=True, repr=False)
class Progress:
    """How far a flow is: counts over the life of the checkpoint, and `new_...` of this run."""

    batch: int = -1
    rows: int = 0  # records read
    rows_per_second: float = 0.0  # of the last batch
    batch_seconds: float = 0.0
    pending_bytes: int = 0
    fraction: float | None = None  # of bounded input
    watermark: int | None = None  # the lowest of all operators, microseconds UTC
    windows: int = 0  # rows of results
    new_batches: int = 0
    new_rows: int = 0
    new_windows: int = 0
    dead: int = 0
    late: int = 0
    future: int = 0  # too far ahead of the clock to move the watermark
    ledger: dict[str, dict[str, int]] = field(default_factory=dict)
    done: bool = False
    paused: str | None = None
    elapsed: float = 0.0
    notes: tuple[str, ...] = ()  # what was said: windows added, what is not filled, who hangs

    def __repr__(self) -> str:
        state = self.paused or ("complete" if self.done else "under way")
        lines = [f"{state} after {self.elapsed:.1f} s: {told_work(self)}"]
        if self.fraction is not None and not self.done:
            lines.append(f"  {self.fraction:.0%} read, {self.pending_bytes:,} bytes left")
        if self.watermark is not None:
            lines.append(f"  watermark {timestamp(self.watermark).isoformat()}")
        lost = {"dead": self.dead, "late": self.late, "future": self.future}
        told = ", ".join(f"{count:,} {name}" for name, count in lost.items() if count)
        return "\n".join([*lines, *([f"  {told}"] if told else [])])


@plainly
class Handle:
    """A running flow."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        flow: str,
        looker: Looker | None = None,
        *,
        fleeting: bool = False,
    ) -> None:
        self.progress = Progress()
        self._engine = engine
        self._begun = (-1, 0, 0)  # batch, rows and results before this run
        self._looker = looker
        self._settings = settings
        self._flow = flow
        self._fleeting = fleeting  # its checkpoint goes with it
        self._stopping = threading.Event()
        self._patience = settings.stop_timeout
        self._ours = False  # whether the Spark context is
        self._gave_up = False
        self.overdue = False  # not even that helped: something in this process does not return
        self._wake = threading.Event()  # a stop or another flow is asked for
        self._asking = threading.Lock()
        self._requests: deque[_Request] = deque()
        self._ended = False
        self.warnings: tuple[str, ...] = ()  # what to look at, once it has ended
        self._error: BaseException | None = None
        self._started = time.monotonic()
        self._executor: OnSpark | None = None
        self._decoders = _decoders(engine.plan)
        self._server: Server | None = None
        self._live: Live | None = None
        self._history: deque[dict[str, float]] = deque(maxlen=_HISTORY)
        if settings.serve is not None:
            self._server = _open_server(engine, settings.serve, self)
            self._server.start()
        engine.on_pause = self._report
        # Nobody joins the thread: a Ctrl-C in join() makes Python 3.11 and 3.12 take it for ended.
        self._over = threading.Event()
        threading.Thread(target=self._work, name=f"millstream-{flow}", daemon=True).start()
        threading.Thread(target=self._end_in_time, name="millstream-stop", daemon=True).start()

    def __repr__(self) -> str:
        state = "running" if self.running else "failed" if self._error else "ended"
        at = f" at {self.url}" if self.url else ""
        return f"Handle of flow {self._flow!r}, {state}{at}: {told_work(self.progress)}"

    @property
    def running(self) -> bool:
        """Whether it still works."""
        return not self._over.is_set()

    def snapshots(self) -> Iterator[Snapshot]:
        """The snapshots of a flow that is looked at, as they come."""
        if self._looker is not None:
            yield from iter(self._looker.found.get, None)

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot of a flow that is looked at."""
        return None if self._looker is None else self._looker.newest

    @property
    def url(self) -> str | None:
        """Where it serves slates and status; None if it does not."""
        return self._server.url if self._server is not None else None

    @property
    def patience(self) -> float:
        """Seconds within which it ends after a stop."""
        return self._patience

    def stop(self, timeout: float | None = None) -> Progress:
        """Commit the current batch and stop; raises what went wrong, if something did.

        A batch that is not done in time (`stop_timeout`) is given up, whatever its functions do.
        """
        if timeout is not None:
            self._patience = timeout
        self.request_stop()
        return self.wait(self._patience)

    def request_stop(self) -> None:
        """Ask for a stop without waiting for it."""
        self._stopping.set()
        self._wake.set()

    def replace(self, flow: Flow, *, dry_run: bool = False) -> Replacement:
        """Go on with another flow after the current batch, without stopping; says what changes.

        Windows, aggregates, updaters, sinks and stateless steps may be added, taken away and
        changed in what they call; sources, and the keys and windows of operators that stay, may
        not. What is not possible is raised before anything changes, and the flow goes on as it is.
        With `dry_run` nothing changes either way.
        """
        if self._looker is not None:
            raise RunError(
                f"flow {self._flow!r} is looked at while it runs, and cannot be replaced meanwhile"
            )
        request = _Request(flow, dry_run)
        with self._asking:
            if self._ended:
                raise RunError(
                    f"flow {self._flow!r} has ended; start it again with the changed program"
                )
            self._requests.append(request)
        self._wake.set()
        return request.answer.result()

    def ended_within(self, seconds: float) -> bool:
        """Wait so long for the end; Ctrl-C asks for a clean stop, and a second one is raised."""
        try:
            self._over.wait(seconds)
        except KeyboardInterrupt:
            if self._stopping.is_set():
                raise
            self.request_stop()
        return not self.running or self.overdue

    def wait(self, timeout: float | None = None) -> Progress:
        """Wait for the end; Ctrl-C asks for a clean stop, and a second one is raised."""
        try:
            self._over.wait(timeout)
        except KeyboardInterrupt:
            if self._stopping.is_set():
                raise
            self.request_stop()
            self._over.wait(self._patience)
        if self.running:
            if self._stopping.is_set():
                raise RunError(self._too_late())
            raise RunError(f"flow {self._flow!r} still runs after {timeout} s")
        if self._error is not None:
            raise self._error
        return self.progress

    # -- ending in time -------------------------------------------------------------------------

    def _end_in_time(self) -> None:
        """Once a stop is asked for: give the batch up early enough to be gone in time."""
        self._stopping.wait()
        end = time.monotonic() + self._patience
        reserve = min(_RESERVE, self._patience / 4)
        self._over.wait(max(0.0, self._patience - reserve))
        if self.running:
            self._gave_up = True
            if self._ours or not has_session():
                end_java(kill=True)
            elif self._executor is not None:
                self._executor.cancel()
            self._over.wait(max(0.0, end - time.monotonic()))
            self.overdue = self.running

    def _too_late(self) -> str:
        return (
            f"flow {self._flow!r} was asked to stop and its batch was not done in time "
            f"(stop_timeout={self._patience:g} s): a function takes long or hangs. It was given "
            "up, and nothing is lost: run the same command again to go on after the last commit"
        )

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._main()
        finally:
            self._over.set()

    def _main(self) -> None:
        session = None
        ours = False
        scratch = self._engine.checkpoint.path / SCRATCH
        try:
            session, ours = open_session(self._flow, self._settings, scratch)
            self._ours = ours
            self._executor = self._on_spark(session, self._engine.plan)
            decided = wait_for_cores(session, self._settings)
            self._engine.open(decided.cores, decided.least_shards)
            self._begun = self._counts()
            if decided.note:
                self._engine.notes.append(decided.note)
            self._loop()
        except MillstreamError as error:
            self._error = error
        except OSError as error:  # no permission, a disk that went away: not a defect
            self._error = RunError(
                f"{error}; what was committed stays valid: correct that and start again"
            )
            self._error.__cause__ = error
        except BaseException as error:
            self._error = error
        finally:
            if self._gave_up and self._error is not None:
                cause, self._error = self._error, RunError(self._too_late())
                self._error.__cause__ = cause
            self._refuse_requests()
            if self._server is not None:
                self._server.stop()
            try:
                if self._executor is not None and not ours:
                    self._executor.close()
                if session is not None and ours:
                    close_session(session)
                    remove_scratch(scratch)
            finally:
                self._close()  # last: the next run may begin as soon as it can lock
                self._stopping.set()  # nobody need wait for a stop any more
                if self._looker is not None:
                    self._looker.found.put(None)

    def _close(self) -> None:
        """Let go of the checkpoint; what is lost by that is said first."""
        steps, dead = [node.name for node in self._engine.plan.nodes], self._engine.checkpoint.dead
        with suppress(OSError, MillstreamError):  # only told about, and perhaps not there
            self.warnings = tuple(warnings_of(self.progress, steps, dead, kept=not self._fleeting))
        try:
            self._engine.close()
        except RunError as error:
            before = self._error
            self._error = error if before is None else RunError(f"{error}. Before that: {before}")
            self._error.__cause__ = before
        if self._fleeting:
            remove_fleeting(self._engine.checkpoint.path)

    def _on_spark(self, context: SparkContext, plan: Plan) -> OnSpark:
        checkpoint, timeout = self._engine.checkpoint.path, self._settings.function_micros
        return OnSpark(context, plan, checkpoint, timeout)

    def _loop(self) -> None:
        engine = self._engine
        enough = self._looker is not None and self._looker.at_start()
        while not self._stopping.is_set() and not enough:
            begun = time.monotonic()
            self._answer_requests()
            assert self._executor is not None
            worked = engine.step(self._executor)
            if worked or self.progress.batch < 0:
                self._report()
            if self._looker is not None:
                before, enough = self._looker.newest, self._looker.after_step()
                if self._looker.newest is not before:
                    self._report()
            if engine.done or enough:
                break
            self._rest(begun + self._settings.interval if worked else begun + self._settings.poll)
        self._report()

    def _rest(self, until: float) -> None:
        """Wait; what is asked for meanwhile is answered at once."""
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()
            self._answer_requests()

    def _answer_requests(self) -> None:
        """Between two batches: put other flows in the place of this one."""
        while self._requests:
            request, before = self._requests.popleft(), self._engine.plan
            try:
                request.answer.set_result(self._replace(request))
            except Exception as error:
                request.answer.set_exception(error)
                if self._engine.plan is not before:
                    raise  # the change is made, and something after it failed

    def _replace(self, request: _Request) -> Replacement:
        flow, ready = request.flow, list[OnSpark]()
        before = self._executor
        assert before is not None

        def prepare(plan: Plan) -> None:
            if any(isinstance(sink.spec, Redis) for sink in plan.sinks()):
                require_redis()
            ready.append(self._on_spark(before.context, plan))

        try:
            found = replace_program(
                self._engine, flow.name, flow.nodes, prepare, dry_run=request.dry_run
            )
        except BaseException:
            for executor in ready:
                executor.close()
            raise
        if request.dry_run:
            ready[0].close()
            return found
        self._executor = ready[0]
        before.close()
        self._decoders.update(_decoders(self._engine.plan))
        self._report()
        return found

    def _refuse_requests(self) -> None:
        with self._asking:
            self._ended = True
            while self._requests:
                self._requests.popleft().answer.set_exception(
                    RunError(f"flow {self._flow!r} ended before it could be replaced")
                )

    def _counts(self) -> tuple[int, int, int]:
        """The last batch, and the records and results up to there."""
        manifest = self._engine.manifest
        sources = (manifest.ledger.get(node.name, {}) for node in self._engine.plan.sources())
        return manifest.batch, sum(one.get("offered", 0) for one in sources), manifest.windows

    def _report(self) -> None:
        engine, manifest = self._engine, self._engine.manifest
        pending = sum(tracker.pending() for tracker in engine.trackers.values())
        sources = [node.name for node in engine.plan.sources()]
        batch, rows, windows = self._counts()
        bounded = all(node.spec.bounded for node in engine.plan.sources())
        marks = [at for at in engine.watermarks.values() if abs(at) < 2**61]
        fraction = None
        if bounded and rows:
            width = engine.trackers[sources[0]].__dict__.get("row_bytes", 64.0)
            fraction = 1.0 if engine.done else rows / (rows + pending / max(width, 1.0))
        self.progress = Progress(
            batch=batch,
            rows=rows,
            rows_per_second=engine.last_rows / engine.last_seconds if engine.last_seconds else 0.0,
            batch_seconds=engine.last_seconds,
            pending_bytes=pending,
            fraction=fraction,
            watermark=min(marks) if marks else None,
            windows=windows,
            new_batches=batch - self._begun[0],
            new_rows=rows - self._begun[1],
            new_windows=windows - self._begun[2],
            dead=manifest.dead,
            late=sum(account.get("late", 0) for account in manifest.ledger.values()),
            future=sum(account.get("future", 0) for account in manifest.ledger.values()),
            ledger=manifest.ledger,
            done=engine.done,
            paused=engine.paused,
            elapsed=time.monotonic() - self._started,
            notes=tuple(engine.notes),
        )
        if self._server is not None:
            self._live = self._look()
        if self._settings.on_progress is not None:
            engine.hands.tell("on_progress", self._settings.on_progress, self.progress)

    def _look(self) -> Live:
        """What the server tells beyond what is committed."""
        engine, progress = self._engine, self.progress
        last = self._history[-1]["batch"] if self._history else -1
        if progress.batch > last and engine.last_seconds:
            self._history.append(
                {
                    "batch": progress.batch,
                    "at": engine.manifest.at,
                    "rows_per_second": progress.rows_per_second,
                    "batch_seconds": progress.batch_seconds,
                    "rows": engine.last_rows,
                }
            )
        watermarks, held_by = dict(engine.watermarks), {}
        participants: dict[str, dict[str, tuple[int, float]]] = {}
        for node in engine.plan.sources():
            state = engine.manifest.sources.get(node.name) or SourceState()
            tracker = engine.trackers[node.name]
            known = progress_of(node.spec, state, tracker, engine.wall(), engine.started)
            participants[node.name] = engine.participants(node.name, known)
            at, holder = known.watermark(), known.holder()
            if at is not None:
                watermarks[node.name] = at
            if holder is not None:
                held_by[node.name] = holder if isinstance(holder, str) else tracker.name_of(holder)
        return Live(
            rows_per_second=progress.rows_per_second,
            batch_seconds=progress.batch_seconds,
            watermark=progress.watermark,
            watermarks=watermarks,
            pending={name: tracker.pending() for name, tracker in engine.trackers.items()},
            held_by=held_by,
            paused=progress.paused,
            history=list(self._history),
            silent=dict(engine.silent),
            participants=participants,
            answers=None if self._looker is None else self._looker.drawn,
        )


@dataclass(frozen=True)
class _Request:
    """Another flow, and who waits for what becomes of it."""

    flow: Flow
    dry_run: bool
    answer: Future[Replacement] = field(default_factory=Future)


def _decoders(plan: Plan) -> dict[str, Decoder]:
    """How the slates of every updater are read."""
    return {node.name: node.job.codec.decode for node in plan.updaters()}


def _open_server(engine: Engine, address: int | str, handle: Handle) -> Server:
    from millstream.serve.server import open_server, parse_address
    from millstream.serve.tokens import find_token

    host, port = parse_address(address)
    follower = Follower(engine.checkpoint.path, handle._decoders, eager=True, new=True)
    view = View(follower, lambda: handle._live or Live())
    token_file = handle._settings.token_file
    token = find_token(None if token_file is None else Path(token_file))
    return open_server(view, host, port, token)


def _check_ports(plan: Plan) -> None:
    """Who takes records from others can have its port and its token."""
    specs = [node.spec for node in plan.sources() if isinstance(node.spec, Http)]
    if specs:
        from millstream.run.posting import check_places  # a web server, for who wants one

        check_places(specs)
    collectors = [node.spec for node in plan.sources() if isinstance(node.spec, Collector)]
    if collectors:
        from millstream.run import collecting  # likewise

        collecting.check_places(collectors)


def start(
    flow: Flow,
    checkpoint: Path | None,
    settings: Settings,
    looks: Looks | None = None,
    plan: Plan | None = None,
) -> Handle:
    """Check everything, take the checkpoint, and run on a thread; `plan`: if it is known.

    Without a checkpoint the state lies in a directory that is removed at the end.
    """
    if checkpoint is not None:
        return _start(flow, checkpoint, settings, looks, plan)
    place = make_fleeting(settings)
    try:
        return _start(flow, place, settings, looks, plan, fleeting=True)
    except BaseException:
        remove_fleeting(place)
        raise


def _start(
    flow: Flow,
    checkpoint: Path,
    settings: Settings,
    looks: Looks | None,
    plan: Plan | None,
    *,
    fleeting: bool = False,
) -> Handle:
    plan = plan or plan_flow(flow, checkpoint)
    looking = looked_for(plan, looks)
    check_surroundings(settings)
    if any(isinstance(sink.spec, Redis) for sink in plan.sinks()):
        require_redis()
    place = Checkpoint(checkpoint)
    place.lock()
    try:
        program = place.read_whole_program()
        if program is not None:
            check_program(plan, place, settings.shards, 1, settings.remove)
        check_owners(plan, place.path, program)
        place.latest()
        _check_ports(plan)
        engine, looker = engine_of(plan, place, settings, looking)
        if fleeting:
            forget_rows(plan)
        return Handle(engine, settings, flow.name, looker, fleeting=fleeting)
    except BaseException:
        place.close()
        raise


def plan_snapshots(flow: Flow, checkpoint: Path | None, looks: Looks) -> Plan:
    """Find every mistake that can be found before anything is started."""
    plan = plan_flow(flow, checkpoint)
    looked_for(plan, looks)
    return plan


def snapshots(
    flow: Flow, checkpoint: Path | None, settings: Settings, looks: Looks, plan: Plan
) -> Iterator[Snapshot]:
    """Run a flow and give its snapshots; whoever stops asking for them stops it."""
    handle = start(flow, checkpoint, settings, looks, plan)
    try:
        yield from handle.snapshots()
        handle.wait()
    finally:
        if handle.running:
            handle.stop()
