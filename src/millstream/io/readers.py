"""Reading splits: the part of the data path between files and operators, run inside tasks.

The driver tracks files and offsets (`available_end`), cuts what is new into splits
(`plan_splits`), and each task turns its splits into records (`read_split`). Where a file was cut
has no influence on the records: each is one line (or parquet row), known by file and position.
Malformed records come back as dead letters beside the good ones.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import BinaryIO, Self, TypeVar, cast

import numpy as np

from millstream.errors import RunError
from millstream.io import parquet, unpacking
from millstream.io.csvlines import csv_header
from millstream.io.formats import DEBEZIUM, READER, Format
from millstream.io.lines import BOM, Lines, blanks_beside, scan
from millstream.io.multiline import Records, whole_records
from millstream.io.opening import size_of
from millstream.io.prints import NOTHING, Print, fits, open_known
from millstream.io.programmed import read_records
from millstream.io.records import MAX_LINE, Dead, Parsed, Split
from millstream.io.textkinds import parse_scanned
from millstream.state.locations import is_url

__all__ = ["Dead", "Parsed", "Split", "available_end", "parse_lines", "plan_splits", "read_split"]

T = TypeVar("T")

WINDOW = 8 * 1024 * 1024  # bytes of a file held at a time
_STEP = 64 * 1024  # bytes looked at when searching for a line end


def is_gzip(kind: str, path: str) -> bool:
    """Whether a file holds compressed lines: positions are bytes of what it stands for."""
    return kind not in ("parquet", READER) and path.endswith(".gz")


# ---------------------------------------------------------------- driver side


def available_end(path: str, kind: str, complete: bool) -> int:
    """How far a file can be read now.

    Text kinds: the offset just after the last newline, or the file size when the file is
    `complete` (a last line without newline then counts). Parquet: the number of rows; 0 while the
    footer is missing, an error if the file is complete. What a function of the user reads, it
    reads whole or not at all. How long a gzip file is only a task can say (`unpacking.measure`).
    """
    if kind == "parquet":
        try:
            with parquet.opened(path) as file:
                return parquet.rows_of(file)
        except RunError:
            if complete:
                raise
            return 0
    try:
        size = size_of(path)
        if complete or kind == READER or is_url(path):
            return size if complete or is_url(path) else 0
        return last_line_end(path, size)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}") from error


def last_line_end(path: str, size: int, inode: int = 0) -> int:
    """Just after the last newline in the first `size` bytes of a file, 0 if there is none."""
    with open_known(path, inode) as stream:
        return _last_line_start(stream, 0, size)


def plan_splits(
    kind: str,
    source: int,
    file: int,
    path: str,
    start: int,
    end: int,
    max_bytes: int,
    inode: int = 0,
) -> list[Split]:
    """Cut [start, end) into splits of at most max_bytes at line starts (parquet: of so many rows).

    A line longer than max_bytes is a split of its own. What a function of the user reads is one
    split; a gzip file is cut anywhere. `inode`: the file that is meant, if it may be renamed.
    """
    if start >= end:
        return []
    if kind == READER:
        return [Split(source, file, path, 0, -1, inode=inode)]
    if kind == "parquet" or is_gzip(kind, path):
        cuts = [*range(start, end, max(1, max_bytes)), end]
        ranges = list(pairwise(cuts))
    else:
        try:
            ranges = list(_line_ranges(path, inode, start, end, max(1, max_bytes)))
        except OSError as error:
            raise RunError(f"cannot read {path}: {error}") from error
    return [Split(source, file, path, low, high, inode=inode) for low, high in ranges]


def _line_ranges(
    path: str, inode: int, start: int, end: int, max_bytes: int
) -> Iterator[tuple[int, int]]:
    with open_known(path, inode) as stream:
        while end - start > max_bytes:
            cut = _last_line_start(stream, start, start + max_bytes)
            if cut <= start:  # no line end in reach
                cut = _next_line_start(stream, start + max_bytes, end)
            yield start, cut
            start = cut
    if start < end:
        yield start, end


def _last_line_start(stream: BinaryIO, low: int, high: int) -> int:
    """Just after the last newline in [low, high), or `low` if there is none."""
    while high > low:
        begin = max(low, high - _STEP)
        stream.seek(begin)
        found = stream.read(high - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        high = begin
    return low


def _next_line_start(stream: BinaryIO, low: int, high: int) -> int:
    """Just after the first newline in [low, high), or `high` if there is none."""
    stream.seek(low)
    while low < high:
        piece = stream.read(min(_STEP, high - low))
        found = piece.find(b"\n")
        if found >= 0:
            return low + found + 1
        if not piece:
            break
        low += len(piece)
    return high


# ---------------------------------------------------------------- task side


def parse_lines(fmt: Format, data: bytes, base: int, *, first_line_is_header: bool) -> Parsed:
    """Parse a block of lines that begins at byte `base` of its file (or spool).

    Without a header line, csv fields are the schema's columns in order.
    """
    lines = scan_lines(fmt, data, base)
    layout = tuple(fmt.schema.names)
    if fmt.kind == "csv" and first_line_is_header and len(lines):
        layout = csv_header(lines.line(0), replace(fmt, encoding=None), "first line")
        lines = lines.take(np.arange(len(lines)) > 0)
    return parse_scanned(fmt, lines, layout)


def scan_lines(fmt: Format, data: bytes, base: int) -> Lines:
    """The lines of a block, as its format has them."""
    edges = Records(fmt.delimiter, fmt.comment).edges if fmt.multiline else None
    return scan(
        data,
        base,
        blanks=fmt.kind == "text",
        delimiter=fmt.delimiter if fmt.kind == "csv" else "",
        comment=fmt.comment,
        encoding=fmt.encoding,
        edges=edges,
    )


def read_split(fmt: Format, split: Split, max_rows: int = 262_144) -> Iterator[Parsed]:
    """The records of a split, at most max_rows lines or rows at a time, in file order."""
    if fmt.kind == "parquet":
        yield from parquet.read_rows(fmt, split, max_rows)
        return
    try:
        if fmt.cut == READER:
            yield from _read_whole(fmt, split, max_rows)
            return
        layout, skip_to = _layout(fmt, split)
        for base, data in _below_header(fmt, split, skip_to):
            for at, piece in _by_lines(data, base, max_rows):
                parsed = parse_scanned(fmt, scan_lines(fmt, piece, at), layout)
                if parsed.offered:
                    yield parsed
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"cannot read {split.path}: {error}") from error


def count_split(fmt: Format, split: Split) -> int:
    """How many records a split has; only line ends are looked for, where that says it."""
    if fmt.kind == "parquet":
        return split.end - split.start
    if fmt.kind == DEBEZIUM or fmt.cut == READER:
        return sum(parsed.offered for parsed in read_split(fmt, split))
    try:
        _, skip_to = _layout(fmt, split)
        blocks = _below_header(fmt, split, skip_to)
        return sum(len(scan_lines(fmt, data, base)) for base, data in blocks)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"cannot read {split.path}: {error}") from error


def _below_header(fmt: Format, split: Split, skip_to: int) -> Iterator[tuple[int, bytes]]:
    """(position, complete lines) of a split, without the header."""
    packed = is_gzip(fmt.kind, split.path)
    for base, data in unpacking.blocks(split) if packed else _blocks(fmt.kind, split):
        cut = max(0, min(skip_to - base, len(data)))
        yield base + cut, data[cut:] if cut else data


def _read_whole(fmt: Format, split: Split, max_rows: int) -> Iterator[Parsed]:
    """The records of a file that is not cut, or the first of them."""
    most = split.most or sys.maxsize
    rows, read = min(max_rows, most), 0
    over_lines = fmt.multiline
    found = _read_multiline(fmt, split, rows) if over_lines else read_records(fmt, split.path, rows)
    for parsed in found:
        yield parsed
        read += parsed.offered
        if read >= most:
            return


def _read_multiline(fmt: Format, split: Split, max_rows: int) -> Iterator[Parsed]:
    """All records of a file, which may run over line ends; the first one names the columns."""
    layout = None if fmt.header else tuple(fmt.schema.names)
    records = Records(fmt.delimiter, fmt.comment)
    for base, data in whole_records(_blocks(fmt.kind, split), records):
        lines = scan_lines(fmt, data, base)
        if layout is None and len(lines):
            # What was scanned is UTF-8 by now.
            layout = csv_header(lines.line(0), replace(fmt, encoding=None), split.path)
            lines = lines.take(np.arange(len(lines)) > 0)
        numbers = np.arange(len(lines)) // max_rows
        for part in range(-(-len(lines) // max_rows)):
            assert layout is not None
            yield parse_scanned(fmt, lines.take(numbers == part), layout)


def _layout(fmt: Format, split: Split) -> tuple[tuple[str, ...], int]:
    """The csv fields in file order, and where the header ends.

    Every split of a file reads the header, wherever the split begins. It is the first line that
    is not blank.
    """
    if fmt.kind != "csv" or not fmt.header:
        return tuple(fmt.schema.names), 0
    with _Rotating(fmt.kind, split) as file:
        return file.steadily(lambda stream: _header(fmt, stream, split.path))


def _header(fmt: Format, stream: BinaryIO, path: str) -> tuple[tuple[str, ...], int]:
    stream.seek(0)
    at = line = len(BOM) if stream.read(len(BOM)) == BOM else 0
    while at <= MAX_LINE:
        stream.seek(at)
        data = stream.read(_STEP)
        blank = len(data) - len(data.lstrip(blanks_beside(fmt.delimiter)))
        line = max(line, at + data.rfind(b"\n", 0, blank) + 1)
        if blank < len(data):
            stream.seek(line)
            text = stream.readline(MAX_LINE)
            if fmt.comment is None or not text.startswith(fmt.comment.encode()):
                return csv_header(text.rstrip(b"\r\n"), fmt, path), line + len(text)
            at = line = line + len(text)
            continue
        if not data:
            return tuple(fmt.schema.names), at  # nothing but blank lines
        at += len(data)
    return (), at  # its records are refused: what their fields mean is not known


@contextmanager
def opened(kind: str, path: str, inode: int = 0, seen: Print = NOTHING) -> Iterator[BinaryIO]:
    """The bytes of a file, uncompressed."""
    with open_known(path, inode, seen) as stream:
        if not is_gzip(kind, path):
            yield stream
            return
        with gzip.open(stream) as packed:
            yield cast(BinaryIO, packed)


class _Rotating:
    """The bytes of a split, though its file may be copied and truncated while it is read."""

    def __init__(self, kind: str, split: Split) -> None:
        self.kind, self.split = kind, split

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()

    def _open(self) -> None:
        split = self.split
        self._held = ExitStack()
        self.stream = self._held.enter_context(
            opened(self.kind, split.path, split.inode, split.seen)
        )

    def steadily(self, read: Callable[[BinaryIO], T]) -> T:
        """What is read, if the file was still the same afterwards; else from its copy."""
        while True:
            result = read(self.stream)
            if isinstance(self.stream, gzip.GzipFile) or fits(self.stream, self.split.seen):
                return result
            self._held.close()
            self._open()

    def read(self, at: int) -> bytes:
        """The next bytes; none at the end of the split."""
        wanted = WINDOW if self.split.end < 0 else min(WINDOW, self.split.end - at)
        data = self.steadily(lambda stream: _read(stream, at, wanted))
        if wanted and not data and self.split.end >= 0:
            raise RunError(
                f"{self.split.path} ends at byte {at}, expected {self.split.end}: was it truncated?"
            )
        return data


def _read(stream: BinaryIO, at: int, wanted: int) -> bytes:
    stream.seek(at)
    return stream.read(wanted)


def _blocks(kind: str, split: Split) -> Iterator[tuple[int, bytes]]:
    """(position, complete lines) in order; an overlong line is cut just beyond the limit."""
    with _Rotating(kind, split) as file:
        at, rest = split.start, b""
        while True:
            data = rest + file.read(at + len(rest))
            if len(data) == len(rest):  # the end
                if rest:
                    yield at, rest
                return
            cut = data.rfind(b"\n") + 1
            if cut and at + len(data) == split.end:  # a last line without end is of this piece
                cut = len(data)
            if cut:
                yield at, data[:cut]
                at, rest = at + cut, data[cut:]
            elif len(data) > MAX_LINE + 1:  # too long even without a carriage return
                yield at, data[: MAX_LINE + 2] + b"\n"
                at, rest = _past_line(file, at + len(data))
            else:
                rest = data


def _past_line(file: _Rotating, at: int) -> tuple[int, bytes]:
    """Skip to the end of the current line; what follows it in the last window is kept."""
    while data := file.read(at):
        found = data.find(b"\n") + 1
        if found:
            return at + found, data[found:]
        at += len(data)
    return at, b""


def _by_lines(data: bytes, base: int, max_rows: int) -> Iterator[tuple[int, bytes]]:
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1
    start = 0
    for end in [*ends[max_rows - 1 :: max_rows].tolist(), len(data)]:
        if end > start:
            whole = start == 0 and end == len(data)
            yield base + start, data if whole else data[start:end]
        start = end
