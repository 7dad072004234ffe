"""Rows of parquet files: how many there are, and a range of them as `Parsed`.

The parquet side of `readers.py`. Only the row groups and columns that are needed are read; a
record's position is its row number in the file. A few bytes of parquet can stand for gigabytes, so
rows are read and decoded in pieces of bounded size; until then repeated texts stay a dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.errors import ConfigError, RunError
from millstream.io.columns import build, shown
from millstream.io.formats import Format
from millstream.io.opening import open_bytes
from millstream.io.pages import page_sizes
from millstream.io.records import MAX_LINE, MAX_RAW, Dead, Parsed, Split, raw_text
from millstream.io.timestamps import Bools, Ints, nulls_of
from millstream.state.locations import is_url

PIECE = 32 * 1024 * 1024  # bytes of values decoded at a time; no row may have more
PAGES = 128 * 1024 * 1024  # bytes that the largest pages of all columns may take unpacked
_VALUE = 8  # bytes one value takes at least; what is stored of it may be much less
_TAKE_OUT = "Take the file out of the source or write it"
_DELTA_ROWS = 256  # rows at a time of texts that are stored as the difference to the one before
_FEWEST_ROWS = 4_096  # at a time, of splits that have fewer in a row group with more


@contextmanager
def opened(path: str, packed: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """The file, with every failure to read it named after it; `packed`: read as dictionaries.

    Pages that have a checksum are held against it: a flipped bit is an error, not another value.
    """
    try:
        with (
            _source(path) as source,
            pq.ParquetFile(
                source, read_dictionary=list(packed), page_checksum_verification=True
            ) as file,
        ):
            yield file
    except (pa.ArrowException, OSError) as error:
        told = str(error).strip().rstrip(".")
        raise RunError(
            f"cannot read parquet file {path}: {told}. Put a whole copy in its place, or take it "
            "away, and start again; of this batch nothing was counted"
        ) from error


@contextmanager
def _source(path: str) -> Iterator[str | BinaryIO]:
    """What Arrow opens: a file it maps itself, or an object of a store that is read by ranges."""
    if not is_url(path):
        yield path
        return
    with open_bytes(path) as stream:
        yield stream


def rows_of(file: pq.ParquetFile) -> int:
    """How many rows there are, by its row groups: some writers leave the total of a file at 0."""
    groups = file.metadata
    return sum(groups.row_group(i).num_rows for i in range(groups.num_row_groups))


def read_rows(fmt: Format, split: Split, max_rows: int) -> Iterator[Parsed]:
    """The rows of a split; of a row group that is damaged, those before the damage."""
    with opened(split.path) as file:
        _check_columns(fmt, file.schema_arrow, split.path)
        groups = _groups(file, split)
        numbers = [one.number for one in groups]
        rows, damaged = _affordable(fmt, file, numbers, split.path)
        rows = min(max_rows, rows, max(split.end - split.start, _FEWEST_ROWS))
        packed = _packed(fmt, file, [one for one in numbers if one not in damaged])
    with opened(split.path, packed) as file:
        # Arrow cannot join the dictionaries of several groups inside of lists and structs.
        apart = any("." in path for path in packed)
        at = split.start
        for several in _runs(groups, damaged, apart):
            if (why := damaged.get(several[0].number)) is not None:
                yield _lost(fmt, several[0], at, split, why)
            else:
                at = yield from _read_groups(fmt, file, several, rows, split, at)
            at = min(split.end, several[-1].end)
    if at < split.end:
        raise RunError(f"parquet file {split.path} has {at} rows, expected {split.end}")


@dataclass(frozen=True)
class _Group:
    """A row group: which it is, and its rows in the file."""

    number: int
    start: int
    end: int


def _groups(file: pq.ParquetFile, split: Split) -> list[_Group]:
    """The row groups that overlap the split."""
    groups: list[_Group] = []
    first = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if first < split.end and first + rows > split.start:
            groups.append(_Group(number, first, first + rows))
        first += rows
    return groups


def _runs(groups: list[_Group], damaged: dict[int, str], apart: bool) -> Iterator[list[_Group]]:
    """Row groups that are read together; one that is damaged is by itself."""
    run: list[_Group] = []
    for group in groups:
        if run and (apart or group.number in damaged or run[-1].number in damaged):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _read_groups(
    fmt: Format, file: pq.ParquetFile, groups: list[_Group], rows: int, split: Split, at: int
) -> Generator[Parsed, None, int]:
    """Some row groups from a row on; gives how far it came."""
    where = groups[0].start
    try:
        for batch in file.iter_batches(
            rows, [one.number for one in groups], columns=fmt.delivered.names, use_threads=False
        ):
            low, high = max(at - where, 0), min(split.end - where, batch.num_rows)
            if low < high:
                yield from _pieces(fmt, batch.slice(low, high - low), where + low)
                at = where + high
            where += batch.num_rows
            if where >= split.end:
                break  # the rest of a large row group is for other splits
    except (pa.ArrowException, OSError) as error:
        if not _is_damage(error, split.path):
            raise
        if len(groups) == 1:
            yield _lost(fmt, groups[0], at, split, str(error))
            return min(split.end, groups[0].end)
        for group in groups:  # one by one: only one of them may be damaged
            if group.end > at:
                at = yield from _read_groups(fmt, file, [group], rows, split, at)
    return at


def _is_damage(error: Exception, path: str) -> bool:
    """Whether what was read makes no sense, and not that it could not be read."""
    if isinstance(error, OSError):
        return error.errno is None and not is_url(path)
    return True


def _lost(fmt: Format, group: _Group, at: int, split: Split, why: str) -> Parsed:
    """A dead letter for rows of a row group of which nothing but their number is known."""
    low, high = max(at, group.start), min(split.end, group.end)
    told = f"rows {low} to {high - 1} of row group {group.number} cannot be read: {why}"
    letter = Dead(low, "", told, high - low)
    none = [pa.nulls(0, field.type) for field in fmt.delivered]
    return build(fmt, none, np.zeros(0, np.int64), [letter], str)


def _affordable(
    fmt: Format, file: pq.ParquetFile, groups: list[int], path: str
) -> tuple[int, dict[int, str]]:
    """How many rows are read at a time; refuses what cannot but exceed a limit.

    Beside it the row groups of which that cannot be known: the header of a page is damaged.
    """
    rows, damaged = MAX_LINE, dict[int, str]()
    with open_bytes(path) if is_url(path) else open(path, "rb", buffering=0) as stream:
        for number in groups:
            group, wanted, held = file.metadata.row_group(number), 0, 0
            for at in range(group.num_columns):
                column = group.column(at)
                name = column.path_in_schema.partition(".")[0]
                if name not in fmt.delivered.names:
                    continue
                try:
                    pages = [*page_sizes(stream, column)]
                except RunError as error:
                    damaged[number] = f"column {name!r}: {error}"
                    break
                # A run of equal values is stored as one: what a list holds tells only their number.
                width = max(_VALUE, file.schema.column(at).length)
                taken = max(sum(pages), column.num_values * width)
                wanted, held = wanted + taken, held + max(pages, default=0)
                if taken > (MAX_LINE + MAX_RAW) * group.num_rows:
                    raise _too_much(path, f"column {name!r} takes {taken}", number, group.num_rows)
                if "DELTA_BYTE_ARRAY" in column.encodings:
                    rows = min(rows, max(_DELTA_ROWS, PIECE // max(sum(pages), 1)))
            if number in damaged:
                continue
            if wanted > (PIECE + MAX_RAW) * group.num_rows:
                raise _too_much(path, f"all columns take {wanted}", number, group.num_rows)
            if held > PAGES:
                raise RunError(
                    f"parquet file {path}: the largest pages of its columns in row group {number} "
                    f"take {held} bytes together once unpacked, and at most {PAGES} are held at a "
                    f"time. {_TAKE_OUT} with smaller pages, or leave columns out of schema="
                )
            rows = min(rows, max(1, PIECE * group.num_rows // max(wanted, 1)))
    return rows, damaged


def _too_much(path: str, found: str, group: int, rows: int) -> RunError:
    return RunError(
        f"parquet file {path}: {found} bytes for {rows} rows in row group {group}; the limit for "
        f"one value is {MAX_LINE} bytes, for one row {PIECE}. {_TAKE_OUT} without such values, or "
        f"leave the column out of schema="
    )


def _packed(fmt: Format, file: pq.ParquetFile, groups: list[int]) -> list[str]:
    """Columns of texts that are stored with a dictionary: they are read as they are stored."""
    found = set()
    for group in map(file.metadata.row_group, groups):
        for at in range(group.num_columns):
            column, about = group.column(at), file.schema.column(at)
            text = about.physical_type == "BYTE_ARRAY" and about.logical_type.type != "DECIMAL"
            if text and (
                column.has_dictionary_page or any("DICTIONARY" in e for e in column.encodings)
            ):
                found.add(column.path_in_schema)
    return sorted(path for path in found if path.partition(".")[0] in fmt.delivered.names)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _check_columns(fmt: Format, stored: pa.Schema, path: str) -> None:
    missing = [name for name in fmt.delivered.names if name not in stored.names]
    if missing:
        raise ConfigError(
            f"{path}: the parquet file has no column {', '.join(map(repr, missing))}; "
            f"it has {', '.join(stored.names)}. Correct schema="
        )
    twice = [name for name in fmt.delivered.names if stored.names.count(name) > 1]
    if twice:
        raise ConfigError(repeated(path, twice))
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


def repeated(path: str, names: Sequence[str]) -> str:
    """What to say of a file in which several columns have the same name."""
    return (
        f"{path}: the parquet file has more than one column {', '.join(map(repr, names))}. "
        f"Write it with different names, or leave the column out of schema="
    )


def _pieces(fmt: Format, batch: pa.RecordBatch, first: int) -> Iterator[Parsed]:
    """A batch in pieces whose texts are of bounded size once they are decoded."""
    after = np.cumsum(sum((_sizes(c) for c in batch.columns), np.zeros(batch.num_rows, np.int64)))
    low = 0
    while low < batch.num_rows:
        before = int(after[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(after, before + PIECE, side="right")))
        yield _parsed(fmt, batch.slice(low, high - low), first + low)
        low = high


def _parsed(fmt: Format, batch: pa.RecordBatch, first: int) -> Parsed:
    positions = np.arange(first, first + batch.num_rows, dtype=np.int64)
    refused = _refused(batch)
    dead = [Dead(first + i, _show(batch, i), why) for i, why in refused.items()]
    if refused:
        good = np.setdiff1d(np.arange(batch.num_rows), list(refused))
        batch, positions = batch.take(pa.array(good)), positions[good]
    columns = [batch.column(batch.schema.get_field_index(n)) for n in fmt.delivered.names]
    return build(fmt, columns, positions, dead, lambda i: _show(batch, i))


def _refused(batch: pa.RecordBatch) -> dict[int, str]:
    """Rows with a value that is too long or not UTF-8, or too long as a whole, with the reason."""
    refused: dict[int, str] = {}
    together = np.zeros(batch.num_rows, np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        sizes = _sizes(column)
        together += sizes
        for i in np.flatnonzero(sizes > MAX_LINE).tolist():
            why = f"column {name!r}: value of {sizes[i]} bytes; the limit is {MAX_LINE}"
            refused.setdefault(i, why)
        for i in np.flatnonzero(_undecodable(column)).tolist():
            refused.setdefault(i, f"column {name!r}: not UTF-8")
    for i in np.flatnonzero(together > PIECE).tolist():
        refused.setdefault(i, f"row of {together[i]} bytes; the limit is {PIECE}")
    return refused


def _sizes(column: pa.Array) -> Ints:
    """The bytes of the texts in each value; 0 for other types, whose values are small."""
    return _of_each(column, _lengths)


def _undecodable(column: pa.Array) -> Bools:
    """Which values hold text that is not UTF-8: nothing else looks before somebody uses it."""
    return _of_each(column, _broken) > 0


def _of_each(column: pa.Array, known: Callable[[pa.Array], Ints]) -> Ints:
    """What is known of every text, summed up for each row: one may hold many, or share them."""
    kind, none = column.type, np.zeros(len(column), np.int64)
    if pa.types.is_dictionary(kind):
        each = np.append(_of_each(column.dictionary, known), 0)
        indices = pc.fill_null(column.indices, len(each) - 1).to_numpy(zero_copy_only=False)
        return np.asarray(each[indices.astype(np.int64)])
    if pa.types.is_struct(kind):
        return sum((_of_each(part, known) for part in column.flatten()), none)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        parts = (column.keys, column.items) if pa.types.is_map(kind) else (column.values,)
        before = np.append(0, np.cumsum(sum(_of_each(part, known) for part in parts)))
        return np.where(nulls_of(column), none, np.diff(before[column.offsets.to_numpy()]))
    return known(column) if _is_text(kind) else none


def _lengths(texts: pa.Array) -> Ints:
    lengths = pc.fill_null(pc.binary_length(texts), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False)).astype(np.int64)


def _broken(texts: pa.Array) -> Ints:
    if _is_valid(texts):
        return np.zeros(len(texts), np.int64)
    each = (not _is_valid(texts.take(pa.array([i]))) for i in range(len(texts)))
    return np.fromiter(each, np.int64, len(texts))


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _show(batch: pa.RecordBatch, i: int) -> str:
    names = batch.schema.names
    row = {n: _value(c[i]) for n, c in zip(names, batch.columns, strict=True)}
    return json.dumps(row, default=str)[:MAX_RAW]


def _value(scalar: pa.Scalar) -> object:
    """A value as a dead letter shows it; a text as far as it is shown at all."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if scalar.is_valid and (
        pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type)
    ):
        return raw_text(scalar.as_buffer()[:MAX_RAW].to_pybytes())
    try:
        return shown(scalar)
    except UnicodeDecodeError:
        return "not UTF-8"
