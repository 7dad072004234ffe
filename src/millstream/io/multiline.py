"""Records of csv whose quoted fields run over line ends: where one ends and the next begins.

Stands where `lines.py` alone stands for other files. Whether a newline lies inside of quotes can
only be told from the beginning of a file, so such a file is read whole, by one task. A quote opens
a field only at its start, as everywhere (`csvlines.split_csv`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from millstream.io.lines import line_edges
from millstream.io.records import MAX_LINE
from millstream.io.timestamps import Ints


@dataclass(frozen=True)
class Records:
    """How records lie in bytes."""

    delimiter: str
    comment: str | None = None

    def edges(self, data: bytes) -> tuple[Ints, Ints]:
        """Where records start, and where the newlines are that end them."""
        return self._edges(data)[:2]

    def open_at(self, data: bytes) -> int:
        """Where the last record starts if a quote in it is not closed, else -1."""
        starts, _, is_open = self._edges(data)
        return int(starts[-1]) if is_open else -1

    def _edges(self, data: bytes) -> tuple[Ints, Ints, bool]:
        starts, ends = line_edges(data)
        if b'"' not in data or not len(ends):
            return starts, ends, False
        keep = np.ones(len(ends), bool)
        is_open, at = False, 0
        pattern = _fields_over_lines(self.delimiter, self.comment)
        while not is_open and (found := pattern.match(data, at)):
            low, high = np.searchsorted(ends, found.span(1))
            at, is_open = found.end(), not found.group(2)
            keep[low : high if not is_open else len(ends) - 1] = False
        ends = ends[keep]
        return np.concatenate([[0], ends[:-1] + 1]).astype(np.int64), ends, is_open


@lru_cache(maxsize=64)
def _fields_over_lines(delimiter: str, comment: str | None) -> re.Pattern[bytes]:
    """Whatever lies before a quoted field that holds a newline, and that field."""
    mark = re.escape(delimiter.encode())
    start = rb"(?<![^\n" + mark + rb"])"  # of a field
    closed = start + rb'"(?:[^"\n]++|"")*+"'
    stray = rb"(?<=[^\n" + mark + rb'])"'
    if comment is None:
        plain = rb'[^"]++'
        before = rb"(?:"
    else:
        line = re.escape(comment.encode()) + rb"[^\n]*+"
        plain = rb"\n" + line + rb'|[^"\n]++|\n'
        before = rb"(?:\A" + line + rb"|"
    skipped = before + plain + rb"|" + closed + rb"|" + stray + rb")*+"
    return re.compile(skipped + start + rb'"((?:[^"]++|"")*+)("|\Z)')


def whole_records(
    blocks: Iterable[tuple[int, bytes]], records: Records
) -> Iterator[tuple[int, bytes]]:
    """Blocks of lines as blocks of records.

    If a quote is not closed within the longest line there may be, or at the end, the line it is in
    is a record of its own (and refused as such), and the next line begins another.
    """
    base, data = 0, b""
    for at, lines in blocks:
        if at != base + len(data):  # an overlong line was left out between
            yield from _closed(base, data, records)
            data = b""
        base, data = (base, data + lines) if data else (at, lines)
        start = records.open_at(data)
        while start >= 0 and len(data) - start > MAX_LINE:
            yield from _line(base, data, start)
            base, data = _after_line(base, data, start)
            start = records.open_at(data)
        cut = len(data) if start < 0 else start
        if cut:
            yield base, data[:cut]
        base, data = base + cut, data[cut:]
    yield from _closed(base, data, records)


def _closed(base: int, data: bytes, records: Records) -> Iterator[tuple[int, bytes]]:
    """What is left at the end: unclosed quotes are those of their line alone."""
    while (start := records.open_at(data) if data else -1) >= 0:
        yield from _line(base, data, start)
        base, data = _after_line(base, data, start)
    if data:
        yield base, data


def _line(base: int, data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """The records before an open one, and the first line of that one."""
    if start:
        yield base, data[:start]
    yield base + start, data[start : _end_of_line(data, start)]


def _after_line(base: int, data: bytes, start: int) -> tuple[int, bytes]:
    end = _end_of_line(data, start)
    return base + end, data[end:]


def _end_of_line(data: bytes, start: int) -> int:
    return data.find(b"\n", start) + 1 or len(data)
