"""Columns of one type for Parquet files and tables: the files of a directory are read together.

Results may have values of many types. A column of results whose values differ when it is first
written holds JSON text, then and in all files to come. Of records, as functions give them one by
one, the first decides: one bad value must not make texts of a column for ever. A column that was
written with one type keeps it: a row of another is refused, as a dead letter of the sink. What was
written is part of the manifest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.io.writers import json_text
from millstream.operators.batch import Control
from millstream.ops.chunks import Int64, all_but, flat
from millstream.ops.codec import as_key
from millstream.ops.mixed import REFUSED, differ, holds_mixed, widened, wider
from millstream.ops.records import as_json

_JSON, _SEEN = b"json", b"seen"
_PLACE = b"place"  # of the record that decided
_LARGE = b"large"  # whole numbers with digits that doubles do not have
Places = tuple[Int64, Int64, Int64]  # time, source and position of rows
_SHOWN = 80  # characters of a value or key in a message


@dataclass(frozen=True)
class Fitted:
    """A table to be written, the schema it has, and the rows that were refused."""

    table: pa.Table
    schema: pa.Schema
    refused: dict[int, str]


def fit(
    table: pa.Table,
    known: pa.Schema,
    step: str,
    places: Places | None = None,
    *,
    widens: bool = True,
) -> Fitted:
    """A table as one that goes with what was written before of the results of a step.

    places: time, source and position of rows that are records, so that the first of them decides.
    widens: whether doubles may follow whole numbers, as in files, but not in most tables.
    """
    refused: dict[int, str] = {}
    columns: dict[str, pa.Array] = {}
    fields: list[pa.Field] = []
    for name in table.column_names:
        column = flat(table.column(name))
        at = known.get_field_index(name)
        was = known.field(at) if at >= 0 else None
        if was is None:
            if holds_mixed(column.type):  # 1 here and 2.5 there are doubles in a file
                column = _widened(column)
            was = _first_seen(name, column, table, places)
            if _shapeless(was.type, widens):
                was = pa.field(name, pa.string(), metadata={_JSON: b"1"})
        if _is_json(was):
            column = pa.array(map(_text, column.to_pylist()), pa.string())
        elif column.type != was.type:
            column = _of_type(column, was, table, step, refused, widens)
        columns[name] = column
        if not pa.types.is_null(was.type):
            fields.append(was)
    fitted = pa.table(columns)
    if refused:
        fitted = fitted.filter(pa.array(all_but(len(table), refused)))
    return Fitted(fitted, pa.schema(fields), refused)


def _first_seen(name: str, column: pa.Array, table: pa.Table, places: Places | None) -> pa.Field:
    there = np.flatnonzero(np.asarray(pc.is_valid(column)))
    if places is not None:
        there = there[np.lexsort([one[there] for one in reversed(places)])]
    first = int(there[0]) if len(there) else None
    if holds_mixed(column.type):
        one = None if places is None or first is None else widened([column[first].as_py()])
        if one is None:
            return pa.field(name, pa.string(), metadata={_JSON: b"1"})
        column = one
    marks = {_SEEN: b"" if first is None else _shown(table, first, name).encode()}
    if places is not None and first is not None:
        marks[_PLACE] = json.dumps([int(one[first]) for one in places]).encode()
    if pa.types.is_integer(column.type) and _going_with(column, pa.float64()) is None:
        marks[_LARGE] = b"1"
    return pa.field(name, column.type, metadata=marks)


def _shapeless(kind: pa.DataType, widens: bool) -> bool:
    """Whether values have parts of which nobody knows what they are, as in {} and []."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return True  # no file takes these
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    unknown = not widens and any(map(pa.types.is_null, parts))  # files of other types may follow
    return unknown or any(_shapeless(one, widens) for one in parts)


def _widened(column: pa.Array) -> pa.Array:
    found = widened(column.to_pylist())
    return column if found is None else found


def _is_json(field: pa.Field) -> bool:
    return _JSON in (field.metadata or {})


def _text(value: Any) -> str | None:
    return None if value is None else json_text(value)


