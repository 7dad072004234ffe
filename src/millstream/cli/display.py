"""What a running flow looks like: a live line on a terminal, plain lines elsewhere, a summary."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millstream.cli.answers import answer_table, show_answer
from millstream.run.batches.ledger import WAYS, summary
from millstream.run.console import told_work, warnings_of
from millstream.state.storage import open_storage

if TYPE_CHECKING:
    from millstream.api.early import Snapshot
    from millstream.run.reporting import Progress

_EVERY = 1.0  # seconds between plain lines
_WAITING = 30.0  # between lines as long as there is no batch
_RECENT = 7 * 86_400  # seconds; a watermark further back is history, and its lag says nothing
_LOST = ("dead", "failed", "dropped")
_COLUMNS = ("offered", *WAYS)


class Lines:
    """Plain lines, at most one a second: for pipes, files and logs."""

    def __init__(self, console: Console, flow: str, sources: list[str]) -> None:
        self.console, self.sources = console, sources
        self.batch = -1
        self.at = 0.0
        self.started = self.told = time.monotonic()
        self.paused: str | None = None
        self.snapshot: Snapshot | None = None
        self.note(f"{flow}: starting Spark")

    def update(self, progress: Progress) -> None:
        """A line if a batch was committed since the last one; a few before there is any."""
        if progress.paused != self.paused:
            self.paused = progress.paused
            if self.paused:
                self.note(self.paused)
        if progress.batch < 0 and (now := time.monotonic()) - self.told >= _WAITING:
            self.told = now
            self.note(f"no batch is committed yet after {now - self.started:.0f} s")
        if progress.batch == self.batch or time.monotonic() - self.at < _EVERY:
            return
        self.batch, self.at = progress.batch, time.monotonic()
        parts = [f"batch {progress.batch}"]
        if progress.fraction is not None:
            parts.append(f"{progress.fraction:.0%}")
        parts += figures(progress)
        self.note("  ".join([*parts, f"[{summary(progress.ledger, self.sources)}]"]))

    def look(self, snapshot: Snapshot | None) -> None:
        """The estimates, once for every snapshot; the exact answer is shown at the end."""
        if snapshot is not None and snapshot is not self.snapshot:
            self.snapshot = snapshot
            if snapshot.ended_by is None:
                show_answer(self.console, snapshot)

    def note(self, message: str) -> None:
        """One line."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is open."""


class Status:
    """A live display: a bar for input that has an end, a status line for input that has none."""

    def __init__(self, console: Console, flow: str, sources: list[str], bounded: bool) -> None:
        self.console, self.flow, self.sources, self.bounded = console, flow, sources, bounded
        self.started = time.monotonic()
        self.spinner = Spinner("dots", style="cyan")
        self.snapshot: Snapshot | None = None
        self.live = Live(
            self._waiting("starting Spark"), console=console, refresh_per_second=10, transient=True
        )
        self.live.start()

    def update(self, progress: Progress) -> None:
        """Draw anew."""
        if progress.paused:
            self.live.update(self._waiting(progress.paused))
        elif progress.batch < 0:
            self.live.update(self._waiting("starting Spark"))
        else:
            drawn = self._bar(progress) if self.bounded else self._line(progress)
            if self.snapshot is not None:
                drawn = Group(drawn, answer_table(self.snapshot, self.console.height - 6))
            self.live.update(drawn)

    def look(self, snapshot: Snapshot | None) -> None:
        """The newest estimates stay below the bar."""
        self.snapshot = snapshot

    def note(self, message: str) -> None:
        """A line above the live part."""
        self.console.print(Text(message, style="yellow"))

    def close(self) -> None:
        """Give the terminal back."""
        self.live.stop()

    def _waiting(self, what: str) -> RenderableType:
        return self._row(Text(what, style="dim"), Text(self._clock(), style="dim"))

    def _bar(self, progress: Progress) -> RenderableType:
        done = progress.fraction or 0.0
        width = max(10, min(40, self.console.width - 75))
        return self._row(
            ProgressBar(total=1.0, completed=done, width=width),
            Text(f"{done:4.0%}", style="bold"),
            Text("  ".join(figures(progress)[:3])),
            Text(self._clock(), style="dim"),
        )

    def _line(self, progress: Progress) -> RenderableType:
        books = summary(progress.ledger, self.sources)
        first = self._row(Text("  ".join(figures(progress))), Text(self._clock(), style="dim"))
        waiting = f", {_size(progress.pending_bytes)} waiting" if progress.pending_bytes else ""
        return Group(
            first, Text(f"  batch {progress.batch}; ledger: {books}{waiting}", style="dim")
        )

    def _row(self, *cells: RenderableType) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        for _ in range(len(cells) + 2):
            grid.add_column(no_wrap=True)
        grid.add_row(self.spinner, Text(self.flow, style="bold cyan"), *cells)
        return grid

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.started)
        return f"{seconds // 60}:{seconds % 60:02d}"


Display = Lines | Status  # what shows how far a flow is


def make_display(
    console: Console, flow: str, sources: list[str], *, bounded: bool, quiet: bool
) -> Display:
    """What suits where the output goes."""
    if quiet:
        return Lines(Console(quiet=True), flow, sources)
    if console.is_terminal and not console.is_dumb_terminal:
        return Status(console, flow, sources, bounded)
    return Lines(console, flow, sources)


def show_summary(
    console: Console, progress: Progress, steps: list[str], dead_letters: str, outcome: str
) -> None:
    """What was done and where every record went; `steps` is the order of the books."""
    head = f"{outcome} after {progress.elapsed:.1f} s: {told_work(progress)}"
    console.print(head, markup=False, highlight=False, soft_wrap=True, style="bold")
    if progress.ledger:
        console.print(_books(progress, steps))
    for warning in warnings_of(progress, steps, open_storage(dead_letters)):
        console.print(warning, markup=False, highlight=False, soft_wrap=True, style="yellow")


def _books(progress: Progress, steps: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("ledger", no_wrap=True)
    there = {name for account in progress.ledger.values() for name, n in account.items() if n}
    columns = [name for name in _COLUMNS if name != "diverted" or name in there]
    columns += ["results", "failed"] if "failed" in there else []
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for step in (name for name in steps if name in progress.ledger):
        account = progress.ledger[step]
        numbers = [account.get(column, 0) for column in columns]
        table.add_row(Text(step), *map(_cell, columns, numbers))
    return table


def _cell(column: str, number: int) -> Text:
    style = "yellow" if number and column in _LOST else ""
    return Text(f"{number:,}" if number else "-", style=style)


def figures(progress: Progress) -> list[str]:
    """How much was read and given, how fast, and how far in time."""
    parts = [f"{progress.rows:,} records", f"{progress.rows_per_second:,.0f}/s"]
    parts.append(f"{progress.windows:,} results")
    if progress.watermark is not None:
        at = datetime.fromtimestamp(progress.watermark / 1e6, UTC)
        parts.append(f"watermark {at:%Y-%m-%d %H:%M:%S}")
        lag = time.time() - progress.watermark / 1e6
        if 0 <= lag < _RECENT:
            parts.append(f"lag {lag:,.1f} s")
    return parts


def _size(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:,.0f} {unit}"
        number /= 1024
    return ""
