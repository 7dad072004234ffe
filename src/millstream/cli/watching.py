"""A query of the shell at work: its rows as a table of the terminal that changes in place.

The query runs as a flow of its own on Spark, with a checkpoint that is thrown away. Changes are
kept as a view, and the table is what it holds after each batch; of records, which have no end, the
newest are shown.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import termios
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from millstream.api.flow import Flow
from millstream.api.sinks import Call
from millstream.api.stream import Stream
from millstream.cli.asking import as_table
from millstream.errors import CheckpointError, MillstreamError
from millstream.graph.changing import gives_changes
from millstream.ops.records import to_table
from millstream.serve.following import Follower
from millstream.serve.views import read_all, read_page
from millstream.settings import Settings
from millstream.sql.asking import Asked, read_query
from millstream.sql.catalog import upstream

if TYPE_CHECKING:
    from millstream.run.handle import Handle

_ANSWER = "answer"
_EVERY = 0.2  # seconds between looks
_KEPT = 1000  # of the newest records
_SORTED = 100_000  # rows of a view that are read whole to be put in order
_FRAME = 8  # lines that are not rows


class Watching:
    """Runs queries one after the other; Spark stays between them."""

    def __init__(self, console: Console, master: str, debug: bool) -> None:
        self.console = console
        self._scratch = Path(tempfile.mkdtemp(prefix="millstream-shell-"))
        self._settings = Settings(master=master, debug=debug)
        self._session: Any = None
        self._number = 0

    def watch(self, flow: Flow, sql: str) -> None:
        """Show the rows of a query until it has ended, or is interrupted."""
        from millstream.run.runner import start
        from millstream.run.spark.session import open_session

        with flow.attempt(keep=False):
            asked = read_query(sql, flow.catalog.find, flow.catalog.names)
            query = Flow.of_nodes("query", upstream(asked.stream))
        shown = _Shown(query, asked)
        self._number += 1
        place = self._scratch / str(self._number)
        if self._session is None:
            try:
                with self.console.status("starting Spark"), _uninterrupted():
                    self._session = open_session("shell", self._settings, self._scratch / "spark")
            except KeyboardInterrupt:
                return
        handle = start(query, place, self._settings)
        try:
            self._show(handle, shown, place)
        finally:
            self._stop(handle)
            shutil.rmtree(place, ignore_errors=True)

    def _show(self, handle: Handle, shown: _Shown, place: Path) -> None:
        most = max(5, self.console.height - _FRAME)
        with _without_echo(), Live(console=self.console, refresh_per_second=10) as live:
            try:
                while handle.running:
                    live.update(shown.look(place, most, handle))
                    time.sleep(_EVERY)
            except KeyboardInterrupt:
                live.update(shown.look(place, most, handle, "ending with this batch"), refresh=True)
                self._stop(handle)
            live.update(shown.look(place, most, handle))
        handle.wait()

    def _stop(self, handle: Handle) -> None:
        """Let a query end; a second Ctrl-C does not wait for it."""
        with suppress(KeyboardInterrupt, MillstreamError):
            handle.stop()

    def close(self) -> None:
        """End Spark, and remove what queries kept."""
        if self._session is not None:
            from millstream.run.spark.session import close_session

            context, ours = self._session
            if ours:
                close_session(context)
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold a Ctrl-C back until what is half done is done."""
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def _without_echo() -> Iterator[None]:
    """Keep what is typed meanwhile from the screen, where a table changes in place."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield  # not a terminal
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


class _Shown:
    """What a query has given so far."""

    def __init__(self, flow: Flow, asked: Asked) -> None:
        self.asked = asked
        stream = Stream(flow, asked.stream.node)
        self._changes = gives_changes(stream.node)
        self._newest: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._follower: Follower | None = None
        self._rows = 0
        if self._changes:
            stream.view(_ANSWER)
        else:
            stream.sink(Call(self._take), name=_ANSWER)

    def _take(self, row: dict[str, Any]) -> None:
        self._newest.append(row)
        self._rows += 1

    def look(self, place: Path, most: int, handle: Handle, state: str = "") -> Group:
        """The table as it is now, and a line about it."""
        table, count = self._view(place, most) if self._changes else self._records(most)
        state = state or (
            "Ctrl-C ends it"
            if handle.running
            else "complete"
            if handle.progress.done
            else "stopped"
        )
        told = f"{count:,} row{'s' if count != 1 else ''}"
        if len(table) < count:
            told += f", {len(table)} of them shown"
        batch = handle.progress.batch
        told += f" · batch {batch}" if batch >= 0 else " · no batch yet"
        return Group(as_table(table), Text(f"{told} · {state}", "dim"))

    def _records(self, most: int) -> tuple[pa.Table, int]:
        rows = list(self._newest)
        table = pa.table({name: pa.array([], pa.string()) for name in self.asked.columns})
        if rows:
            table, _ = to_table(rows, None)
            table = self.asked.arranged(table)
        count = self._rows if self.asked.limit is None else min(self._rows, self.asked.limit)
        return (
            table.slice(0, most) if self.asked.order else table.slice(max(0, len(table) - most))
        ), count

    def _view(self, place: Path, most: int) -> tuple[pa.Table, int]:
        empty = pa.table({name: pa.array([], pa.string()) for name in self.asked.columns})
        try:
            if self._follower is None:
                self._follower = Follower(place)
            return self._follower.read(lambda now: self._read(now, most))
        except CheckpointError:  # it has not begun
            return empty, 0

    def _read(self, now: Any, most: int) -> tuple[pa.Table, int]:
        view = now.view(_ANSWER)
        if now.rows(view) <= _SORTED:
            table = self.asked.arranged(read_all(now, view))
            return table.slice(0, most), len(table)
        page = read_page(now, view, limit=most).rows
        return self.asked.completed(page).select(list(self.asked.columns)), now.rows(view)
