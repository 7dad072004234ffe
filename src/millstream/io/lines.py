"""Blocks of text lines: where each line starts, which are blank, which need a careful look.

First step of reading csv, json and text. The scan is vectorised over the whole block; the result
names every line that counts by its byte position in the file, which is the record's identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millstream.io.records import MAX_LINE
from millstream.io.timestamps import Bools, Ints

BOM = b"\xef\xbb\xbf"
Edges: TypeAlias = Callable[[bytes], tuple[Ints, Ints]]
MAX_DEPTH = 256  # nesting of a json line; a fixed limit, so that no stack size decides
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


@dataclass(frozen=True)
class Lines:
    """The lines of a block that count: content is data[starts[i]:ends[i]], without CR and LF."""

    data: bytes
    starts: Ints
    ends: Ints
    positions: Ints
    dense: bool  # the data consists of exactly these lines: it can be parsed as it is

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, i: int) -> bytes:
        return self.data[self.starts[i] : self.ends[i]]

    def all_lines(self) -> list[bytes]:
        pairs = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[a:b] for a, b in pairs]

    def take(self, rows: Bools) -> Lines:
        if rows.all():
            return self
        return Lines(self.data, self.starts[rows], self.ends[rows], self.positions[rows], False)

    def joined(self) -> bytes:
        return self.data if self.dense else b"\n".join(self.all_lines()) + b"\n"

    def holding(self, offsets: Ints) -> Ints:
        """For each byte offset the line whose content holds it; offsets outside are dropped."""
        if not len(self):
            return np.zeros(0, np.int64)
        at = np.searchsorted(self.starts, offsets, side="right") - 1
        return at[(at >= 0) & (offsets < self.ends[at])]

    def as_array(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(self.data, np.uint8)


@dataclass(frozen=True)
class Raw:
    """Fields found in lines: raw columns for the lines `rows`, and why the others have none."""

    columns: list[pa.Array]
    rows: Ints
    refused: dict[int, str]


def scan(
    data: bytes,
    base: int,
    *,
    blanks: bool = False,
    delimiter: str = "",
    comment: str | None = None,
    encoding: str | None = None,
    edges: Edges | None = None,
) -> Lines:
    """Find the lines of a block that begins at byte `base` of its file.

    Blank ones count with `blanks`: in a text they are lines like any other, in csv and json not.
    One with a `delimiter` is not blank: a record of empty fields.
    What is in another encoding becomes UTF-8; positions stay those of the file. `edges` finds
    records that are more than lines.
    """
    edges = edges or line_edges
    marked = base == 0 and data.startswith(BOM)
    data = data[len(BOM) :] if marked else data
    starts, ends = edges(data)
    positions = starts + (base + (len(BOM) if marked else 0))
    if marked and len(positions):
        positions[0] = base
    if encoding is not None and not data.isascii():
        # Bytes that mean nothing stay as they are, and are no UTF-8: `screen` finds them.
        data = data.decode(encoding, "surrogateescape").encode("utf-8", "surrogateescape")
        starts, ends = edges(data)
    array = np.frombuffer(data, np.uint8)
    filled = ends > starts
    carriage = np.zeros(len(ends), bool)
    carriage[filled] = array[ends[filled] - 1] == 13
    ends = ends - carriage
    if blanks:
        return Lines(data, starts, ends, positions, True)
    blank = ends == starts
    suspects = np.flatnonzero(~blank)
    # Of one that is too long only the beginning may be here: it is refused, blank or not.
    suspects = suspects[ends[suspects] - starts[suspects] <= MAX_LINE]
    space = blanks_beside(delimiter)
    for i in suspects[array[starts[suspects]] <= 32]:
        blank[i] = not data[starts[i] : ends[i]].strip(space)
    if comment is not None:
        mark = comment.encode()
        for i in np.flatnonzero(~blank & (array[np.minimum(starts, len(data) - 1)] == mark[0])):
            blank[i] = data.startswith(mark, int(starts[i]))
    keep = ~blank
    return Lines(data, starts[keep], ends[keep], positions[keep], bool(keep.all()))


def blanks_beside(delimiter: str) -> bytes:
    """What blank lines consist of."""
    return bytes(set(b" \t\n\r\v\f") - set(delimiter.encode()))


def line_edges(data: bytes) -> tuple[Ints, Ints]:
    """Where lines start, and where their newlines are."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))  # a last line without its newline
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if len(ends) else ends
    return starts, ends


def screen(lines: Lines, encoding: str | None = None) -> dict[int, str]:
    """Lines that no kind accepts, with the reason: too long, or not in the encoding."""
    refused = {
        int(i): f"line of {lines.ends[i] - lines.starts[i]} bytes; the limit is {MAX_LINE}"
        for i in np.flatnonzero(lines.ends - lines.starts > MAX_LINE)
    }
    try:
        lines.data.decode("utf-8")
    except UnicodeDecodeError:
        suspects = np.unique(lines.holding(np.flatnonzero(lines.as_array() >= 0x80)))
        rows = (int(i) for i in suspects if int(i) not in refused)
        refused.update(_undecodable(lines, rows, encoding or "UTF-8"))
    return refused


def _undecodable(lines: Lines, rows: Iterable[int], encoding: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for i in rows:
        try:
            lines.line(i).decode("utf-8")
        except UnicodeDecodeError as error:
            found[i] = f"not {encoding}: {error.reason} at byte {error.start} of the line"
    return found


def too_deep(lines: Lines, but: Collection[int] = ()) -> dict[int, str]:
    """Json lines nested beyond MAX_DEPTH; only lines with that many brackets are looked at."""
    data, why = lines.data, f"nested more than {MAX_DEPTH} levels deep"
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return {}
    found = {}
    for i in np.flatnonzero(lines.ends - lines.starts > MAX_DEPTH).tolist():
        start, end = int(lines.starts[i]), int(lines.ends[i])
        opened = data.count(b"[", start, end) + data.count(b"{", start, end)
        if opened > MAX_DEPTH and i not in but and _is_deep(lines.line(i)):
            found[i] = why
    return found


def _is_deep(line: bytes) -> bool:
    array = np.frombuffer(_STRINGS.sub(b"", line), np.uint8)
    steps = np.zeros(len(array), np.int8)
    steps[(array == 0x5B) | (array == 0x7B)] = 1
    steps[(array == 0x5D) | (array == 0x7D)] = -1
    return bool((np.cumsum(steps, dtype=np.int32) > MAX_DEPTH).any())
