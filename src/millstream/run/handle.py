"""A running flow: an engine on Spark, on a thread of its own, behind a handle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.api.early import Snapshot
from millstream.api.frames import plainly
from millstream.api.sinks import Redis
from millstream.errors import MillstreamError, RunError
from millstream.io.mirrors import require_redis
from millstream.plan.stages import Plan
from millstream.run.batches.attending import PERIOD
from millstream.run.batches.engine import Engine
from millstream.run.console import told_work, warnings_of
from millstream.run.early.looker import Looker
from millstream.run.fleeting import remove_fleeting
from millstream.run.program.program import LEAST_SHARDS
from millstream.run.replacing import Replacement, Request, Requests, replace_program
from millstream.run.reporting import Progress, Reporter
from millstream.run.spark.cores import Decided
from millstream.run.spark.remote import is_remote
from millstream.run.spark.session import remove_scratch
from millstream.run.spark.sharing import OnAny, Spark
from millstream.run.spark.stopping import too_late
from millstream.serve.following import Follower
from millstream.serve.slates import Decoder
from millstream.serve.status import Live, Served
from millstream.settings import Settings
from millstream.state.checkpoint import SCRATCH

if TYPE_CHECKING:
    from millstream.api.flow import Flow
    from millstream.serve.server import Server

_RESERVE = 2.0  # seconds of the time for a stop that ending processes may take
_LOOKING = 0.1  # share of a core that idle flows of one process may take together for their looks


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
        spark: Spark | None = None,
    ) -> None:
        self.progress = Progress()
        self._engine = engine
        self._reporter = Reporter(engine)
        self._looker = looker
        self._settings = settings
        self._flow = flow
        self._fleeting = fleeting  # its checkpoint goes with it
        self._stopping = threading.Event()
        self._patience = settings.stop_timeout
        self._spark = spark or Spark(flow, settings)
        self._session: Any = None
        self._gave_up = False
        self.overdue = False  # not even that helped: something in this process does not return
        self._wake = threading.Event()  # a stop or another flow is asked for
        self._requests = Requests(flow, self._wake)
        self.warnings: tuple[str, ...] = ()  # what to look at, once it has ended
        self._error: BaseException | None = None
        self._executor: OnAny | None = None
        self._decoders = _decoders(engine.plan)
        self._server: Server | None = None
        self._live: Live | None = None
        if settings.serve is not None:
            self._server = _open_server(engine, settings.serve, self)
            self._server.start()
        engine.patience.on_pause = self._report
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
    def looks(self) -> list[tuple[float, int]]:
        """All looks so far before the end: the share that was read, and the batch it ends with."""
        return [] if self._looker is None else list(self._looker.taken)

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot of a flow that is looked at."""
        return None if self._looker is None else self._looker.newest

    @property
    def url(self) -> str | None:
        """Where it serves slates and status; None if it does not."""
        return self._server.url if self._server is not None else None

    @property
    def error(self) -> BaseException | None:
        """What went wrong, if it ended by that."""
        return None if self.running else self._error

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
        return self._requests.ask(flow, dry_run)

    def rest(self, seconds: float) -> None:
        """Wait so long for the end, and no longer."""
        self._over.wait(seconds)

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
        while not self._stopping.wait(PERIOD):
            self._engine.outlook.sign()
        end = time.monotonic() + self._patience
        reserve = min(_RESERVE, self._patience / 4)
        self._over.wait(max(0.0, self._patience - reserve))
        if self.running:
            self._gave_up = True
            self._spark.give_up(self, self._executor)
            self._over.wait(max(0.0, end - time.monotonic()))
            self.overdue = self.running

    def _too_late(self) -> str:
        begun = self._executor is not None
        return too_late(self._flow, self._engine.plan, begun, self._patience)

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._main()
        finally:
            self._over.set()

    def _main(self) -> None:
        scratch = self._engine.checkpoint.local / SCRATCH
        remove_scratch(scratch)  # of a run that was killed
        try:
            if not is_remote(self._settings):
                scratch = self._engine.keep_warm().scratch(self._settings) or scratch
            opened = self._spark.open(scratch)
            self._session = opened.session
            self._executor = self._on_spark(self._engine.plan)
            decided = opened.decided or Decided(self._executor.cores, LEAST_SHARDS)
            self._engine.open(decided.cores, decided.least_shards)
            self._reporter.begin()
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
            self._requests.refuse()
            if self._server is not None:
                self._server.stop()
            try:
                self._spark.close(self, self._executor)
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

    def _on_spark(self, plan: Plan) -> OnAny:
        checkpoint, timeout = self._engine.checkpoint.local, self._settings.function_micros
        return self._spark.executor(self._session, plan, checkpoint, timeout)

    def _loop(self) -> None:
        engine = self._engine
        enough = self._looker is not None and self._looker.at_start()
        if self._looker is not None and self._looker.newest is not None:
            self._show()  # what an earlier run came to, before there is a batch of this one
        while not self._stopping.is_set() and not enough:
            begun, used = time.monotonic(), time.thread_time()
            self._requests.answer(self._engine, self._replace)
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
            looked = time.thread_time() - used
            rest = between_looks(self._settings.poll, looked, self._spark.users)
            self._pause(begun + (self._settings.interval if worked else rest))
        if self._looker is not None and self._stopping.is_set():
            self._looker.at_stop()
        if self._executor is not None:
            engine.bring_out(self._executor)
        self._report()

    def _pause(self, until: float) -> None:
        """Wait; what is asked for meanwhile is answered at once."""
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()
            self._requests.answer(self._engine, self._replace)

    def _replace(self, request: Request) -> Replacement:
        flow, ready = request.flow, list[OnAny]()
        before = self._executor
        assert before is not None

        def prepare(plan: Plan) -> None:
            if any(isinstance(sink.spec, Redis) for sink in plan.sinks()):
                require_redis()
            ready.append(self._on_spark(plan))

        if not request.dry_run:  # the new program may lack the sink that results wait for
            self._engine.bring_out(before)
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

    def _report(self) -> None:
        self.progress = self._reporter.progress()
        self._show()
        if self._settings.on_progress is not None:
            self._engine.hands.tell("on_progress", self._settings.on_progress, self.progress)

    def _show(self) -> None:
        """Let the live page see it."""
        if self._server is not None:
            drawn = None if self._looker is None else self._looker.drawn
            self._live = self._reporter.live(self.progress, drawn)


def between_looks(poll: float, looked: float, flows: int) -> float:
    """Seconds from one look at idle sources to the next, if it used so many of the processor."""
    return max(poll, looked * flows / _LOOKING) if flows > 1 else poll


def _decoders(plan: Plan) -> dict[str, Decoder]:
    """How the slates of every updater are read."""
    return {node.name: node.job.codec.decode for node in plan.updaters()}


def _open_server(engine: Engine, address: int | str, handle: Handle) -> Server:
    from millstream.serve.server import open_server, parse_address
    from millstream.serve.tokens import find_token

    host, port = parse_address(address)
    follower = Follower(engine.checkpoint.path, handle._decoders, eager=True, new=True)
    view = Served(follower, lambda: handle._live or Live())
    token_file = handle._settings.token_file
    token = find_token(None if token_file is None else Path(token_file))
    return open_server(view, host, port, token)
