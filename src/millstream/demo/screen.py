"""What the demonstration shows while it runs: the busiest symbols, drawn anew each batch.

On a terminal it is live; elsewhere there is a plain line a batch, and the table at the end.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from millstream.api.sinks import Memory
from millstream.demo.flow import SIZE, SLIDE
from millstream.demo.trades import CLOSE, DAY
from millstream.run.reporting import Progress

_SHOWN = 12
_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 28  # characters of a curve
_BAR = 8  # characters of the longest bar
_END = pa.scalar(DAY + timedelta(seconds=CLOSE), pa.timestamp("us", "UTC"))
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Board:
    """Per symbol its averages so far and its volume, as far as results have come out."""

    def __init__(self) -> None:
        self.averages: dict[str, list[float]] = {}
        self.volume: dict[str, float] = {}
        self._seen = 0

    def take(self, results: Memory) -> None:
        """Add what came out since the last time."""
        tables = results.tables[self._seen :]
        self._seen += len(tables)
        for table in tables:
            # After the close windows run out of trades, and their averages jump.
            table = table.filter(pc.less_equal(table.column("window_end"), _END))
            grouped = table.sort_by("window_start").group_by("symbol", use_threads=False)
            found = grouped.aggregate([("average", "list"), ("volume", "sum")])
            for row in found.to_pylist():
                symbol = row["symbol"]
                self.averages.setdefault(symbol, []).extend(row["average_list"])
                # A trade is in several windows, and was counted in each.
                share = row["volume_sum"] * (SLIDE / SIZE)
                self.volume[symbol] = self.volume.get(symbol, 0.0) + share

    def busiest(self, number: int) -> list[str]:
        """The symbols with the highest volume."""
        return sorted(self.volume, key=lambda symbol: (-self.volume[symbol], symbol))[:number]


class Screen:
    """Plain lines: for pipes, files and logs."""

    def __init__(self, console: Console, trades: int) -> None:
        self.console, self.trades = console, trades
        self.board = Board()
        self.batch = -1
        self.started = time.monotonic()

    def __enter__(self) -> Screen:
        self.console.print("starting Spark", highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def update(self, progress: Progress, results: Memory) -> None:
        """A line for a batch."""
        if progress.batch == self.batch:
            return
        self.batch = progress.batch
        self.board.take(results)
        self.show(progress)

    def show(self, progress: Progress) -> None:
        """Draw what is known now."""
        line = "  ".join(f"{name} {value}" for name, value in _figures(progress))
        self.console.print(line, highlight=False, soft_wrap=True)

    def final(self, progress: Progress) -> RenderableType:
        """What stays on the screen."""
        return _table(self.board, f"The {_SHOWN} busiest symbols at the end of the day")


class LiveScreen(Screen):
    """A live table on a terminal."""

    def __init__(self, console: Console, trades: int) -> None:
        super().__init__(console, trades)
        self.progress = Progress()
        self.live = Live(
            console=console, get_renderable=self._whole, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Screen:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def show(self, progress: Progress) -> None:
        """The live part draws itself; this is what it draws from now on."""
        self.progress = progress

    def final(self, progress: Progress) -> RenderableType:
        """The last state of the screen, without the bar."""
        return Group(_head(progress), super().final(progress))

    def _whole(self) -> RenderableType:
        if self.progress.batch < 0:
            return Text(f"starting Spark ... {time.monotonic() - self.started:.0f} s", style="dim")
        done = self.progress.rows / self.trades
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=1.0, completed=done, width=_width(self.console) - 7),
            Text(f"{done:4.0%}", style="bold"),
        )
        title = f"Moving averages over {_words(SIZE.seconds)}, every {_words(SLIDE.seconds)}"
        return Group(_head(self.progress), bar, _table(self.board, title))


def make_screen(console: Console, trades: int) -> Screen:
    """What suits where the output goes."""
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveScreen(console, trades) if live else Screen(console, trades)


# -- parts ----------------------------------------------------------------------------------------


def _head(progress: Progress) -> RenderableType:
    grid = Table.grid(padding=(0, 3, 0, 0))
    figures = _figures(progress)
    for _ in figures:
        grid.add_column(no_wrap=True)
    grid.add_row(*(Text(name, style="dim") for name, _ in figures))
    grid.add_row(*(Text(value, style="bold cyan") for _, value in figures))
    return grid


def _figures(progress: Progress) -> list[tuple[str, str]]:
    seen = "end of day" if progress.done else "-"
    if progress.watermark is not None and not progress.done:
        seen = f"{datetime.fromtimestamp(progress.watermark / 1e6, UTC):%H:%M:%S}"
    return [
        ("batch", f"{progress.batch}"),
        ("trades", f"{progress.rows:,}"),
        ("trades/s", f"{progress.rows_per_second:,.0f}"),
        ("watermark", seen),
        ("results", f"{progress.windows:,}"),
        ("dead", f"{progress.dead:,}"),
        ("late", f"{progress.late:,}"),
    ]


def _table(board: Board, title: str) -> RenderableType:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("symbol", style="bold", no_wrap=True)
    table.add_column("volume", justify="right", no_wrap=True)
    table.add_column("", width=_BAR, no_wrap=True)
    table.add_column("average", justify="right", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    table.add_column("since the open", width=_SPARKS, no_wrap=True)
    shown = board.busiest(_SHOWN)
    top = max((board.volume[symbol] for symbol in shown), default=1.0)
    for symbol in shown:
        averages, volume = board.averages[symbol], board.volume[symbol]
        change = averages[-1] / averages[0] - 1
        style = "green" if change >= 0 else "red"
        table.add_row(
            symbol,
            f"{volume:,.0f}",
            Text(bar(volume / top, _BAR), style="blue"),
            f"{averages[-1]:,.2f}",
            Text(f"{change:+.2%}", style=style),
            Text(sparkline(averages, _SPARKS), style=style),
        )
    return table


def sparkline(values: list[float], width: int) -> str:
    """A curve in one line of text."""
    step = max(1.0, len(values) / width)
    sample = [values[int(i * step)] for i in range(min(width, len(values)))]
    sample[-1:] = values[-1:]
    low, high = min(sample), max(sample)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * 7)] for value in sample)


def bar(share: float, width: int) -> str:
    """A bar in eighths of characters."""
    eighths = max(1, round(share * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _width(console: Console) -> int:
    return min(console.width, 88)


def _words(seconds: int) -> str:
    return f"{seconds // 60} minutes" if seconds % 60 == 0 else f"{seconds} seconds"
