"""The time of a file's first record, without reading the file: asked of files just listed.

Files are read in this order, and one that has not been begun holds the watermark there. Nothing
that comes later in a file and is not late can be more than the lateness before its first record.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from millstream.errors import RunError
from millstream.io import parquet
from millstream.io.formats import READER, Format
from millstream.io.multiline import Records
from millstream.io.programmed import read_records
from millstream.io.readers import opened, parse_lines
from millstream.io.records import Split
from millstream.io.timestamps import Ints
from millstream.ops.times.progress import BEGIN

_PEEK = 64 * 1024  # bytes of a text file, or
_ROWS = 1_000  # rows of a parquet file that are looked at


@dataclass(frozen=True)
class Peek:
    """How to look at the beginning of a file."""

    fmt: Format
    limit: int  # a time beyond it is not trusted
    grows: bool = False  # a last line without its end is no record yet


def is_glance(look: Callable[..., Any]) -> bool:
    """Whether a look is one at the beginning of files, without a function of the user."""
    if not isinstance(look, partial) or look.func is not first_times:
        return False
    (peek,) = look.args
    return isinstance(peek, Peek) and peek.fmt.kind != READER


def first_times(peek: Peek, paths: Iterable[str]) -> list[int | None]:
    """The first time in each of some files."""
    return [first_time(peek, path) for path in paths]


def first_time(peek: Peek, path: str) -> int | None:
    """The first trusted time in a file; None if it has no record.

    BEGIN if that takes more than a look at its beginning.
    """
    try:
        if peek.fmt.kind == "parquet":
            return _of_rows(peek, path)
        if peek.fmt.kind == READER:
            for parsed in read_records(peek.fmt, path, _ROWS):
                return _first(parsed.ts, peek.limit, BEGIN)
            return None
        return _of_lines(peek, path)
    except FileNotFoundError:
        return None
    except (RunError, OSError, EOFError, zlib.error):
        return BEGIN  # whoever reads it says what is wrong with it


def _of_lines(peek: Peek, path: str) -> int | None:
    fmt = peek.fmt
    with opened(fmt.kind, path) as stream:
        data = stream.read(_PEEK + 1)
    rest = None if len(data) <= _PEEK else BEGIN
    if rest is not None or (peek.grows and not path.endswith(".gz")):
        data = data[: data.rfind(b"\n") + 1]
    if fmt.multiline:
        start = Records(fmt.delimiter, fmt.comment).open_at(data)
        data = data if start < 0 else data[:start]
    if not data:
        return rest
    parsed = parse_lines(fmt, data, 0, first_line_is_header=fmt.header)
    return _first(parsed.ts, peek.limit, rest)


def _first(ts: Ints | None, limit: int, rest: int | None) -> int | None:
    assert ts is not None
    trusted = ts[ts <= limit]
    return int(trusted[0]) if len(trusted) else rest


def _of_rows(peek: Peek, path: str) -> int | None:
    """Of the column of times alone; statistics would tell the lowest, which may come later."""
    with parquet.opened(path) as file:
        number = parquet.rows_of(file)
    rows = min(_ROWS, number)
    rest = None if rows == number else BEGIN
    times = replace(peek.fmt, columns=())
    for parsed in parquet.read_rows(times, Split(0, 0, path, 0, rows), _ROWS):
        first = _first(parsed.ts, peek.limit, None)
        if first is not None:
            return first
    return rest
