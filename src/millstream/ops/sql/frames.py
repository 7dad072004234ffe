"""What an expression is evaluated on: the columns of a batch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ops.sql.types import (
    TIMESTAMP,
    DataType,
    Datum,
    ExpressionError,
    as_array,
    logical_type,
)


def find_name(wanted: str, names: Sequence[str], what: str = "column") -> str:
    """The name that `wanted` means: the exact one, else the only one that differs by case."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.lower()]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise ConfigError(f"{what} {wanted!r} is ambiguous: {', '.join(map(repr, alike))}")
    raise ConfigError(
        f"unknown {what} {wanted!r}; there are {', '.join(map(repr, names)) or 'none'}"
        + suggestion(wanted, names)
    )


def suggestion(wanted: str, names: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wanted.lower(), by_lower, n=3)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""


class Frame:
    """A batch: its columns as plain arrays of Spark's types, converted once."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._columns: dict[str, Datum] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def stored(self, name: str) -> Datum:
        chunks = self.table.column(find_name(name, self.table.column_names))
        return chunks.chunk(0) if chunks.num_chunks == 1 else _combined(chunks)

    def column(self, name: str) -> Datum:
        if name not in self._columns:
            self._columns[name] = to_logical(self.stored(name))
        return self._columns[name]

    def filter(self, mask: Datum) -> Frame:
        return Frame(self.table.filter(as_array(mask, len(self))))


def _combined(chunks: Any) -> Datum:
    combined = chunks.combine_chunks()
    return pa.concat_arrays(combined.chunks) if hasattr(combined, "chunks") else combined


def to_logical(stored: Datum) -> Datum:
    wanted = logical_type(stored.type)
    if stored.type == wanted:
        return stored
    try:
        # Nanoseconds are cut to Spark's microseconds; everything else must fit.
        return stored.cast(wanted, safe=wanted != TIMESTAMP)
    except pa.ArrowInvalid as error:
        raise ExpressionError(str(error)) from None


TypeOf = Callable[[str], DataType]


def schema_types(schema: pa.Schema) -> TypeOf:
    return lambda name: logical_type(schema.field(find_name(name, schema.names)).type)
