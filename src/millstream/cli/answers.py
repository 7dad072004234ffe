"""A table of early answers on the command line: estimates, their bounds, and a bar for the first.

Bounds are what matters, so where a line has no room for all, numbers are written shorter, then bars
are left out, and then the last values, which is said: a number that is cut off looks like another.
"""

from __future__ import annotations

from decimal import Decimal
from math import floor, isfinite, log10
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from millstream.api.early import ESTIMATE, Snapshot, values_of
from millstream.showing import visible

_BAR = 16  # characters of an error bar
_SQUEEZED = 2.5  # times the largest estimate: bounds beyond that are cut off
_ROWS = 20
_KEY = 4  # characters of a key that are shown at least
_ANY_WIDTH = 10_000
_MOST_DIGITS = 6  # behind the point
_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")


def show_answer(console: Console, snapshot: Snapshot) -> None:
    """A snapshot below what was printed so far."""
    console.print(answer_table(snapshot, _ROWS))


def answer_table(snapshot: Snapshot, rows: int) -> RenderableType:
    """The largest groups of a snapshot, with bounds and a bar for each value."""
    said = [Text(line, style="dim") for line in _said(snapshot, rows)]
    return Group(Text(_title(snapshot), style="bold"), _Groups(snapshot, max(1, rows)), *said)


