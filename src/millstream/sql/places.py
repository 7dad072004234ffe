"""Where something stands in a text of SQL, and errors that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import expressions as exp

from millstream.errors import SqlError

_WIDTH = 100  # of the line of text that is shown
_SECRET = re.compile("(?<=://).*(?=@)")  # user and password of an address, whatever is in them


@dataclass(frozen=True)
class Place:
    """A piece of the text: from the first character to the one after the last."""

    start: int
    end: int


@dataclass(frozen=True)
class Text:
    """The whole text a user gave."""

    sql: str

    def error(self, message: str, at: Place | exp.Expr | None) -> SqlError:
        """An error with line, column and the underlined text: a place, or that of a node."""
        place = (self.of(at) if isinstance(at, exp.Expr) else at) or Place(0, len(self.sql))
        start = min(place.start, max(len(self.sql) - 1, 0))
        above = self.sql.rfind("\n", 0, start) + 1
        below = self.sql.find("\n", start)
        line = self.sql[above : len(self.sql) if below < 0 else below]
        number, column = self.sql.count("\n", 0, start) + 1, start - above + 1
        length = max(1, min(place.end - start, len(line) - column + 1))
        shown, before = _shortened(line, column - 1)
        underline = "^" * max(1, min(length, len(shown) - before))
        told = f"line {number}, column {column}: {_SECRET.sub('***', message)}"
        if line.strip():
            told += f"\n  {shown}\n  {' ' * before}{underline}"
        return SqlError(told, number, column)

    def of(self, node: exp.Expr) -> Place | None:
        """Where a node of sqlglot's tree stands, as far as its parts know."""
        found = [one.meta for one in node.walk() if "start" in one.meta]
        if not found:
            return None
        start, end = min(one["start"] for one in found), max(one["end"] for one in found) + 1
        if "start" in node.meta or (called := self._called(node, start)) is None:
            return Place(start, end)
        closing = re.match(r"\s*\)", self.sql[end:])
        return Place(called.start(), end + (closing.end() if closing else 0))

    def _called(self, node: exp.Expr, start: int) -> re.Match[str] | None:
        """The name of a function in front of its first argument, where its node lacks the place."""
        if not isinstance(node, exp.Func):
            return None
        return re.search(r"\w+(?=\s*\(\s*(DISTINCT\s+)?$)", self.sql[:start], re.IGNORECASE)

    def name_of(self, node: exp.Expr) -> str:
        """A function as it is called in the text, which may not be what sqlglot calls it."""
        place = self.of(node)
        word = re.match(r"\w+(?=\s*\()", self.sql[place.start :]) if place else None
        if word is not None:
            return word[0].upper()
        return str(node.sql_names()[0] if hasattr(node, "sql_names") else node.key).upper()

    def after(self, word: str, place: Place | None) -> Place | None:
        """A place together with the word of its clause in front of it."""
        if place is None:
            return None
        pattern = r"\s+".join(map(re.escape, word.split())) + r"\s*$"
        found = re.search(pattern, self.sql[: place.start], re.IGNORECASE)
        return place if found is None else Place(found.start(), place.end)


def _shortened(line: str, at: int) -> tuple[str, int]:
    """A long line around a place, and where the place is in it."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line)
    line = _SECRET.sub(lambda found: "*" * len(found[0]), line)  # the place stays where it is
    if len(line) <= _WIDTH:
        return line, at
    first = max(0, min(at - _WIDTH // 3, len(line) - _WIDTH))
    return line[first : first + _WIDTH], at - first