def _of_type(
    column: pa.Array,
    was: pa.Field,
    table: pa.Table,
    step: str,
    refused: dict[int, str],
    widens: bool,
) -> pa.Array:
    """The values that go with a type; rows with others are refused."""
    plain = column if not holds_mixed(column.type) else _widened(column)
    whole = _going_with(plain, was.type, widens)
    if whole is not None:
        return whole
    values = column.to_pylist()
    for index, value in enumerate(values):
        one = None if value is None else widened([value])
        if value is None or (one is not None and _going_with(one, was.type, widens) is not None):
            continue
        seen = (was.metadata or {}).get(_SEEN, b"").decode()
        refused[index] = (
            f"column {was.name!r} of {step!r} is {was.type} in what was written so far "
            f"(first {seen}) and {type(value).__name__} here ({_shown(table, index, was.name)})"
            "; give all one type (map(..., schema=...) declares it), or write them with ms.Jsonl, "
            "which takes any"
        )
        values[index] = None
    return _going_with(pa.array(values), was.type, widens)


def _going_with(column: pa.Array, kind: pa.DataType, widens: bool = True) -> pa.Array | None:
    """A plain column as one of files of this type, if no value of it changes but for 1 to 1.0."""
    if holds_mixed(column.type) or differ({column.type, kind}):
        return None
    if wider(column.type, kind) != kind:  # the files before have narrower numbers
        if widens:
            return None if _shapeless(column.type, widens) else column
        if not pa.types.is_integer(kind):
            return None  # only whole numbers say by themselves when they lose something
    try:
        return column.cast(kind)
    except REFUSED:
        return None


def _shown(table: pa.Table, index: int, name: str) -> str:
    """A value and the key of its row, for people."""
    (row,) = table.slice(index, 1).to_pylist()
    value = as_json(row.pop(name))[:_SHOWN]
    key = as_json(as_key(row["key"]) if "key" in row else row)[:_SHOWN]
    return f"{value} of key {key}" if "key" in row else f"{value} in {key}"


# -- what all tasks of a batch wrote ---------------------------------------------------------------


def packed(schema: pa.Schema) -> str:
    """A schema as text for the manifest."""
    return base64.b64encode(bytes(schema.serialize())).decode()


def unpacked(text: str | None) -> pa.Schema:
    """The inverse; of a sink that has written nothing it is empty."""
    return (
        pa.schema([]) if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    )


def agreed(known: dict[str, str], controls: Iterable[Control]) -> tuple[dict[str, str], bool]:
    """What sinks have written with this batch, and whether its tasks agreed on that.

    Where they did not, the column is to be JSON text, and the batch to be run again.
    """
    written = dict(known)
    agree = True
    for control in sorted(controls, key=lambda one: (one.level, one.part)):
        for sink, text in control.written.items():
            before = unpacked(known.get(sink)).names
            fields = {field.name: field for field in unpacked(written.get(sink))}
            for field in unpacked(text):
                other = fields.setdefault(field.name, field)
                apart = other.type != field.type
                if apart and (first := _before(other, field)) is not None and _differ(other, field):
                    fields[field.name], agree = first, False
                elif _is_json(other) != _is_json(field) or (apart and _differ(other, field)):
                    fields[field.name] = pa.field(field.name, pa.string(), metadata={_JSON: b"1"})
                    agree = False
                elif apart and field.name not in before:  # 1 here, 2.5 there
                    fields[field.name] = other.with_type(wider(other.type, field.type))
                    agree = False
            written[sink] = packed(pa.schema(list(fields.values())))
    return written, agree


def _before(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """That of two columns whose first record comes first, if records decide."""
    mine, others = ((field.metadata or {}).get(_PLACE) for field in (one, other))
    if mine is None or others is None:
        return None
    return one if json.loads(mine) <= json.loads(others) else other


def _differ(one: pa.Field, other: pa.Field) -> bool:
    """Whether no plain column can hold the values of both."""
    large = any(_LARGE in (field.metadata or {}) for field in (one, other))
    fractions = pa.types.is_floating(one.type) or pa.types.is_floating(other.type)
    return differ({one.type, other.type}) or (large and fractions)
