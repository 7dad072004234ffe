"""Data in messages and on the terminal: shown as text, never obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from html import escape

_KEPT = "\n\t"
_WIDEST = 60  # characters of a value in a table


def visible(text: str) -> str:
    """A value on one line: control characters, newlines too, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def visible_lines(text: str) -> str:
    """A message that may have lines of its own; everything else is escaped."""
    return "".join(c if c.isprintable() or c in _KEPT else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def table_text(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under the names of their columns, aligned: numbers right, everything else left."""
    cells = [[cell_text(value) for value in row] for row in rows]
    columns = [
        _aligned(visible(name), [row[i] for row in cells], [row[i] for row in rows])
        for i, name in enumerate(names)
    ]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def table_html(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same for a notebook; what rows hold is text there, too."""
    head = "".join(f"<th>{escape(visible(name))}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td{_side(value)}>{escape(cell_text(value))}</td>' for value in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _side(value: object) -> str:
    return ' style="text-align: right"' if isinstance(value, int | float | Decimal) else ""


def cell_text(value: object) -> str:
    """One value of a table, short enough for a line."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    text = visible(str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _aligned(name: str, cells: list[str], values: list[object]) -> list[str]:
    width = max(map(len, [name, *cells]))
    numbers = all(isinstance(v, int | float | Decimal | None) for v in values)
    return [f"{cell:>{width}}" if numbers else f"{cell:<{width}}" for cell in (name, *cells)]
