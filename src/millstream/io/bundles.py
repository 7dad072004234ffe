"""Small Parquet files of committed batches, written anew as larger ones. This runs in tasks.

A file of another type of column than those before it begins a new file: no value is changed.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import RunError
from millstream.io.writers import parquet_writer, stage_data
from millstream.ops.mixed import REFUSED
from millstream.state.manifests import Waiting, waits_at
from millstream.state.storage import Storage, open_storage

_LEVEL = 9000  # in names: after the files of tasks, whose levels are exchanges
_GROUP_BYTES = 64 << 20  # of a row group, in memory
_GROUP_ROWS = 1 << 20


@dataclass(frozen=True)
class Order:
    """What is to be put together for which batch; `number` tells the orders of a batch apart."""

    directory: str
    batch: int
    number: int
    files: tuple[Waiting, ...]


@dataclass(frozen=True)
class Made:
    """A larger file, staged, with the name it may be published under."""

    staged: str
    final: str
    rows: int
    size: int
    checksum: int


def put_together(orders: Iterable[Order]) -> list[list[Made]]:
    """Write the files of every order as one, or as few as their columns permit."""
    return [list(_made(order)) for order in orders]


def _made(order: Order) -> Iterator[Made]:
    directory = open_storage(order.directory)
    for part, (schema, files) in enumerate(_alike(directory, order.files)):
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, schema) as writer:
            for table in _row_groups(directory, files, schema):
                writer.write_table(table, row_group_size=_GROUP_ROWS)
        stem = f"{order.batch:08d}-{_LEVEL}-{order.number:04d}{part:03d}"
        name = f"{stem}-{secrets.token_hex(8)}.parquet"
        staged, check = stage_data(directory, name, sink.getvalue())
        yield Made(staged, f"part-{stem}.parquet", sum(one.rows for one in files), *check)


def _alike(
    directory: Storage, files: Iterable[Waiting]
) -> Iterator[tuple[pa.Schema, list[Waiting]]]:
    """Files in order, in runs whose columns go together without any value being another."""
    schema: pa.Schema | None = None
    run: list[Waiting] = []
    for file in files:
        found = _opened(directory, file).schema_arrow
        try:
            joined = found if schema is None else pa.unify_schemas([schema, found])
        except REFUSED:
            assert schema is not None
            yield schema, run
            joined, run = found, []
        schema = joined
        run.append(file)
    if schema is not None:
        yield schema, run


def _row_groups(
    directory: Storage, files: Iterable[Waiting], schema: pa.Schema
) -> Iterator[pa.Table]:
    tables: list[pa.Table] = []
    for file in files:
        tables.append(_fitted(_opened(directory, file).read(), schema))
        if sum(one.nbytes for one in tables) > _GROUP_BYTES:
            yield pa.concat_tables(tables).combine_chunks()
            tables = []
    if tables:
        yield pa.concat_tables(tables).combine_chunks()


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with all columns of a schema: those it lacks, and those without a value, are null."""
    columns = [
        table.column(one.name).cast(one.type)
        if one.name in table.column_names
        else pa.nulls(len(table), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def _opened(directory: Storage, file: Waiting) -> pq.ParquetFile:
    """A file that waits; refused if it is not what its batch wrote."""
    name = waits_at(file)
    try:
        data = directory.map(name)
    except FileNotFoundError:
        raise RunError(f"{_told(directory, name, file)} is gone; restore it") from None
    if (data.size, zlib.crc32(data)) != (file.size, file.checksum):
        raise RunError(
            f"{_told(directory, name, file)} is damaged; restore it, or let `millstream doctor` "
            "tell how to go back to the batch before it"
        )
    return pq.ParquetFile(pa.BufferReader(data))


def _told(directory: Storage, name: str, file: Waiting) -> str:
    return (
        f"the file {directory.where(name)} with {file.rows} committed results, which waited to "
        "be put together with others (target_size),"
    )
