"""Writing results: whole files under temporary names, published under their final ones.

A task stages its file inside the sink's own directory (a hidden folder readers skip), so that
publishing is one atomic step on one file system, and can be repeated after a crash. It never
replaces a file: what stands under the final name is ours already, or somebody else's.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from millstream.errors import CheckpointError, RunError
from millstream.ops.codec import python_values
from millstream.ops.mixed import holds_mixed, in_order
from millstream.state.manifests import STAGING, Place
from millstream.state.storage import Storage


def stage_file(
    directory: Storage, name: str, suffix: str, table: pa.Table, *, known: bool = True
) -> tuple[str, tuple[int, int]]:
    """Write a table whole and durably; gives its name, and its size and checksum.

    `known`: its columns are those of every batch; else JSON has only what a row has.
    """
    data: pa.Buffer | bytes
    if suffix == "parquet":
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
    elif suffix == "jsonl":
        data = json_lines(table, nulls=known)
    else:
        data = {"txt": text_lines, "csv": csv_lines}[suffix](table)
    return stage_data(directory, f"{name}.{suffix}", data)


def stage_data(
    directory: Storage, name: str, data: pa.Buffer | bytes
) -> tuple[str, tuple[int, int]]:
    """Write the whole content of a file durably, under a name that no pattern of readers finds.

    DuckDB looks into hidden folders, so that `out/*/*.parquet` would have found the rows of batches
    that are not committed.
    """
    staged = f"{name}.staged"
    directory.within(STAGING).put(staged, data)
    return staged, (len(data), zlib.crc32(data))


def parquet_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Who writes a Parquet file as this project does."""
    return pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1)


_ATTEMPT = re.compile(r"\.?[0-9][^-]*-")  # also one that was not written to its end
_MOMENT = pa.timestamp("us", "UTC")
_CHOOSE = "choose one with select()"
_AS_TEXT = "make a text of it, like select('CAST(... AS STRING) AS line')"
_json = msgspec.json.Encoder(enc_hook=str)


def json_lines(table: pa.Table, *, nulls: bool = True) -> bytes:
    """A table as JSON lines; times in ISO form, NaN and infinities as null.

    Without `nulls` a row has only columns in which it has a value.
    """
    return b"".join(row + b"\n" for row in json_rows(table, nulls=nulls))


def json_rows(table: pa.Table, *, nulls: bool = True) -> Iterator[bytes]:
    """The same row by row."""
    rows = with_texts_of_times(table).to_pylist()
    if not nulls:
        rows = [{n: value for n, value in row.items() if value is not None} for row in rows]
    if any(holds_mixed(kind) for kind in table.schema.types):
        rows = map(_in_json, rows)
    return map(_encoded, rows)


def with_texts_of_times(table: pa.Table) -> pa.Table:
    """Moments as the texts that JSON has, made for a column at once and not one by one."""
    for at, field in enumerate(table.schema):
        if field.type == _MOMENT:
            table = table.set_column(at, field.name, _texts_of(table.column(at)))
    return table


def _texts_of(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """ISO-8601 with as many places as a moment has: none, or six."""
    whole = pc.strftime(moments.cast(pa.timestamp("s", "UTC"), safe=False), "%Y-%m-%dT%H:%M:%SZ")
    exact = pc.equal(pc.microsecond(moments), 0)
    exact = pc.and_(exact, pc.equal(pc.millisecond(moments), 0))
    if pc.all(exact).as_py() is not False:
        return whole
    return pc.if_else(exact, whole, pc.strftime(moments, "%Y-%m-%dT%H:%M:%SZ"))


def csv_lines(table: pa.Table) -> bytes:
    """A table as comma-separated values under a line of names; what has parts is JSON."""
    for at, kind in enumerate(table.schema):
        if not _is_plain(kind.type):
            written = _base64 if pa.types.is_binary(kind.type) else json_text
            column = table.column(at).to_pylist()
            texts = [None if value is None else written(value) for value in column]
            table = table.set_column(at, kind.name, pa.array(texts, pa.string()))
    if table.num_columns == 1 and table.column(0).null_count:
        # A line that holds nothing is no record to most readers: null is written as "".
        table = table.set_column(0, table.column_names[0], _without_nulls(table.column(0)))
    out = pa.BufferOutputStream()
    csv.write_csv(table, out)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _without_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.cast(column, pa.string()), "")


def _is_plain(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(kind)
        or holds_mixed(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_duration(kind)
    )


def text_lines(table: pa.Table) -> bytes:
    """The only value of each row (see `without_line`), one a line; null is an empty line."""
    if "op" in table.column_names:
        raise RunError(
            "results that were written before have changed, and plain lines cannot be taken back; "
            "start anew, with another checkpoint and an empty directory"
        )
    lines = (next((value for value in row if value is not None), b"") for row in python_rows(table))
    return b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in lines)