class _Groups:
    """One line for each of the largest groups, as wide as there is room."""

    def __init__(self, snapshot: Snapshot, rows: int) -> None:
        columns = snapshot.table.column_names
        self._exact = snapshot.exact
        self._heavy = snapshot.heavy
        self._values = values_of(columns)
        bounds = {f"{name}{end}" for name in self._values for end in ESTIMATE}
        self._keys = [name for name in columns if name not in bounds]
        found = snapshot.table.to_pylist()
        self._widest = 0.0
        if self._values:
            first = self._values[0]
            found.sort(key=lambda row: _number(row[first]), reverse=True)
            self._widest = _scale(found, first)
        self._rows = found[:rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.update(max_width=_ANY_WIDTH)
        every = len(self._values)
        forms = [(False, True, every), (True, True, every)]
        forms += [(True, False, shown) for shown in range(every, 0, -1)] or [(True, False, 0)]
        for short, bars, shown in forms:
            table = self._table(short, bars, self._values[:shown])
            if Measurement.get(console, room, table).minimum <= options.max_width:
                break
        yield table
        if shown < every:
            yield Text(f"no room for {', '.join(map(visible, self._values[shown:]))}", style="dim")

    def _table(self, short: bool, bars: bool, shown: list[str]) -> Table:
        table = Table(box=None)
        for name in self._keys:
            table.add_column(visible(name), no_wrap=True, overflow="ellipsis", min_width=_KEY)
        lines = [[[row[name + end] for end in ESTIMATE] for name in shown] for row in self._rows]
        told = [[_told(one, self._exact, short) for one in line] for line in lines]
        for at, name in enumerate(shown):
            wide = max((len(line[at]) for line in told), default=0)
            head = visible(name) + (", heavy tail" if name in self._heavy else "")
            table.add_column(head, justify="right", no_wrap=True, min_width=wide)
        bars = bars and bool(shown)
        if bars:
            table.add_column("", no_wrap=True, min_width=_BAR)
        for row, line, cells in zip(self._rows, lines, told, strict=True):
            bar = [Text(_bar(line[0], self._widest), "cyan")] if bars else []
            keys = [Text(visible(str(row[name]))) for name in self._keys]
            table.add_row(*keys, *map(Text, cells), *bar)
        return table


def _title(snapshot: Snapshot) -> str:
    if snapshot.exact:
        return f"exact, all was read, {snapshot.elapsed:.1f} s"
    left = f"; about {snapshot.left:.0f} s left" if snapshot.left is not None else ""
    ended = f"; ended by {snapshot.ended_by}" if snapshot.ended_by else left
    return f"{snapshot.progress:.1%} read in {snapshot.elapsed:.1f} s{ended}"


def _said(snapshot: Snapshot, rows: int) -> list[str]:
    said = []
    more = len(snapshot.table) - max(1, rows)
    if more > 0:
        said.append(f"and {more:,} more")
    if not snapshot.exact:
        said.append(f"{snapshot.confidence:.0%} confidence: {snapshot.promise}")
        if _unsure(snapshot):
            said.append(
                "±   ?: too little was read of it for bounds, which need 30 blocks and more"
            )
        if snapshot.unseen is not None and snapshot.unseen.blocks:
            held = snapshot.unseen.holds.items()
            values = ", ".join(f"{visible(name)} {most:,.0f}" for name, most in held)
            said.append(
                f"a group not seen yet holds at most {snapshot.unseen.share:.2%} of the input"
                + (f"; if it is strewn as others are, {values}" if values else "")
            )
    return [*said, *map(visible, snapshot.notes)]


def _unsure(snapshot: Snapshot) -> bool:
    """Whether there are estimates without bounds."""
    table = snapshot.table
    return any(
        table.column(f"{name}_upper").null_count > table.column(name).null_count
        for name in values_of(table.column_names)
    )


def _number(value: Any) -> float:
    known = isinstance(value, int | float | Decimal) and isfinite(value)
    return float(value) if known else float("-inf")


def _told(estimate: list[Any], exact: bool, short: bool) -> str:
    """An estimate and how far the truth may be from it, as a share of it."""
    value, lower, upper = estimate
    if not isinstance(value, int | float):
        return "-" if value is None else visible(str(value))
    if exact and not short:
        return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    known = lower is not None and upper is not None
    most = max(upper - value, value - lower) if known else 0.0
    told = _shortly(value) if short else _plainly(value, most)
    if exact:
        return told
    if not known:
        return f"{told} ±   ?"
    if not value:  # nothing is no share of nothing
        return f"{told} ±{_shortly(most):>5}"
    far = most / abs(value)
    if far >= 10:
        return f"{told} ±>999%"
    return f"{told} ±{far:5.1%}" if far >= 0.001 or far == 0 else f"{told} ±<0.1%"


def _plainly(value: float, far: float) -> str:
    """As many digits as are known, and one more; four of those of which nobody knows how many."""
    if abs(value) >= 1e4 or not isfinite(far):
        return f"{value:,.0f}"
    digits = max(0, 1 - floor(log10(far))) if far > 0 and value else _MOST_DIGITS
    return f"{value:,.4g}" if digits >= _MOST_DIGITS else f"{value:,.{digits}f}"


def _shortly(value: float) -> str:
    """Three digits and what they stand for: 717M."""
    if not isfinite(value):
        return f"{value}"
    rounded = float(f"{value:.3g}")
    power = 0
    while abs(rounded) >= 1000 and power < len(_THOUSANDS) - 1:
        rounded, power = rounded / 1000, power + 1
    return f"{rounded:.3g}{_THOUSANDS[power]}"


def _scale(rows: list[dict[str, Any]], name: str) -> float:
    """What a whole bar stands for: the largest bound, unless one squeezes all others."""
    upper, value = (
        max((_number(row[name + end]) for row in rows), default=0.0) for end in ("_upper", "")
    )
    return min(upper, _SQUEEZED * value)


def _bar(estimate: list[Any], widest: float) -> str:
    """Where a value and its bounds lie between nothing and the end of the scale."""
    value, lower, upper = map(_number, estimate)
    if not all(map(isfinite, (value, lower, upper, widest))):
        return ""
    if not widest > 0 or lower < 0:
        return ""
    low, at, high = (min(_BAR - 1, int(one / widest * (_BAR - 1))) for one in (lower, value, upper))
    signs = [" "] * _BAR
    signs[low : high + 1] = "─" * (high - low + 1)
    signs[low], signs[high], signs[at] = "├", "→" if upper > widest else "┤", "●"
    return "".join(signs)
