"""Results to records of a topic: keys, values and headers as bytes, made in tasks.

What was staged needs nothing but to be sent, so that sending it again sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError, RunError
from millstream.io.kafka.avro import told_of, writer_of
from millstream.io.kafka.registry import Registry
from millstream.io.writers import json_bytes, json_rows, python_rows, without_key, without_line
from millstream.ops.chunks import flat

OP = "op"
MAX_RECORD = 1_000_000  # bytes, as librdkafka and brokers have it unless they are told otherwise
STAGED = pa.schema(
    [
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("op", pa.string()),
        ("headers", pa.list_(pa.large_binary())),
    ]
)
_DEBEZIUM = {"+": "c", "u": "u", "-": "d"}


@dataclass(frozen=True)
class Encoding:
    """How rows of a sink become records."""

    sink: str
    format: str
    keys: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    changes: str | None = None
    most: int = MAX_RECORD
    registry: Registry | None = None
    subject: str = ""
    given: bool = False  # columns come from a function: any row may lack any of them


@dataclass(frozen=True)
class Encoded:
    """Records of rows, which rows they are of, and why others have none."""

    table: pa.Table
    rows: list[int]
    refused: dict[int, str]


def encode(how: Encoding, table: pa.Table) -> Encoded:
    """Rows as records."""
    for name in dict.fromkeys((*how.keys, *how.headers)):
        if name not in table.column_names:  # no row of these has it
            table = table.append_column(name, pa.nulls(len(table)))
    ops = _operations(how, table)
    keys = _keys(how, table)
    headers = _headers(how, table)
    left = [one for one in table.column_names if one not in how.headers]
    marks = [OP, "revision"] if how.changes is not None else []
    rows = table.select([name for name in left if name not in marks])
    values, refused = _values(how, rows, ops)
    refused |= without_key(how.keys, table) if how.given else {}
    kept = []
    for at, (key, value) in enumerate(zip(keys, values, strict=True)):
        size = len(key or b"") + len(value or b"") + sum(len(one or b"") for one in headers[at])
        if at in refused:
            continue
        if size > how.most:
            refused[at] = (
                f"a record of {size:,} bytes; the limit is {how.most:,} (message.max.bytes in "
                "options=, and max.message.bytes of the topic)"
            )
        elif key is None and how.changes is not None:
            refused[at] = f"its key ({', '.join(how.keys)}) is null: which row would change?"
        else:
            kept.append(at)
    columns = {"key": keys, "value": values, "op": ops, "headers": headers}
    arrays = [
        pa.array([columns[field.name][at] for at in kept], field.type)  # type: ignore[index]
        for field in STAGED
    ]
    return Encoded(pa.Table.from_arrays(arrays, schema=STAGED), kept, refused)


def _operations(how: Encoding, table: pa.Table) -> list[str | None]:
    if OP in table.column_names:
        ops: list[str | None] = flat(table.column(OP)).to_pylist()
        return ops
    return ["+" if how.changes is not None else None] * len(table)


def _keys(how: Encoding, table: pa.Table) -> list[bytes | None]:
    """One column as its text, several as an object of JSON."""
    if not how.keys:
        return [None] * len(table)
    if len(how.keys) == 1:
        return [as_bytes(one) for one in flat(table.column(how.keys[0])).to_pylist()]
    return [json_bytes(row) for row in table.select(list(how.keys)).to_pylist()]


def _headers(how: Encoding, table: pa.Table) -> list[list[bytes | None]]:
    columns = [flat(table.column(name)).to_pylist() for name in how.headers]
    if not columns:
        return [[]] * len(table)
    return [[as_bytes(one) for one in row] for row in zip(*columns, strict=True)]


def as_bytes(value: Any) -> bytes | None:
    """A key or header: texts and bytes as they are, all else as JSON."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
    found = json_bytes(value)
    return found[1:-1] if found.startswith(b'"') else found  # a moment, without quotes


def _values(
    how: Encoding, rows: pa.Table, ops: list[str | None]
) -> tuple[list[bytes | None], dict[int, str]]:
    """The values of records, and why rows have none."""
    if how.format in ("text", "bytes"):
        return _texts(how, rows)
    if how.format != "avro":
        return list(_plainly(how, rows, ops)), {}
    assert how.registry is not None
    try:
        write = writer_of(how.registry, how.subject, rows.schema)
    except (ConfigError, RunError) as error:
        raise RunError(f"sink {how.sink!r}: {error}") from None
    values: list[bytes | None] = []
    refused = {}
    for at, row in enumerate(rows.to_pylist()):
        try:
            values.append(write(row))
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
            values.append(None)
            refused[at] = f"it cannot be written in Avro: {told_of(error)}"
    return values, refused


def _plainly(how: Encoding, rows: pa.Table, ops: list[str | None]) -> Iterator[bytes | None]:
    if how.changes != "debezium":
        yield from json_rows(rows)
        return
    for row, op in zip(rows.to_pylist(), ops, strict=True):
        gone = op == "-"
        envelope = {"before": row if gone else None, "after": None if gone else row}
        yield json_bytes({**envelope, "op": _DEBEZIUM[op or "+"]})


def _texts(how: Encoding, rows: pa.Table) -> tuple[list[bytes | None], dict[int, str]]:
    """The only value of each row that is neither key nor header."""
    names = [name for name in rows.column_names if name not in how.keys]
    rows = rows.select(names or rows.column_names)
    refused = without_line(rows, f"format={how.format!r} of Kafka")
    values = [next((one for one in row if one is not None), None) for row in python_rows(rows)]
    found = [None if at in refused else as_bytes(one) for at, one in enumerate(values)]
    return found, refused


def newest(table: pa.Table) -> pa.Table:
    """What is so after the changes of a batch, per key: the newest value, or null if it is gone.

    A row that is taken back counts only if it is the one that came last under its key.
    """
    keys, values, ops = (table.column(name).to_pylist() for name in ("key", "value", "op"))
    last: dict[bytes, int] = {}
    for at, (key, value, op) in enumerate(zip(keys, values, ops, strict=True)):
        before = last.get(key)
        if op != "-" or before is None or ops[before] == "-" or values[before] == value:
            last.pop(key, None)
            last[key] = at
    rows = list(last.values())
    found = [None if ops[at] == "-" else values[at] for at in rows]
    taken = table.take(pa.array(rows, pa.int64()))
    at = taken.schema.get_field_index("value")
    return taken.set_column(at, STAGED.field("value"), pa.array(found, pa.large_binary()))
