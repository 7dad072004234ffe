"""Tables that functions of users gave, as tables that all steps, stores and sinks take.

Other systems have types that Arrow itself cannot take rows of, and values that Python has none
for. What is behind a function must not meet them: a run would end there, at every start anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import Mask
from millstream.ops.mixed import column_of, is_mixed
from millstream.ops.records import describe

_DAY = 86_400
# Days of Python's calendar, without the first and the last: there zones decide.
_FIRST, _LAST = -719_161, 2_932_895
_LONGEST = 999_999_999  # days of a timedelta
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def unreadable_rows(step: str, table: pa.Table) -> dict[int, str]:
    """The rows of a table that have a value nobody can read, with the reason."""
    twice = [name for name, times in Counter(table.column_names).items() if times > 1]
    if twice:
        raise RunError(
            f"{step}: map_batches gave {len(table.column_names)} columns, several of them called "
            f"{twice[0]!r}; rename_columns() gives each a name of its own"
        )
    bad: dict[int, str] = {}
    for field in table.schema:
        if why := next(_reasons(field.type), None):
            raise RunError(f"{step}: map_batches gave a column {field.name!r} of {why}")
        if not _is_sound(table.column(field.name)):
            bad = _unreadable(field.name, table.column(field.name)) | bad
    return bad


def plain_rows(step: str, table: pa.Table, good: Mask) -> pa.Table:
    """Some rows of a table whose values can all be read, in plain columns."""
    if not good.all():  # as slices: of views Arrow can take nothing else
        edges = np.flatnonzero(np.diff(good, prepend=False, append=False)).tolist()
        ranges = zip(edges[::2], edges[1::2], strict=True)
        pieces = [table.slice(start, stop - start) for start, stop in ranges]
        table = pa.concat_tables(pieces or [table.slice(0, 0)])
    for at, field in enumerate(table.schema):
        column = table.column(at)
        plain = _plainly(step, field, column)
        if plain is not column:  # else the field keeps its marks
            table = table.set_column(at, field.name, plain)
    return table


def _parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type and all that are in it."""
    yield kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        yield from _parts(kind.value_type)
    elif pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            yield from _parts(kind.field(at).type)


def _reasons(kind: pa.DataType) -> Iterator[str]:
    """Why nobody can read values of a type, if so."""
    for one in _parts(kind):
        if pa.types.is_interval(one):
            yield f"{one}, which no step behind it takes; use a duration"
        if pa.types.is_struct(one) and len({field.name for field in one}) < one.num_fields:
            yield f"{one}, which has a name twice; give each a name of its own"
        if pa.types.is_timestamp(one) and one.tz is not None:
            try:
                pa.scalar(0, one).as_py()
            except (KeyError, ValueError):
                yield f"{one}, a time zone that nobody knows"


def _is_sound(column: pa.ChunkedArray) -> bool:
    """Whether every value of a column can be read; if not, each is to be looked at."""
    try:
        column.validate(full=True)  # texts may be none
        if not pa.types.is_nested(column.type):
            return _is_near(column)
        if any(map(pa.types.is_temporal, _parts(column.type))):
            column.to_pylist()
    except (pa.ArrowInvalid, ValueError, OverflowError):
        return False
    return True


def _is_near(column: pa.ChunkedArray) -> bool:
    """Whether times, dates and durations are within what Python has."""
    kind = column.type
    if pa.types.is_date32(kind):
        low, high, raw = _FIRST, _LAST, pa.int32()
    elif pa.types.is_date64(kind):
        low, high, raw = _FIRST * _DAY * 1000, _LAST * _DAY * 1000, pa.int64()
    elif pa.types.is_timestamp(kind):
        unit = _DAY * _PER_SECOND[kind.unit]
        low, high, raw = _FIRST * unit, _LAST * unit, pa.int64()
    elif pa.types.is_duration(kind):
        high, raw = (_LONGEST - 1) * _DAY * _PER_SECOND[kind.unit], pa.int64()
        low = -high
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        if pa.types.is_temporal(kind.value_type):
            column.to_pylist()
        return True
    else:
        return True
    found = pc.min_max(column.cast(raw)).as_py()
    return found["min"] is None or (low <= found["min"] and found["max"] <= high)


def _unreadable(name: str, column: pa.ChunkedArray) -> dict[int, str]:
    bad: dict[int, str] = {}
    for row, value in enumerate(column):
        try:
            value.as_py()
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            bad[row] = f"column {name!r}: {describe(error)}"
    return bad


def _plainly(step: str, field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a column of a type of which Arrow can take rows."""
    kind = field.type
    if any(map(_is_foreign, _parts(kind))):  # of any type: by value
        found = column_of(column.to_pylist(), {})
        if found is None:
            raise RunError(f"{step}: map_batches gave values of {kind}, which cannot be stored")
        return pa.chunked_array([found])
    plain = _plain_type(kind)
    if plain == kind:
        return column
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(plain)
    # Value by value: what Arrow makes of views of lists is not sound.
    return pa.chunked_array([pa.array(column.to_pylist(), plain)])


def _is_foreign(kind: pa.DataType) -> bool:
    if pa.types.is_union(kind):
        return True
    return isinstance(kind, pa.BaseExtensionType) and not is_mixed(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Views and runs, which other systems give, as the texts, bytes, lists and values they are."""
    if pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_dictionary(kind):
        plain = _plain_type(kind.value_type)
        return kind if plain == kind.value_type else plain
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type), kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_plain_type(one.type)) for one in kind])
    return kind
