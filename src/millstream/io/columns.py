"""Raw columns to the columns of the schema, with a mask of the records that do not fit.

Stands between the parsers (which only split records into fields) and `Parsed`. Both the fast and
the careful parser of a kind hand their fields to the same conversion here, so a record gets the
same values, or the same refusal, whichever of the two read it. Every conversion looks at one value
at a time in effect: what a value becomes never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.io.formats import NULLS, Format
from millstream.io.records import Dead, Parsed
from millstream.io.schemas import TIMESTAMP
from millstream.io.timeformats import time_format
from millstream.io.timepatterns import numbered, times_in
from millstream.io.timestamps import (
    DAY,
    Bools,
    Ints,
    cast_each,
    float_micros,
    floor_micros,
    ints_of,
    is_naive_text,
    iso_micros,
    nulls_of,
    out_of_range,
)
from millstream.ops.codec import python_values
from millstream.ops.mixed import REFUSED, is_mixed
from millstream.ops.zones import MAX_MICROS, MIN_MICROS, localize

_NAMES = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
# The form of everything Arrow's casts accept, and of little else.
_NUMBER = r"^[-+]?([0-9.]+([eE][-+]?[0-9]+)?|[nN][aA][nN].*|[iI][nN][fF].*)$"
_FORMS: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_integer, r"^(-?[0-9]+|0[xX][0-9a-fA-F]+)$"),
    (pa.types.is_floating, _NUMBER),
    (pa.types.is_decimal, _NUMBER),
    (pa.types.is_boolean, r"^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|0|1)$"),
    (pa.types.is_date32, r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"),
]


def build(
    fmt: Format,
    raw: Sequence[pa.Array],
    positions: Ints,
    refused: list[Dead],
    show: Callable[[int], str],
) -> Parsed:
    """Convert raw columns (in delivered order) and divide the records into good and dead.

    `show(i)` gives the raw text of record i for a dead letter; `refused` are the records the
    parser itself refused.
    """
    schema = fmt.delivered
    errors: dict[int, str] = {}
    arrays: list[pa.Array] = []
    for field, column in zip(schema, raw, strict=True):
        if field.name == fmt.time and fmt.time_format is not None and field.type == TIMESTAMP:
            array, bad = _formatted(column, fmt.time_format, fmt.zone)
        else:
            array, bad = convert(column, field.type, fmt.zone)
        arrays.append(array)
        for i in np.flatnonzero(bad):
            why = explain(field, column[int(i)], fmt.zone)
            errors.setdefault(int(i), why + _advice(fmt, column[int(i)]))
    table = pa.Table.from_arrays(arrays, schema=schema)
    ts = None
    if fmt.time is not None:
        ts, late = event_time(fmt, table.column(fmt.time).combine_chunks())
        errors = late | errors
    dead = refused + [Dead(int(positions[i]), show(i), why) for i, why in errors.items()]
    if errors:
        good = np.ones(len(positions), bool)
        good[list(errors)] = False
        table = table.filter(pa.array(good))
        positions = positions[good]
        ts = None if ts is None else ts[good]
    dead.sort(key=lambda letter: letter.position)
    offered = len(positions) + sum(one.records for one in dead)
    return Parsed(table.combine_chunks(), ts, positions, dead, offered)


def _formatted(array: pa.Array, text: str, zone: str | None) -> tuple[pa.Array, Bools]:
    """Texts of the time column that are not ISO-8601."""
    micros, bad = time_format(text).micros(empty_to_null(array), zone)
    return pa.array(micros, pa.int64(), mask=nulls_of(array) | bad).cast(TIMESTAMP), bad


def convert(array: pa.Array, target: pa.DataType, zone: str | None) -> tuple[pa.Array, Bools]:
    """One column to its type; values that do not fit are null and marked."""
    source = array.type
    if pa.types.is_dictionary(source):
        return convert(array.dictionary_decode(), target, zone)
    if pa.types.is_timestamp(target):
        return _timestamps(array, target, zone)
    if source == target and not pa.types.is_nested(target):
        return array, _far_dates(array)
    if pa.types.is_nested(target):
        return _nested(array, target, zone)
    if pa.types.is_string(source):
        return _from_text(array, target)
    result, bad = cast_each(array, target)
    if pa.types.is_floating(target):
        bad |= _overflowed(result, lambda: _mask(pc.is_finite(array)))
    return result, bad | _far_dates(result)


def _timestamps(array: pa.Array, target: pa.DataType, zone: str | None) -> tuple[pa.Array, Bools]:
    source, nulls = array.type, nulls_of(array)
    if pa.types.is_timestamp(source):
        micros, bad = floor_micros(ints_of(array), source.unit)
    elif pa.types.is_date(source):
        days = ints_of(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()))
        micros, bad = floor_micros(days * 86_400, "s")
    else:
        micros, bad = iso_micros(array, zone)
    if not pa.types.is_string(source) and not getattr(source, "tz", None) and target.tz:
        # Wall-clock values: they need a zone as much as texts without an offset do.
        micros = micros if zone is None else localize(micros, zone)
        bad = np.ones(len(micros), bool) if zone is None else bad | out_of_range(micros)
    bad = bad & ~nulls
    result = pa.array(micros, pa.int64(), mask=nulls | bad).cast(pa.timestamp("us", target.tz))
    return (result if result.type == target else result.cast(target, safe=False)), bad


def _from_text(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    try:
        result, bad = array.cast(target), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        array = empty_to_null(pc.ascii_trim_whitespace(array))
        if pa.types.is_integer(target):
            array = pc.replace_substring_regex(array, r"^\+([0-9])", r"\1")
        result, bad = _cast_matching(array, target)
    if pa.types.is_integer(target):  # Arrow reads 0x1F as 31; no other tool in the path does
        bad |= _mask(pc.match_substring(array, "x", ignore_case=True))
    elif pa.types.is_floating(target):  # 1e400 is a mistake, but inf and Infinity are values
        bad |= _overflowed(result, lambda: ~_mask(pc.match_substring(array, "n", ignore_case=True)))
    return result, bad | _far_dates(result)


def _cast_matching(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    """As `cast_each`, but plain rubbish is sorted out by its form, which is much quicker."""
    form = next((f for is_kind, f in _FORMS if is_kind(target)), None)
    if form is None:
        return cast_each(array, target)
    fits = _mask(pc.match_substring_regex(array, form))
    result, bad = cast_each(pc.if_else(pa.array(fits), array, pa.scalar(None, array.type)), target)
    return result, bad | ~(fits | nulls_of(array))


def empty_to_null(array: pa.Array) -> pa.Array:
    empty = pc.equal(pc.binary_length(array), 0)
    if not pc.any(empty).as_py():
        return array
    return pc.if_else(empty, pa.scalar(None, array.type), array)


def words_to_null(array: pa.Array, words: Sequence[str], *, trim: bool = False) -> pa.Array:
    """Null where a text is one of these words."""
    if not words:
        return array
    texts = pc.ascii_trim_whitespace(array) if trim else array
    found = pc.is_in(texts, pa.array(words, pa.string()))
    return pc.if_else(found, pa.scalar(None, array.type), array)


def _overflowed(result: pa.Array, was_finite: Callable[[], Bools]) -> Bools:
    infinite = _mask(pc.is_inf(result))
    return infinite & was_finite() if infinite.any() else infinite


def _far_dates(array: pa.Array) -> Bools:
    if not pa.types.is_date32(array.type):
        return np.zeros(len(array), bool)
    days = ints_of(array.cast(pa.int32()).cast(pa.int64()))
    return ((days < MIN_MICROS // DAY) | (days > MAX_MICROS // DAY)) & ~nulls_of(array)


def _nested(array: pa.Array, target: pa.DataType, zone: str | None) -> tuple[pa.Array, Bools]:
    nulls = pa.array(nulls_of(array))
    if pa.types.is_struct(target):
        parts = [convert(pc.struct_field(array, [f.name]), f.type, zone) for f in target]
        bad = np.logical_or.reduce([p[1] for p in parts] or [np.zeros(len(array), bool)])
        return pa.StructArray.from_arrays(
            [p[0] for p in parts], fields=list(target), mask=nulls
        ), bad
    # Slicing or nulls leave values nobody refers to: rebuild so that offsets and values agree.
    array = pa.concat_arrays([array]) if array.offset == 0 else pa.concat_arrays([array, array[:0]])
    lengths = np.asarray(pc.fill_null(_list_lengths(array), 0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    parents = np.repeat(np.arange(len(array)), lengths)
    bad = np.zeros(len(array), bool)
    if pa.types.is_map(target):
        entries = array.cast(pa.list_(pa.struct(list(_map_fields(array.type))))).flatten()
        keys, bad_keys = convert(pc.struct_field(entries, 0), target.key_type, zone)
        items, bad_items = convert(pc.struct_field(entries, 1), target.item_type, zone)
        bad[parents[bad_keys | bad_items | nulls_of(keys)]] = True
        # A refused key is null here, which Arrow forbids; its record is dropped anyway.
        keys = keys if not keys.null_count else pc.fill_null(keys, _any_value(keys.type))
        result = pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=nulls)
        return result, bad
    values, bad_values = convert(array.flatten(), target.value_type, zone)
    bad[parents[bad_values]] = True
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=nulls), bad


def _list_lengths(array: pa.Array) -> Any:
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct(list(_map_fields(array.type)))))
    return pc.list_value_length(array).cast(pa.int64())


def _map_fields(kind: pa.DataType) -> tuple[pa.Field, pa.Field]:
    return kind.key_field, kind.item_field


def _any_value(kind: pa.DataType) -> Any:
    return "" if pa.types.is_string(kind) else pa.scalar(0).cast(pa.int32()).cast(kind)


def _mask(values: Any) -> Bools:
    filled = values.fill_null(False) if values.null_count else values
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=bool)


def event_time(fmt: Format, column: pa.Array) -> tuple[Ints, dict[int, str]]:
    """Microseconds UTC of the (converted) time column, and why some records have none."""
    if is_mixed(column.type):
        return times_of(fmt, python_values(column))
    if fmt.time_pattern is not None:
        return _found_time(fmt, fmt.time_pattern, column)
    nulls, kind = nulls_of(column), column.type
    if pa.types.is_timestamp(kind) and kind.tz:
        micros = ints_of(column.cast(pa.timestamp("us", "UTC"), safe=False))
        bad = out_of_range(micros)
    elif pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0):
        numbers, huge = cast_each(column, pa.int64())
        micros, bad = floor_micros(ints_of(numbers), fmt.time_unit)
        bad |= huge
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        micros, bad = float_micros(floats, fmt.time_unit)
    elif fmt.time_format is not None and pa.types.is_string(kind):
        micros, bad = time_format(fmt.time_format).micros(column, fmt.zone)
    elif pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        array, bad = _timestamps(column, pa.timestamp("us", "UTC"), fmt.zone)
        micros = ints_of(array)
    else:
        micros, bad = np.zeros(len(column), np.int64), np.ones(len(column), np.bool_)
    field = pa.field(str(fmt.time), TIMESTAMP)
    why = {int(i): f"time column {fmt.time!r} is null" for i in np.flatnonzero(nulls)}
    for i in np.flatnonzero(bad & ~nulls):
        why[int(i)] = "time " + explain(field, column[int(i)], fmt.zone) + _unlike(fmt, kind)
    return micros, why


def times_of(fmt: Format, values: list[Any]) -> tuple[Ints, dict[int, str]]:
    """Times by their kinds, so that none depends on what the records beside it have."""
    kinds: dict[tuple[type, bool], list[int]] = {}
    for row, value in enumerate(values):
        aware = getattr(value, "tzinfo", None) is not None
        kinds.setdefault((type(value), aware), []).append(row)
    ts = np.zeros(len(values), np.int64)
    failed: dict[int, str] = {}
    waiting = [*kinds.values()]
    while waiting:
        rows = waiting.pop()
        try:
            column = pa.array([values[row] for row in rows])
        except REFUSED as error:
            if len(rows) > 1:
                waiting += [[row] for row in rows]
            else:
                failed[rows[0]] = f"{type(error).__name__}: {error}"
            continue
        ts[rows], why = event_time(fmt, column)
        failed |= {rows[at]: told for at, told in why.items()}
    return ts, failed


def _found_time(fmt: Format, pattern: str, column: pa.Array) -> tuple[Ints, dict[int, str]]:
    """The same of times inside of longer texts; a number counts since the epoch."""
    found = times_in(column, pattern)
    counted, bad, are = numbered(found, fmt.time_unit)
    if fmt.time_format is not None:
        are = np.zeros(len(found), np.bool_)
    plain = pc.if_else(pa.array(are), pa.scalar(None, pa.string()), found)
    micros, why = event_time(replace(fmt, time_pattern=None), plain)
    why = {row: text for row, text in why.items() if not are[row] and not _is_null(found, row)}
    missing = np.flatnonzero(nulls_of(found)).tolist()
    why |= dict.fromkeys(missing, f"{fmt.time!r} has no time: {pattern!r} finds nothing in it")
    for row in np.flatnonzero(bad & are).tolist():
        why[row] = f"time {found[row].as_py()!r} in {fmt.time!r} is no time in the years 1 to 9999"
    return np.where(are, counted, micros), dict(sorted(why.items()))


def _is_null(values: pa.Array, row: int) -> bool:
    return not values[row].is_valid


def _unlike(fmt: Format, kind: pa.DataType) -> str:
    """What may be meant by a time that is none."""
    if fmt.time_format is not None:
        return f" written as {fmt.time_format!r}"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        finer = {"s": "ms", "ms": "us", "us": "ns"}.get(fmt.time_unit)
        hint = "" if finer is None else f"; if it counts in {finer}, give time_unit={finer!r}"
        return f" in time_unit={fmt.time_unit!r}{hint}"
    return ""


def explain(field: pa.Field, value: Any, zone: str | None) -> str:
    """Why one value was refused, for its dead letter."""
    said = shown(value)
    text = repr(said)
    text = text if len(text) <= 200 else text[:200] + "..."
    if pa.types.is_timestamp(field.type):
        if zone is None and (
            is_naive_text(said)
            if isinstance(said, str)
            else pa.types.is_temporal(value.type) and not getattr(value.type, "tz", None)
        ):
            return f"column {field.name!r}: {text} has no zone offset and no zone= is set"
        return f"column {field.name!r}: {text} is not a timestamp in the years 1 to 9999"
    return f"column {field.name!r}: {text} is not a {_NAMES.get(field.type, field.type)}"


def _advice(fmt: Format, value: Any) -> str:
    said = shown(value) if fmt.kind == "csv" else None
    known = isinstance(said, str) and said.strip() in NULLS
    return f"; to read it as null, give nulls=[{said.strip()!r}]" if said and known else ""


def shown(value: Any) -> Any:
    """A value for a message: what Python knows it as, or as text what is beyond its calendar."""
    try:
        return value.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return " ".join(pa.array([value], value.type).to_string().split())