def without_line(table: pa.Table, who: str = "ms.Text") -> dict[int, str]:
    """The rows that are no text: their columns come from a function. And why."""
    wrong: dict[int, str] = {}
    for at, row in enumerate(python_rows(table)):
        found = [
            (name, one)
            for name, one in zip(table.column_names, row, strict=True)
            if one is not None
        ]
        if len(found) > 1:
            names = ", ".join(name for name, _ in found)
            wrong[at] = f"{who} writes one column, and there are {len(found)} ({names}); {_CHOOSE}"
        elif found and not isinstance(found[0][1], str | bytes):
            wrong[at] = (
                f"{who} writes texts or bytes, and {found[0][0]!r} has {found[0][1]!r:.80}; "
                f"{_AS_TEXT}"
            )
    return wrong


def with_breaks(table: pa.Table) -> dict[int, str]:
    """The rows that would be read back as several lines, and why."""
    return {
        at: (
            f"ms.Text writes a line for each value, and {value!r:.80} has a line break; take it "
            "out with map(), or write ms.Jsonl, which keeps it"
        )
        for at, row in enumerate(python_rows(table))
        for value in row
        if (isinstance(value, str) and "\n" in value)
        or (isinstance(value, bytes) and b"\n" in value)
    }


def with_same_names(table: pa.Table) -> dict[int, str]:
    """The rows with names that are one and the same in JSON, as 1 and "1" in a dict; and why."""
    names = [field.name for field in table.schema if holds_mixed(field.type)]
    return {
        at: (
            f"names are texts in JSON, and {found!r:.80} in {name!r} has several that are the same "
            "text; give them others"
        )
        for at, row in enumerate(python_rows(table.select(names)))
        for name, value in zip(names, row, strict=True)
        if (found := _merged(value)) is not None
    }


def _merged(value: Any) -> dict[Any, Any] | None:
    """The first dict in a value that loses names in JSON."""
    if isinstance(value, dict):
        if len({str(name) for name in value}) < len(value):
            return value
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    return next((found for one in value if (found := _merged(one)) is not None), None)


def without_key(key: Sequence[str], table: pa.Table) -> dict[int, str]:
    """The rows of a function that lack a part of the key: its name may not be the one of key=."""
    found: dict[int, str] = {}
    for name in key:
        why = (
            f"it has no {name!r}, which key= names; where a null is meant, say so: map(..., "
            "schema=...) declares the columns"
        )
        there = name in table.column_names
        lacking = table.column(name).is_null().to_numpy() if there else np.ones(len(table), bool)
        found |= dict.fromkeys(np.flatnonzero(lacking).tolist(), why)
    return found


def python_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The values of each row."""
    return zip(*(python_values(column) for column in table.columns), strict=True)


def json_text(value: Any) -> str:
    """One value as JSON."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    """The same as bytes."""
    return _encoded(_in_json(value))


def _encoded(value: Any) -> bytes:
    try:
        return _json.encode(value)
    except TypeError:  # a dict whose keys JSON does not have
        return _json.encode(_in_json(value))


def _in_json(value: Any) -> Any:
    """The same with text for every key of a dict, and sets as lists in one order."""
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): _in_json(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=in_order)
    if isinstance(value, list | tuple):
        return [_in_json(one) for one in value]
    return value


def check_staged(place: Place, size: int, checksum: int) -> None:
    """Refuse to publish a file that is not what its batch wrote."""
    for what, name in (("staged", place.staged), ("published", place.final)):
        if name is not None and place.storage.exists(name):
            if _same(place, name, size, checksum):
                return
            raise RunError(
                f"the {what} file {place.storage.where(name)} of a committed batch is damaged and "
                "was not published; `millstream doctor` tells how to go back to the batch before"
            )


def publish_file(place: Place, size: int, checksum: int) -> None:
    """Give a staged file its final name; a second time does nothing."""
    assert place.final is not None
    storage, staged = place.storage, place.staged
    final = storage.where(place.final)
    if not storage.exists(staged):
        if not storage.exists(place.final):
            raise RunError(
                f"neither the staged file {storage.where(staged)} nor {final} exists: somebody "
                "removed committed output; restore it, or start with a new checkpoint and an empty "
                "output directory"
            )
        return
    inner = storage
    for folder in place.final.split("/")[:-1]:
        inner = inner.within(folder)
        inner.create(private=False)
    try:
        storage.publish(staged, place.final)
    except FileExistsError as error:
        if not _same(place, place.final, size, checksum):
            raise RunError(
                f"{final} is there already and was not written by this flow; it is left as it is "
                "and nothing is lost: move it away and start again"
            ) from error
        storage.delete(staged)


def _same(place: Place, name: str, size: int, checksum: int) -> bool:
    """Whether a file is what a batch wrote."""
    try:
        data = place.storage.read(name)
    except CheckpointError:
        return False
    return (len(data), zlib.crc32(data)) == (size, checksum)


def discard_staged(directory: Storage, batch: int, keep: Collection[str] = ()) -> None:
    """Remove staged files that no committed batch needs; `batch` was the last that was committed.

    Where another run may stage files of later batches those are left alone.
    keep: files that committed batches named and that still wait.
    """
    staging = directory.within(STAGING)
    for name in staging.names():
        if name in keep or not _ATTEMPT.match(name):
            continue
        if not (directory.shared and int(name.partition("-")[0]) > batch):
            staging.delete(name)
