"""A chunk: some records of one source, in columns, with their time and place.

Chunks are what travels between the operators inside one task. `ts` (microseconds since the epoch,
UTC) is the event time and never changes on the way; `(src, pos)` says where a record comes from, so
that order and tie-breaks do not depend on how the input was split or batched.

A chunk may hold changes: every row has a weight, +1 if it is there from now on and -1 if it was
there and is so no more. Steps without state work on both alike, so that what was kept, left out or
made of a row when it came is so again when it goes. What readers see of that is made where results
leave (`ops/emitting/edges.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.mixed import exact_columns, exactly, together

Floats = np.ndarray[Any, np.dtype[np.float64]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
UInt64 = np.ndarray[Any, np.dtype[np.uint64]]
Objects = np.ndarray[Any, np.dtype[np.object_]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# A position is (file, offset in it) in one integer: 2^23 files of 2^40 bytes (or rows) each.
ROW = "row."  # before the names of a row's own columns, where others stand beside them
OFFSET_BITS = 40


@dataclass(frozen=True)
class Chunk:
    """Records of one source: `table` holds the user's columns, the rest who and when they are."""

    table: pa.Table
    ts: Int64
    pos: Int64
    src: int
    weight: Int64 | None = None  # 1 for rows that are added, -1 for rows that are taken back
    revision: Int64 | None = None  # of a change: the emission that gave the row
    change: Int64 | None = None  # the emission that adds or takes it back, if a batch has several
    window: Int64 | None = None  # of a result: which window of its key it is of
    order: Objects | None = None  # of a result that is to be sorted: its packed key
    due: Int64 | None = None  # when each record counts; after its time if it is late
    moves: bool = False  # changed results are other ones: none takes the place of another

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, index: np.ndarray[Any, Any]) -> Chunk:
        """The records at these indices (or under this boolean mask), in this order."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        if len(index) == len(self.ts) and (len(index) == 0 or bool((np.diff(index) == 1).all())):
            return self
        return self.at(self.table.take(pa.array(index)), index)

    def with_table(self, table: pa.Table) -> Chunk:
        """The same records with other columns."""
        return replace(self, table=table)

    def at(self, table: pa.Table, index: np.ndarray[Any, Any]) -> Chunk:
        """Other rows, each made from the record at an index of this chunk."""
        marks = (self.weight, self.revision, self.change, self.window, self.order, self.due)
        taken: list[Any] = [None if mark is None else mark[index] for mark in marks]
        taken.append(self.moves)
        return Chunk(table, self.ts[index], self.pos[index], self.src, *taken)

    def mark(self, name: str) -> Int64:
        """What `revision`, `change` or `window` says of every record; zero if it says nothing."""
        found: Int64 | None = getattr(self, name)
        return np.zeros(len(self), np.int64) if found is None else found

    def weights(self) -> Int64:
        """Whether every record is added (1) or taken back (-1)."""
        return np.ones(len(self), np.int64) if self.weight is None else self.weight

    def sides(self) -> list[Chunk]:
        """Rows that are taken back, and rows that are added: each side of a change by itself."""
        if self.weight is None or bool((self.weight == self.weight[:1]).all()):
            return [self]
        return [self.take(self.weight < 0), self.take(self.weight > 0)]

    @property
    def takes_back(self) -> bool:
        """Whether its rows (all of them, on one side of a change) are taken back."""
        return self.weight is not None and len(self) > 0 and int(self.weight[0]) < 0

    def late(self) -> Mask:
        """The records that were out of order by more than their source allows."""
        return np.zeros(len(self), np.bool_) if self.due is None else self.due > self.ts

    def column(self, name: str) -> pa.Array:
        """One column as a plain array; all null if no record of this chunk has it."""
        index = self.table.schema.get_field_index(name)
        if index < 0:
            return pa.nulls(len(self))
        return flat(self.table.column(index))


def placed(chunk: Chunk) -> pa.Table:
    """Records with their time and place beside them, on the way to the driver."""
    table = chunk.table.rename_columns([f"{ROW}{name}" for name in chunk.table.column_names])
    return (
        table.append_column("ts", pa.array(chunk.ts))
        .append_column("src", pa.array(np.full(len(chunk), chunk.src, np.int64)))
        .append_column("pos", pa.array(chunk.pos))
    )


def in_place(table: pa.Table) -> pa.Table:
    """The records of `placed` in the order of time and place, without these."""
    order = [(name, "ascending") for name in ("ts", "src", "pos")]
    return own_columns(table.take(pc.sort_indices(table, sort_keys=order)))


def own_columns(rows: pa.Table, prefix: str = ROW) -> pa.Table:
    """The own columns of rows that have others beside them, under their own names."""
    names = [name for name in rows.column_names if name.startswith(prefix)]
    return rows.select(names).rename_columns([name.removeprefix(prefix) for name in names])


def marked(marks: dict[str, Any], rows: pa.Table, kept: dict[str, Any]) -> pa.Table:
    """Marks and columns of rows under their names in state; what is exact in the rows stays so."""
    exact = {f"{ROW}{name}" for name in exact_columns(rows)}
    return exactly(marks | kept, exact & kept.keys())


def flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A chunked array as one plain array (a dictionary is decoded)."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # combine_chunks keeps it chunked when empty
            values = values.chunk(0) if values.num_chunks else pa.array([], type=values.type)
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    return values


def numbers(rows: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """A column as a plain array of NumPy."""
    return np.asarray(flat(rows.column(name)))


def all_but(rows: int, some: Iterable[int]) -> Mask:
    """Which of so many rows are none of some."""
    kept = np.ones(rows, np.bool_)
    kept[list(some)] = False
    return kept


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    """The same rows with other values in a column they have."""
    return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))


def blanked(column: pa.Array, blank: Mask) -> pa.Array:
    """A column with null in some rows."""
    return column.take(pa.array(np.arange(len(column)), mask=blank))


def begins(*columns: np.ndarray[Any, Any]) -> Mask:
    """Where others begin, in columns in which equal rows stand together."""
    found = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
    return found


def ends(*columns: np.ndarray[Any, Any]) -> Mask:
    """The last of those that are equal."""
    return np.append(begins(*columns)[1:], np.ones(min(1, len(columns[0])), np.bool_))


def encode_block(table: pa.Table, compression: str | None = None) -> bytes:
    """One table as an Arrow IPC stream: the unit that travels between stages.

    compression: worth its time where it travels between machines; whoever decodes it sees it.
    """
    out = pa.BufferOutputStream()
    how = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=how) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def decode_block(block: bytes) -> pa.Table:
    """The inverse of `encode_block`, without copying."""
    return pa.ipc.open_stream(pa.py_buffer(block)).read_all()


def concat(tables: list[pa.Table]) -> pa.Table:
    """Tables one below the other; types are widened where batches inferred different ones."""
    if len(tables) == 1:
        return tables[0]
    if all(table.schema.equals(tables[0].schema) for table in tables[1:]):
        return pa.concat_tables(tables).combine_chunks()
    return together(tables).combine_chunks()
