"""Rows of parquet files: how many there are, and a range of them as `Parsed`.

The parquet side of `readers.py`. Only the row groups and columns that are needed are read; a
record's position is its row number in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import ConfigError, RunError
from millstream.io.columns import build
from millstream.io.formats import Format
from millstream.io.records import MAX_RAW, Parsed, Split


@contextmanager
def opened(path: str) -> Iterator[pq.ParquetFile]:
    """The file, with every failure to read it named after it."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"cannot read parquet file {path}: {error}") from error


def row_ranges(path: str, start: int, end: int, max_bytes: int) -> list[tuple[int, int]]:
    """Cut rows [start, end) into ranges of at most about max_bytes (uncompressed).

    Whole row groups are kept together as long as they fit; a larger one is cut by rows.
    """
    with opened(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    ranges: list[tuple[int, int]] = []
    size, first = 0.0, 0
    for group in groups:
        low, high = max(start, first), min(end, first + group.num_rows)
        first += group.num_rows
        if low >= high:
            continue
        per_row = max(group.total_byte_size / group.num_rows, 1.0)
        if ranges and size + per_row * (high - low) <= max_bytes:
            ranges[-1] = (ranges[-1][0], high)
            size += per_row * (high - low)
            continue
        step = max(1, int(max_bytes / per_row))
        ranges += [(at, min(at + step, high)) for at in range(low, high, step)]
        size = per_row * (ranges[-1][1] - ranges[-1][0])
    return ranges


def read_rows(fmt: Format, split: Split, max_rows: int) -> Iterator[Parsed]:
    with opened(split.path) as file:
        names = fmt.delivered.names
        _check_columns(fmt, file.schema_arrow, split.path)
        groups, at = _groups(file, split)
        for batch in file.iter_batches(max_rows, groups, columns=names, use_threads=False):
            low, high = max(split.start - at, 0), min(split.end - at, batch.num_rows)
            if low < high:
                yield _parsed(fmt, batch.slice(low, high - low), at + low)
            at += batch.num_rows
        if at < split.end:
            raise RunError(f"parquet file {split.path} has {at} rows, expected {split.end}")


def _groups(file: pq.ParquetFile, split: Split) -> tuple[list[int], int]:
    """The row groups that overlap the split, and the row number where the first begins."""
    groups: list[int] = []
    first, begin = 0, 0
    for i in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(i).num_rows
        if first < split.end and first + rows > split.start:
            begin = begin if groups else first
            groups.append(i)
        first += rows
    return groups, begin if groups else first


def _check_columns(fmt: Format, stored: pa.Schema, path: str) -> None:
    missing = [name for name in fmt.delivered.names if name not in stored.names]
    if missing:
        raise ConfigError(
            f"{path}: the parquet file has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(stored.names)}. Correct schema="
        )
    for field in fmt.delivered:
        kind = stored.field(field.name).type
        naive = pa.types.is_timestamp(kind) and not kind.tz
        if naive and getattr(field.type, "tz", None) and fmt.zone is None:
            raise ConfigError(
                f"{path}: column {field.name!r} has times without a zone: "
                f'add zone="UTC", or the zone the times are in'
            )
        if not _castable(kind, field.type):
            raise ConfigError(
                f"{path}: column {field.name!r} is stored as {kind}, which cannot be read as "
                f"{field.type}. Correct schema="
            )


def _castable(kind: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(target):
        return bool(
            pa.types.is_timestamp(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
        )
    if pa.types.is_nested(target) or pa.types.is_nested(kind):
        return bool(kind.id == target.id)
    try:
        pa.nulls(1, kind).cast(target)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _parsed(fmt: Format, batch: pa.RecordBatch, first: int) -> Parsed:
    columns = [batch.column(batch.schema.get_field_index(n)) for n in fmt.delivered.names]
    positions = np.arange(first, first + batch.num_rows, dtype=np.int64)

    def show(i: int) -> str:
        return json.dumps(_row(batch.slice(i, 1)), default=str)[:MAX_RAW]

    return build(fmt, columns, positions, [], show)


def _row(one: pa.RecordBatch) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, column in zip(one.schema.names, one.columns, strict=True):
        try:
            row[name] = column[0].as_py()
        except (ValueError, OverflowError):  # a moment beyond Python's calendar
            row[name] = str(column[0].cast(pa.int64()))
    return row
