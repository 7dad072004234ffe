"""The demonstration: invented trades through windows, shown live, drawn, and checked.

`run_demo` is what `millstream demo` runs; each module here is one of its parts.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from rich.console import Console

from millstream.demo.check import Agreement, compare
from millstream.demo.flow import SIZE, SLIDE, make_flow
from millstream.demo.screen import Screen, make_screen
from millstream.demo.trades import SYMBOLS, invent
from millstream.errors import ConfigError
from millstream.run.reporting import Progress

_MARKER = "made-by-millstream-demo"
_BATCHES = 20  # of about the same size, so that there is something to watch


def run_demo(trades: int, seed: int, out: Path, *, debug: bool = False) -> int:
    """Run it all; the exit code says whether DuckDB agrees."""
    console = Console()
    _empty(out)
    started = time.perf_counter()
    invent(out / "trades", trades, seed)
    _say(
        console,
        f"{trades:,} trades of {SYMBOLS} symbols invented in {time.perf_counter() - started:.1f} s "
        f"(seed {seed}) -> {out / 'trades'}",
    )
    screen = make_screen(console, trades)
    progress = _run(out, trades, screen, debug)
    console.print(screen.final(progress))
    _say(
        console,
        f"{progress.windows:,} results of {progress.rows:,} trades in {progress.elapsed:.1f} s, "
        f"{progress.dead} dead letters, {progress.late} late -> {out / 'averages'}, "
        f"{out / 'market'}",
    )
    agreement = _check(console, out)
    _draw(console, out, progress, agreement)
    return 0 if agreement is None or agreement.good else 1


def _empty(out: Path) -> None:
    """A fresh directory every time, but never somebody's own files."""
    marker = out / _MARKER
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory with --out")
    if out.exists() and any(out.iterdir()) and not marker.exists():
        raise ConfigError(
            f"{out} has files that the demonstration did not make; choose another place with --out"
        )
    shutil.rmtree(out, ignore_errors=True)
    try:
        out.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written ({error.strerror}); choose another place with --out"
        ) from error


def _run(out: Path, trades: int, screen: Screen, debug: bool) -> Progress:
    flow, averages = make_flow(out)
    rows = max(1, trades // _BATCHES // (os.cpu_count() or 1))  # they are per core
    handle = flow.start(out / "checkpoint", batch_rows=rows, debug=debug)
    try:
        with screen:
            while handle.running:
                screen.update(handle.progress, averages)
                time.sleep(0.1)
            screen.update(handle.progress, averages)
        return handle.wait()
    except KeyboardInterrupt:
        handle.stop()
        raise


def _check(console: Console, out: Path) -> Agreement | None:
    try:
        agreement = compare(out, SIZE, SLIDE)
    except ImportError:
        _say(console, "DuckDB is not installed, so nothing was compared: pip install duckdb")
        return None
    style = "bold green" if agreement.good else "bold red"
    console.print(str(agreement), style=style, highlight=False, soft_wrap=True)
    return agreement


def _draw(console: Console, out: Path, progress: Progress, agreement: Agreement | None) -> None:
    try:
        from millstream.demo.picture import draw
    except ImportError:
        _say(console, "matplotlib is not installed, so nothing was drawn: pip install matplotlib")
        return
    caption = f"{progress.rows:,} trades, {progress.windows:,} results, {progress.elapsed:.1f} s"
    if agreement is not None:
        caption += f". {agreement}"
    path = draw(out, caption)
    _say(console, f"the picture is {path}")


def _say(console: Console, message: str) -> None:
    console.print(message, markup=False, highlight=False, soft_wrap=True)
