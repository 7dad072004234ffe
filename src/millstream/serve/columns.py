"""Slates as columns: one per top-level field, whatever the slates hold.

Shards are turned into columns one after the other, so that not all slates are Python objects at
the same time. A field gets a type if all its values fit into one; else its values are JSON texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa

from millstream.serve.telling import to_json

WHOLE = "slate"  # the column of slates that are no dicts
_TIME = pa.timestamp("us", "UTC")
_NUMBERS = {pa.int64(), pa.float64()}
_MOST_FIELDS = 64  # a dict with more is a map by nature, not a record
_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def to_table(tables: Iterable[pa.Table], decode: Callable[[bytes], Any]) -> pa.Table:
    """Stored rows (key, plain, ts, slate) as a table: key, one column per field, ts."""
    stored = [table for table in tables if len(table)]
    pieces = [_fields_of(table, decode) for table in stored]
    names = list(dict.fromkeys(name for piece in pieces for name in piece))
    columns: dict[str, pa.ChunkedArray] = {"key": _keys(stored)}
    taken = {"key", "ts"}
    for name in names:
        lengths = [len(table) for table in stored]
        chunks = [
            piece.get(name, pa.nulls(length)) for piece, length in zip(pieces, lengths, strict=True)
        ]
        column = _joined(chunks)
        if column is None:  # all of it as JSON
            column = pa.chunked_array([_json_of(table, name, decode) for table in stored])
        shown = name
        while shown in taken:
            shown = f"slate.{shown}"
        taken.add(shown)
        columns[shown] = column
    times = [table.column("ts").combine_chunks().cast(_TIME) for table in stored]
    columns["ts"] = pa.chunked_array(times, _TIME)
    return pa.table(columns)


def _fields_of(table: pa.Table, decode: Callable[[bytes], Any]) -> dict[str, pa.Array]:
    values: dict[str, list[Any]] = {}
    for row, slate in enumerate(_decoded(table, decode)):
        for name, value in _record(slate).items():
            column = values.setdefault(name, [])
            column.extend([None] * (row - len(column)))
            column.append(value)
    for column in values.values():
        column.extend([None] * (len(table) - len(column)))
    return {name: _array(column) for name, column in values.items()}


def _decoded(table: pa.Table, decode: Callable[[bytes], Any]) -> Iterable[Any]:
    return (decode(data) for data in table.column("slate").to_pylist())


def _record(slate: Any) -> dict[str, Any]:
    if not isinstance(slate, dict):
        return {WHOLE: slate}
    return {name if isinstance(name, str) else str(name): v for name, v in slate.items()}


def _array(values: list[Any]) -> pa.Array:
    """A typed column if the values allow one, else JSON texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and kinds != {int, float}:
        return _json_texts(values)
    try:
        found = pa.array(values)
    except _MISFITS:
        return _json_texts(values)
    return found if _is_tabular(found.type) else _json_texts(values)


def _json_texts(values: list[Any]) -> pa.Array:
    texts = [None if value is None else to_json(value).decode() for value in values]
    return pa.array(texts, pa.string())


def _json_of(table: pa.Table, name: str, decode: Callable[[bytes], Any]) -> pa.Array:
    return _json_texts([_record(slate).get(name) for slate in _decoded(table, decode)])


def _is_tabular(kind: pa.DataType, depth: int = 0) -> bool:
    """Whether other programs can take a type: no field without a type, no struct like a map."""
    if pa.types.is_null(kind):
        return depth == 0
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        small = 0 < len(fields) <= _MOST_FIELDS
        return small and all(_is_tabular(field.type, depth + 1) for field in fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_tabular(kind.value_type, depth + 1)
    return True


def _joined(chunks: list[pa.Array]) -> pa.ChunkedArray | None:
    """The pieces of a column with one type for all; None if there is none that changes nothing."""
    kinds = {chunk.type for chunk in chunks if chunk.null_count < len(chunk)}
    if len(kinds) > 1 and not (kinds == _NUMBERS or all(map(pa.types.is_struct, kinds))):
        return None
    kind = pa.string() if not kinds else next(iter(kinds))
    try:
        if len(kinds) > 1:
            schemas = [pa.schema({"x": one}) for one in kinds]
            kind = pa.unify_schemas(schemas, promote_options="permissive").field("x").type
        return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)
    except _MISFITS:
        return None


def _keys(tables: list[pa.Table]) -> pa.ChunkedArray:
    """Keys with the type they have, if all have the same; else as text."""
    texts = [table.column("key").combine_chunks().cast(pa.string()) for table in tables]
    plain = [table.column("plain").combine_chunks() for table in tables]
    if not any(chunk.true_count for chunk in plain):
        chunks = [
            _array([msgspec.json.decode(text) for text in chunk.to_pylist()]) for chunk in texts
        ]
        kinds = {chunk.type for chunk in chunks}
        if len(kinds) == 1 and not pa.types.is_nested(chunks[0].type):
            return pa.chunked_array(chunks)
    return pa.chunked_array(texts, pa.string())
