"""`millstream run a.py b.py`: several flows on one Spark, watched and stopped together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.api.config import Application
from millstream.api.early import Looks
from millstream.cli import complain
from millstream.cli.display import Lines, figures
from millstream.cli.guarding import calls_functions
from millstream.cli.reloading import Listening
from millstream.cli.running import STOPPING, Stopping, result_of
from millstream.errors import ConfigError
from millstream.graph.nodes import Source
from millstream.run.console import told_work
from millstream.run.handle import Handle
from millstream.run.handles import Handles
from millstream.run.several import Start, start_all
from millstream.settings import Settings

_LOOK = 0.1  # seconds between looks at the running flows


@dataclass(frozen=True)
class Program:
    """A file with a flow, and how it is run."""

    found: Application
    checkpoint: Path
    options: dict[str, Any]
    file: Path
    load: Callable[[], Application]


def check_several(flow: str | None, looks: Looks | None, remove: list[str] | None) -> None:
    """Refuse options that are about one flow where there are several."""
    options = {"--flow": flow, "--snapshots, --until and --within": looks, "--remove": remove}
    for name, value in options.items():
        if value:
            raise ConfigError(f"{name}: only with one file; run that flow by itself for it")


def run_flows(programs: list[Program]) -> None:
    """Run all to their ends or to a signal; raises what went wrong when none runs any more."""
    console = Console()
    handles = start_all(
        [
            Start(
                one.found.flow,
                one.checkpoint,
                Settings.from_options(one.options),
                one.found.locating,
            )
            for one in programs
        ]
    )
    quiet = all(one.options["quiet"] for one in programs)
    functions = any(calls_functions(one.found.flow) for one in programs)
    with (
        Stopping(handles.request_stop, handles.patience if functions else None) as stopping,
        ExitStack() as listening,
    ):
        looks = []
        for one in programs:
            handle = handles[one.found.flow.name]
            asked = Listening(handle, one.checkpoint, one.file, one.load)
            looks.append(listening.enter_context(asked).look)
        with _board(console, programs, quiet=quiet) as board:
            _watch(handles, board, stopping, looks)
        result_of(handles, stopping)
    if not quiet and any(not one.done for one in handles.progress.values()):
        console.print("run the same command again to go on where they stopped", style="dim")


def _watch(
    handles: Handles, board: Board, stopping: Stopping, looks: list[Callable[[], None]]
) -> None:
    """Show all of them until none runs; a flow that has ended is told of at once."""
    noted, ended = dict.fromkeys(handles, 0), set[str]()
    for flow, handle in handles.items():
        if handle.url is not None:
            board.note(f"{flow}: slates and status at {handle.url}")
    over = False
    while not over:
        over = not handles.running or handles.overdue
        if stopping.asked and not stopping.told:
            stopping.told = True
            print(STOPPING.replace("batch", "batches"), file=sys.stderr, flush=True)
        for flow, handle in handles.items():
            for note in handle.progress.notes[noted[flow] :]:
                board.note(f"{flow}: {note}")
            noted[flow] = len(handle.progress.notes)
        board.update(handles)
        for flow, handle in handles.items():
            if not handle.running and flow not in ended:
                ended.add(flow)
                _tell_end(flow, handle, board, sum(one.running for one in handles.values()))
        for look in looks:
            look()
        if not over:
            time.sleep(_LOOK)


def _tell_end(flow: str, handle: Handle, board: Board, left: int) -> None:
    if handle.error is not None:
        others = f"; {left} other{'s' * (left != 1)} still run{'s' * (left == 1)}"
        if left:  # else the end says it
            complain(f"flow {flow!r} failed{others}: {handle.error}")
        return
    outcome = "complete" if handle.progress.done else "stopped"
    board.note(f"{flow}: {outcome}: {told_work(handle.progress)}")
    for warning in handle.warnings:
        board.note(f"{flow}: {warning}")


# -- what is seen of them ------------------------------------------------------------------------


class _Lines:
    """Plain lines that begin with the name of the flow: for pipes, files and logs."""

    def __init__(self, console: Console, programs: list[Program]) -> None:
        self.console = console
        self.flows = {
            one.found.flow.name: _Prefixed(console, one.found.flow.name, _sources(one))
            for one in programs
        }

    def update(self, handles: Handles) -> None:
        """A line of every flow that committed a batch since its last one."""
        for flow, handle in handles.items():
            if handle.running or handle.progress.batch >= 0:  # else it will never have one
                self.flows[flow].update(handle.progress)

    def note(self, message: str) -> None:
        """One line."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)


class _Prefixed(Lines):
    def __init__(self, console: Console, flow: str, sources: list[str]) -> None:
        self.whose = ""  # its first line says so by itself
        super().__init__(console, flow, sources)
        self.whose = f"{flow}: "

    def note(self, message: str) -> None:
        """One line, and whose it is."""
        super().note(f"{self.whose}{message}")


class _Table:
    """A live table with a row for every flow."""

    def __init__(self, console: Console, live: Live) -> None:
        self.console, self.live = console, live

    def update(self, handles: Handles) -> None:
        """Draw anew."""
        table = Table.grid(padding=(0, 2))
        for flow, handle in handles.items():
            progress = handle.progress
            state = "failed" if handle.error is not None else f"batch {progress.batch}"
            if not handle.running and handle.error is None:
                state = "complete" if progress.done else "stopped"
            elif handle.running and (progress.paused or progress.batch < 0):
                state = progress.paused or "starting"
            done = "" if progress.fraction is None else f"{progress.fraction:.0%}"
            cells = (state, done, *figures(progress))
            table.add_row(Text(flow, style="bold cyan"), *map(Text, cells))
        self.live.update(table)

    def note(self, message: str) -> None:
        """A line above the table."""
        self.console.print(Text(message, style="yellow"))


Board = _Lines | _Table


@contextmanager
def _board(console: Console, programs: list[Program], *, quiet: bool) -> Iterator[Board]:
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield _Lines(Console(quiet=True) if quiet else console, programs)
        return
    with Live(console=console, refresh_per_second=5, transient=True) as live:
        yield _Table(console, live)


def _sources(program: Program) -> list[str]:
    return [node.name for node in program.found.flow.nodes if isinstance(node, Source)]
