"""Early answers on the command line: what was asked for, and estimates with error bars."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millstream.api.early import (
    ESTIMATE,
    Bounds,
    Looks,
    Snapshot,
    looks,
    rel_error,
    time_limit,
    values_of,
)
from millstream.errors import ConfigError
from millstream.showing import visible

_BAR = 16  # characters of an error bar
_SQUEEZED = 2.5  # times the largest estimate: bounds beyond that are cut off
_ROWS = 20
_KEY = 4  # characters of a key that are shown at least


def looks_of(
    snapshots: str | None,
    until: str | None,
    within: str | None,
    publish: Path | None,
    step: str | None = None,
) -> Looks | None:
    """What `--snapshots`, `--until`, `--within` and `--publish` ask for; None: a plain run."""
    if snapshots is None and until is None and within is None and publish is None:
        if step is not None:
            raise ConfigError(f"--step {step}: goes with --snapshots, --until or --within")
        return None
    at = None if snapshots is None else [_share("--snapshots", s) for s in snapshots.split(",")]
    bounds = Bounds()
    if until is not None:
        bounds |= rel_error(_share("--until", until))
    if within is not None:
        bounds |= time_limit(within)
    return looks(at, None, bounds, publish=publish, step=step)


def _share(option: str, text: str) -> float:
    """A share as people write it: 25%, or 0.25."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"{option} {text}: expected a share of at most 100%, like 25% or 0.25")
    return found


def show_answer(console: Console, snapshot: Snapshot) -> None:
    """A snapshot below what was printed so far."""
    console.print(answer_table(snapshot, _ROWS))


def answer_table(snapshot: Snapshot, rows: int) -> RenderableType:
    """The largest groups of a snapshot, with bounds and a bar for each value."""
    columns = snapshot.table.column_names
    values = values_of(columns)
    bounds = {f"{name}{end}" for name in values for end in ESTIMATE}
    keys = [name for name in columns if name not in bounds]
    table = Table(box=None)
    for name in keys:
        table.add_column(visible(name), no_wrap=True, overflow="ellipsis", min_width=_KEY)
    for name in values:
        table.add_column(visible(name), justify="right", no_wrap=True)
    if values:
        table.add_column("", no_wrap=True)
    found = snapshot.table.to_pylist()
    if values:
        found.sort(key=lambda row: _number(row[values[0]]), reverse=True)
        widest = _scale(found, values[0])
    for row in found[: max(1, rows)]:
        estimates = [[row[name + end] for end in ESTIMATE] for name in values]
        cells = [Text(visible(str(row[name]))) for name in keys]
        cells += [Text(_told(one, snapshot.exact)) for one in estimates]
        if values:
            cells.append(Text(_bar(estimates[0], widest), "cyan"))
        table.add_row(*cells)
    said = [Text(line, style="dim") for line in _said(snapshot, rows)]
    return Group(Text(_title(snapshot), style="bold"), table, *said)


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
    known = isinstance(value, int | float) and isfinite(value)
    return float(value) if known else float("-inf")


def _told(estimate: list[Any], exact: bool) -> str:
    """An estimate and how far the truth may be from it, as a share of it."""
    value, lower, upper = estimate
    if not isinstance(value, int | float):
        return "-" if value is None else visible(str(value))
    if exact:
        return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    told = f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"
    if lower is None or upper is None or not value:
        return f"{told} ±   ?"
    far = max(upper - value, value - lower) / abs(value)
    if far >= 10:
        return f"{told} ±>999%"
    return f"{told} ±{far:5.1%}" if far >= 0.001 or far == 0 else f"{told} ±<0.1%"


def _scale(rows: list[dict[str, Any]], name: str) -> float:
    """What a whole bar stands for: the largest bound, unless one squeezes all others."""
    upper, value = (
        max((_number(row[name + end]) for row in rows), default=0.0) for end in ("_upper", "")
    )
    return min(upper, _SQUEEZED * value)


def _bar(estimate: list[Any], widest: float) -> str:
    """Where a value and its bounds lie between nothing and the end of the scale."""
    if not all(isinstance(one, int | float) and isfinite(one) for one in (*estimate, widest)):
        return ""
    value, lower, upper = estimate
    if not widest > 0 or lower < 0:
        return ""
    low, at, high = (min(_BAR - 1, int(one / widest * (_BAR - 1))) for one in (lower, value, upper))
    signs = [" "] * _BAR
    signs[low : high + 1] = "─" * (high - low + 1)
    signs[low], signs[high], signs[at] = "├", "→" if upper > widest else "┤", "●"
    return "".join(signs)
