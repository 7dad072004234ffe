"""Plain Python functions over records: dicts in, dicts out, bad ones set aside.

Used by `map`, `flat_map`, `reduce` and MapReduce jobs. A function that raises costs the one record
it was given, never its neighbours: the record becomes a dead letter with the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.chunks import Chunk, Int64, all_but
from millstream.ops.codec import as_plain, python_rows, python_times
from millstream.ops.interrupts import pass_on
from millstream.ops.mixed import REFUSED, column_of, exactly
from millstream.ops.usage import columns_read
from millstream.ops.zones import MAX_MICROS, MIN_MICROS, localize
from millstream.showing import visible

Row = dict[str, Any]
_RAW_LIMIT = 65_536
_CHANGEABLE = frozenset((list, dict, tuple, set, bytearray))  # itself, or what is in it


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be processed: where it came from, what it was, what went wrong."""

    operator: str
    source: int
    position: int
    raw: str
    error: str


def as_json(value: Any) -> str:
    """Any value as JSON for people to read; what JSON cannot say is said by `str`."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except Exception:  # also what a user's object raises when it is to be shown
        text = shown(value)
    return text[:_RAW_LIMIT]


def shown(value: Any) -> str:
    """A value for a message, whatever its own words for it do."""
    try:
        return repr(value)[:_RAW_LIMIT]
    except BaseException as error:
        return f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"


def describe(error: BaseException) -> str:
    """An exception in one line, whatever it says: as text, which no terminal obeys."""
    pass_on(error)
    name = visible(type(error).__name__)
    try:
        text = visible(str(error))
    except BaseException as another:
        return f"{name} (its text cannot be shown: {_reason(another, type(error))})"
    line = f"{name}: {text}" if text else name
    if not isinstance(error, Exception):
        line += "; a function must not end the process or interrupt it"
    return line[:_RAW_LIMIT]


def _reason(error: BaseException, before: type[BaseException]) -> str:
    """Why an exception has no words, unless that has none either."""
    name = visible(type(error).__name__)
    if type(error) is before:
        return name
    try:
        return f"{name}: {visible(str(error))}"
    except BaseException:
        return name


def dead_row(operator: str, chunk: Chunk, index: int, error: str) -> DeadLetter:
    """A dead letter for one record of a chunk."""
    row = chunk.table.slice(index, 1).to_pylist()
    raw = as_json(row[0] if row else {})
    return DeadLetter(operator, chunk.src, int(chunk.pos[index]), raw, error)


def without(operator: str, chunk: Chunk, bad: dict[int, str]) -> tuple[Chunk, list[DeadLetter]]:
    """A chunk without the records that cannot go on, and dead letters for these."""
    dead = [dead_row(operator, chunk, index, why) for index, why in sorted(bad.items())]
    return chunk.take(all_but(len(chunk), bad)), dead


def apply(
    chunk: Chunk, fn: Callable[[Row], Any], operator: str, schema: pa.Schema | None
) -> tuple[Chunk, list[DeadLetter]]:
    """`fn` over every record: it may give a dict, several, or None; errors become dead letters."""
    out: list[Row] = []
    origin: list[int] = []
    failed: dict[int, str] = {}
    for index, row in enumerate(python_rows(chunk.table, columns_read(fn, 0))):
        try:
            results = several(fn(row))
        except BaseException as error:  # a user's function may raise anything
            failed[index] = describe(error)
            continue
        out += results
        origin += [index] * len(results)
    table, kept = given_table(out, schema, origin, failed)
    dead = [dead_row(operator, chunk, index, why) for index, why in sorted(failed.items())]
    return chunk.at(table, np.array(origin, np.int64)[kept]), dead


def several(result: Any) -> list[Row]:
    """What a function gave, as a list of dicts; what it makes of them later changes nothing."""
    if result is None:
        return []
    if type(result) is dict:
        for value in result.values():  # as fast as can be: most are rows of plain values
            if type(value) in _CHANGEABLE:
                return [_own(result)]
        return [result.copy()]
    if isinstance(result, Mapping):
        return [_own(result)]
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise TypeError(
            f"expected a dict, an iterable of dicts or None, got {type(result).__name__}"
        )
    rows = []
    for item in result:
        if not isinstance(item, Mapping):
            raise TypeError(f"expected an iterable of dicts, got one of {type(item).__name__}")
        rows.append(_own(item))
    return rows


def _own(row: Mapping[str, Any]) -> Row:
    """A copy of a row, and of what it holds that can be changed."""
    return {name: _copied(value) for name, value in row.items()}


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {name: _copied(one) for name, one in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    return kind(value) if kind in _CHANGEABLE else value


def given_table(
    rows: list[Row],
    schema: pa.Schema | None,
    origin: Sequence[int],
    failed: dict[int, str],
    zone: str | None = None,
) -> tuple[pa.Table, Int64]:
    """What a function gave for records as a table, and which rows are in it.

    origin: the record of each row. A record is either dead or processed, whatever it gave: a row
    that cannot be stored makes its record one that `failed`, of which no row is left.

    With a schema it decides what fits. Without one every value stays what it is: were the type of
    a column that of the values beside it, a record would be dead in one batch and not in another.
    """
    while True:
        kept = np.arange(len(rows))
        if failed:
            kept = np.array([at for at in kept.tolist() if origin[at] not in failed], np.int64)
        some = [rows[at] for at in kept.tolist()] if failed else rows
        table, bad = to_table(some, schema, any_type=schema is None, zone=zone)
        if not bad:
            return table, kept
        failed.update({origin[int(kept[at])]: why for at, why in bad.items()})


def to_table(
    rows: list[Row], schema: pa.Schema | None, *, any_type: bool = False, zone: str | None = None
) -> tuple[pa.Table, dict[int, str]]:
    """Rows as a table, and the rows whose values do not fit the type of their column.

    `any_type`: values of a column may be of several types, and only those nobody could store
    do not fit. `zone`: whose clocks times without an offset are of.
    """
    forms = dict.fromkeys(map(tuple, rows))  # the columns of rows: mostly all have the same
    if schema is None and (odd := {one: why for one in forms if (why := _no_column(one))}):
        return pa.table({}), {at: odd[one] for at, one in enumerate(map(tuple, rows)) if one in odd}
    names = list(schema.names if schema is not None else dict.fromkeys(chain(*forms)))
    bad: dict[int, str] = {}
    columns = []
    for name in names:
        everywhere = all(name in form for form in forms)
        values = [row[name] for row in rows] if everywhere else [row.get(name) for row in rows]
        kind = schema.field(name).type if schema is not None else None
        columns.append(
            any_column(name, values, bad, zone)
            if any_type
            else _column(name, values, kind, bad, zone)
        )
    if bad:
        return pa.table({}), bad
    if not names:  # no columns at all: the number of rows would be lost
        return pa.table({"_": pa.nulls(len(rows))}), bad
    if any_type:
        return exactly(dict(zip(names, columns, strict=True))), bad
    return pa.table(columns, names=names), bad


def _no_column(names: Iterable[Any]) -> str | None:
    """Why one of some names is none of a column, as the None of fields too many in `csv`."""
    for name in names:
        if not isinstance(name, str):
            return f"expected texts as names of columns, got {type(name).__name__} {name!r:.80}"
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"the name of column {name!r:.80} is not UTF-8"
    return None


def any_column(
    name: str, values: list[Any], bad: dict[int, str], zone: str | None = None
) -> pa.Array | None:
    """Values of any types as a column; those that cannot be stored are noted with the reason."""
    found: dict[int, str] = {}
    if zone is not None:
        values = _in_zone(values, zone)
    column = column_of(values, found)
    bad.update({index: f"column {name!r}: {why}" for index, why in found.items()})
    return column


def _in_zone(values: list[Any], zone: str) -> list[Any]:
    """Values of which times without an offset are on the clocks of a zone."""
    values = [as_plain(v) if isinstance(v, datetime) else v for v in values]
    naive = [row for row, v in enumerate(values) if type(v) is datetime and v.tzinfo is None]
    if naive:
        local = pa.array([values[row] for row in naive], pa.timestamp("us")).cast(pa.int64())
        micros = localize(np.asarray(local), zone)
        there = (micros >= MIN_MICROS) & (micros <= MAX_MICROS)  # in the years 1 to 9999
        times = python_times(micros[there])
        for row, at in zip(np.array(naive)[there].tolist(), times, strict=True):
            values[row] = at
    return values


def _column(
    name: str, values: list[Any], kind: pa.DataType | None, bad: dict[int, str], zone: str | None
) -> pa.Array | None:
    try:
        column = pa.array(values, kind)
        return _times(name, values, column, bad, zone) if _is_time(column) else column
    except REFUSED:
        pass
    if kind is None:
        kind = _leading_type(values)
    for index, value in enumerate(values):
        try:
            pa.array([value], kind)
        except REFUSED:
            bad[index] = (
                f"column {name!r} holds {kind}, this record has {type(value).__name__} "
                f"{as_json(value)[:80]}"
            )
    if bad:
        return None
    try:
        return pa.array(values, kind)  # as whole numbers beyond what a double has, beside 1.0
    except REFUSED as error:
        raise RunError(f"column {name!r}: values cannot be stored as {kind}: {error}") from None


def _is_time(column: pa.Array) -> bool:
    return bool(pa.types.is_timestamp(column.type))


def _times(
    name: str, values: list[Any], column: pa.Array, bad: dict[int, str], zone: str | None
) -> pa.Array | None:
    """A column of times; Arrow would take the offset of some, and give one to others."""
    times = [row for row, value in enumerate(values) if isinstance(value, datetime)]
    naive = [row for row in times if values[row].tzinfo is None]
    if not naive if column.type.tz else len(naive) == len(times):
        return column
    if zone is not None:
        utc = pa.timestamp("us", "UTC")
        micros = np.array(pa.array(values, utc).cast(pa.int64()).fill_null(0))
        micros[naive] = localize(micros[naive], zone)
        return pa.array(micros, pa.int64(), mask=np.asarray(column.is_null())).cast(utc)
    has = "no" if column.type.tz else "a"
    for row in naive if column.type.tz else set(times) - set(naive):
        bad[row] = (
            f"column {name!r} holds {column.type}, this record has {values[row]}, a time with "
            f"{has} zone offset"
        )
    return None


def _leading_type(values: list[Any]) -> pa.DataType:
    for value in values:
        if value is not None:
            try:
                return pa.array([value]).type
            except REFUSED:
                continue
    return pa.string()
