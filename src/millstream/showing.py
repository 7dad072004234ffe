"""Data in messages and on the terminal: shown as text, never obeyed."""

from __future__ import annotations

_KEPT = "\n\t"


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
