"""The line of every key in a TOML text.

Python's `tomllib` gives values without positions. This looks at the same text once more, after
`tomllib` has accepted it, and only for where keys, tables and elements of lists begin: so it may
skip over values without understanding them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Any

Table = dict[str, Any]  # of TOML
Place = tuple[str | int, ...]  # keys, and numbers of list elements, from the top

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_LITERAL = re.compile(r"'([^'\n]*)'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{1,2}(?!"))?', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'''(?:'{1,2}(?!'))?", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def lines_of(text: str) -> dict[Place, int]:
    """The line of every key, table and list element of a valid TOML text."""
    return _Scanner(text.replace("\r\n", "\n")).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Place, int] = {}
        self.tables: dict[Place, int] = {}  # [[lists of tables]] and how many they have so far

    def document(self) -> dict[Place, int]:
        table: Place = ()
        while True:
            self._skip(_GAP)
            if self.at >= len(self.text):
                return self.lines
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Place:
        start = self.at
        several = self.text.startswith("[[", start)
        self.at += 2 if several else 1
        keys = self._key()
        self.at += 2 if several else 1
        place: Place = ()
        for number, key in enumerate(keys, 1):
            place = (*place, key)
            if several and number == len(keys):
                self._note(place, start)
                self.tables[place] = self.tables.get(place, 0) + 1
            if place in self.tables:
                place = (*place, self.tables[place] - 1)
            self._note(place, start)
        if not several:
            self.lines[place] = self._line(start)  # it may have been implied by one further up
        return place

    def _pair(self, table: Place) -> None:
        start = self.at
        place = table
        for key in self._key():
            place = (*place, key)
            self._note(place, start)
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(place)

    def _key(self) -> list[str]:
        """A key, dotted or not, and the blanks after it."""
        parts = []
        while True:
            self._skip(_BLANK)
            parts.append(self._part())
            self._skip(_BLANK)
            if self.text[self.at : self.at + 1] != ".":
                return parts
            self.at += 1

    def _part(self) -> str:
        for pattern, group in ((_BASIC, 1), (_LITERAL, 1), (_BARE, 0)):
            match = pattern.match(self.text, self.at)
            if match is not None:
                self.at = match.end()
                found = match[group]
                return _ESCAPE.sub(_unescape, found) if pattern is _BASIC else found
        raise AssertionError(f"a key was expected at {self.text[self.at : self.at + 20]!r}")

    def _value(self, place: Place) -> None:
        first = self.text[self.at]
        if first == "[":
            self._elements(place)
        elif first == "{":
            self._inline(place)
        else:
            patterns = {
                '"': (_LONG_BASIC, _BASIC),
                "'": (_LONG_LITERAL, _LITERAL),
            }.get(first, (_SCALAR,))
            match = next(filter(None, (p.match(self.text, self.at) for p in patterns)))
            self.at = match.end()

    def _elements(self, place: Place) -> None:
        self.at += 1
        number = 0
        while True:
            self._skip(_GAP)
            if self.text[self.at] == "]":
                self.at += 1
                return
            self._note((*place, number), self.at)
            self._value((*place, number))
            number += 1
            self._skip(_GAP)
            if self.text[self.at] == ",":
                self.at += 1

    def _inline(self, place: Place) -> None:
        self.at += 1
        while True:
            self._skip(_GAP)
            if self.text[self.at] == "}":
                self.at += 1
                return
            self._pair(place)
            self._skip(_GAP)
            if self.text[self.at] == ",":
                self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match: Any = pattern.match(self.text, self.at)
        self.at = match.end()

    def _note(self, place: Place, at: int) -> None:
        self.lines.setdefault(place, self._line(at))

    def _line(self, at: int) -> int:
        return bisect_right(self.starts, at)


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _ESCAPES.get(match[3], match[3])
