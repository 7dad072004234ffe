"""The time of a file's first record, without reading the file: run in tasks, for files just listed.

Files are read in this order, and one that has not been begun holds the watermark there. Nothing
that comes later in a file and is not late can be more than the lateness before its first record.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import RunError
from millstream.io import parquet
from millstream.io.columns import convert, event_time
from millstream.io.formats import READER, Format
from millstream.io.programmed import read_records
from millstream.io.readers import opened, parse_lines
from millstream.io.records import Split
from millstream.io.timestamps import Ints
from millstream.ops.progress import BEGIN

_PEEK = 64 * 1024  # bytes of a text file, or
_ROWS = 1_000  # rows of a parquet file that are looked at


def first_times(fmt: Format, paths: Iterable[str], limit: int) -> list[int | None]:
    """The first time in each of some files."""
    return [first_time(fmt, path, limit) for path in paths]


def first_time(fmt: Format, path: str, limit: int) -> int | None:
    """The first time in a file that is not beyond `limit`; None if it has no record.

    BEGIN if that takes more than a look at its beginning.
    """
    try:
        if fmt.kind == "parquet":
            return _of_rows(fmt, path, limit)
        if fmt.kind == READER:
            for parsed in read_records(fmt, path, _ROWS):
                return _first(parsed.ts, limit, BEGIN)
            return None
        return _of_lines(fmt, path, limit)
    except FileNotFoundError:
        return None
    except (RunError, OSError, EOFError, zlib.error):
        return BEGIN  # whoever reads it says what is wrong with it


def _of_lines(fmt: Format, path: str, limit: int) -> int | None:
    with opened(fmt.kind, path) as stream:
        data = stream.read(_PEEK + 1)
    if not data:
        return None
    rest = None if len(data) <= _PEEK else BEGIN
    if rest is not None:
        data = data[: data.rfind(b"\n") + 1]
    if not data:
        return rest
    parsed = parse_lines(fmt, data, 0, first_line_is_header=fmt.header)
    return _first(parsed.ts, limit, rest)


def _first(ts: Ints | None, limit: int, rest: int | None) -> int | None:
    assert ts is not None
    trusted = ts[ts <= limit]
    return int(trusted[0]) if len(trusted) else rest


def _of_rows(fmt: Format, path: str, limit: int) -> int | None:
    with parquet.opened(path) as file:
        if not file.metadata.num_rows:
            return None
        least = _least(fmt, file)
        rows = min(_ROWS, file.metadata.num_rows)
        rest = None if rows == file.metadata.num_rows else BEGIN
    if least is not None and least <= limit:
        return least
    for parsed in parquet.read_rows(fmt, Split(0, 0, path, 0, rows), rows):
        return _first(parsed.ts, limit, rest)
    return rest


def _least(fmt: Format, file: pq.ParquetFile) -> int | None:
    """The lowest time in the first rows that have statistics; no first record is before it."""
    at = file.schema_arrow.get_field_index(str(fmt.time))
    if at < 0 or not _ordered(file.schema_arrow.field(at).type):
        return None
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    group = next(group for group in groups if group.num_rows)
    for column in (group.column(i) for i in range(group.num_columns)):
        if column.path_in_schema == fmt.time and column.is_stats_set:
            if not column.statistics.has_min_max:
                return None
            try:
                value = pa.array([column.statistics.min], file.schema_arrow.field(at).type)
            except (pa.ArrowException, ValueError, OverflowError):  # beyond Python's calendar
                return None
            array, bad = convert(value, fmt.schema.field(str(fmt.time)).type, fmt.zone)
            times, why = event_time(fmt, array)
            return None if bad.any() or why else int(times[0])
    return None


def _ordered(kind: pa.DataType) -> bool:
    """Whether the lowest value is the earliest time, which it is not for text."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
    )
