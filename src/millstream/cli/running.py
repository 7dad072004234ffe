"""Running a flow from the command line: watching it, and stopping it cleanly on a signal."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from rich.console import Console

from millstream.api.config import Application
from millstream.api.early import Looks
from millstream.api.flow import Flow
from millstream.cli import complain
from millstream.cli.answers import show_answer
from millstream.cli.display import Display, make_display, show_summary
from millstream.cli.guarding import Guard, calls_functions
from millstream.cli.reloading import Listening
from millstream.errors import MillstreamError, RunError
from millstream.graph.nodes import Source, Update
from millstream.operators.view import Kept
from millstream.run.handle import Handle
from millstream.run.runner import start
from millstream.run.spark.session import end_java
from millstream.settings import Settings

E = TypeVar("E", covariant=True)

STOPPING = "stopping after the current batch (Ctrl-C again to abort)"
_LOOK = 0.1  # seconds between looks at a running flow
_ABORTED = 130
_ABORTING = b"\naborted; nothing is lost: the next run begins with the batch that was under way\n"


class Stopping:
    """SIGINT and SIGTERM: the first asks for a clean stop, the second ends everything."""

    def __init__(self, request: Callable[[], None], guarded: float | None = None) -> None:
        self.request = request
        self._guarded = guarded  # seconds after which somebody else ends a process that cannot
        self._guard: Guard | None = None
        self.asked = self.told = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        if self._guarded is not None:
            self._guard = Guard(self._guarded)
        return self

    def __exit__(self, *_: object) -> None:
        if self._guard is not None:
            self._guard.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os.write(2, _ABORTING)
            end_java(kill=True)
            os._exit(_ABORTED)
        self.asked = True
        self.request()


def run_flow(
    flow: Flow,
    checkpoint: Path,
    options: dict[str, Any],
    *,
    quiet: bool,
    file: Path,
    load: Callable[[], Application],
    looks: Looks | None = None,
    console: Console | None = None,
    on_look: Callable[[float, int], None] | None = None,
) -> None:
    """Run to the end or to a signal; raises what went wrong.

    `load` loads the file again, for `millstream reload`. looks: show early answers. console: where
    progress is shown. on_look: shows early answers instead, called for each with the share that
    was read and the batch it ends with.
    """
    console = console or Console()
    handle = start(flow, checkpoint, Settings.from_options(options), looks)
    specs = [node.spec for node in flow.nodes if isinstance(node, Source)]
    names = [node.name for node in flow.nodes if isinstance(node, Source)]
    display = make_display(
        console, flow.name, names, bounded=all(spec.bounded for spec in specs), quiet=quiet
    )
    guarded = handle.patience if calls_functions(flow) else None
    with Stopping(handle.request_stop, guarded) as stopping:
        try:
            if handle.url is not None:
                display.note(f"slates and status at {handle.url}")
            with Listening(handle, checkpoint, file, load) as listening:
                watch(handle, display, stopping, listening.look, on_look)
        finally:
            display.close()
        progress = result_of(handle, stopping)
    last = None if quiet or on_look is not None else handle.snapshot
    if last is not None and (last.ended_by is not None or console.is_terminal):  # else it was shown
        show_answer(console, last)
    flow = listening.flow or flow
    if not quiet:
        outcome = "complete" if progress.done else "stopped"
        steps = [node.name for node in flow.nodes]
        show_summary(console, progress, steps, str(checkpoint / "dead"), outcome)
        updaters = [node.name for node in flow.nodes if isinstance(node, Update)]
        if updaters:
            command = f"millstream slates list {shlex.quote(updaters[0])}"
            place = shlex.quote(str(checkpoint))
            _hint(
                console, f"slates of {', '.join(updaters)} are kept: {command} --checkpoint {place}"
            )
        views = [node.view for node in flow.nodes if isinstance(node, Kept)]
        if views:
            command = shlex.join(
                ["millstream", "sql", f"SELECT * FROM {views[0]}", "--checkpoint", str(checkpoint)]
            )
            _hint(console, f"views {', '.join(views)} are kept: {command}")
        if not progress.done:
            console.print("run the same command again to go on where it stopped", style="dim")


def _hint(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def watch(
    handle: Handle,
    display: Display,
    stopping: Stopping,
    look: Callable[[], None],
    on_look: Callable[[float, int], None] | None = None,
) -> None:
    """Show progress until the flow has ended; what is said of its program is shown once."""
    noted = looked = 0
    while handle.running and not handle.overdue:
        if stopping.asked and not stopping.told:
            stopping.told = True
            if sys.stdout.isatty():
                display.note(STOPPING)
            else:
                print(STOPPING, file=sys.stderr, flush=True)
        for note in handle.progress.notes[noted:]:
            display.note(note)
        noted = len(handle.progress.notes)
        display.update(handle.progress)
        if on_look is None:
            display.look(handle.snapshot)
        elif looked < len(handle.looks):  # one takes a while, and others may come meanwhile
            on_look(*handle.looks[looked])
            looked += 1
        look()
        time.sleep(_LOOK)
    display.update(handle.progress)
    if on_look is None:
        display.look(handle.snapshot)
    elif not stopping.asked:
        for share, batch in handle.looks[looked:]:
            on_look(share, batch)


class Ending(Protocol[E]):
    """A flow, or several, whose end is waited for."""

    @property
    def overdue(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> E: ...


def result_of(handle: Ending[E], stopping: Stopping) -> E:
    """What there is at the end; raises what went wrong, and ends a process that cannot end."""
    try:
        return handle.wait(0 if handle.overdue else None)
    except MillstreamError as error:
        if handle.overdue:  # a function in this process does not return: do not wait for it
            complain(str(error))
            end_java(kill=True)
            os._exit(error.exit_code)
        raise
    except Exception as error:
        if not stopping.asked:
            raise
        # A stop that failed is not a clean stop, and must not have its exit code.
        raise RunError(
            f"Spark ended before the stop was complete ({type(error).__name__}: {error}); the "
            "batch under way may not be committed, nothing is lost: run the same command again"
        ) from error
