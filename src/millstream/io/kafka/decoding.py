"""Raw records to columns: values by their format, keys, times and headers beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from datetime import time as clock
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.io.columns import build, convert, explain
from millstream.io.formats import DEBEZIUM, Format
from millstream.io.kafka import avro, protobuf
from millstream.io.kafka.cluster import Cluster
from millstream.io.kafka.consuming import Block, Stretch, Wanted, read_stretch
from millstream.io.kafka.registry import NotThere, Registry, Schema
from millstream.io.lines import Lines
from millstream.io.records import MAX_RAW, Dead, Parsed, raw_text
from millstream.io.schemas import TIMESTAMP
from millstream.io.textkinds import parse_scanned
from millstream.io.timestamps import Ints

RECORD_TIME = "record_time"  # the column with the time that Kafka has of a record
BYTES = "bytes"
REGISTERED = ("avro", "protobuf")  # values whose schemas a registry has
_UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)
_NO_VALUE = "its value is null (a tombstone), and format={!r} has no such rows"


@dataclass(frozen=True)
class Topics:
    """How records of topics are read: from where, and which columns are not in their values."""

    cluster: Cluster
    key: str | None = None
    headers: tuple[str, ...] = ()
    record_time: bool = False
    patience: float = 60.0
    registry: Registry | None = None
    wanted: Schema | None = None  # the schema that values are read by

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are not in values."""
        key = () if self.key is None else (self.key,)
        return (*key, *self.headers, *((RECORD_TIME,) if self.record_time else ()))


def read_records(fmt: Format, stretch: Stretch) -> Iterator[tuple[Parsed, int]]:
    """The records of a range with their positions, and how many bytes they have."""
    topics = fmt.topics
    assert topics is not None
    used = set(fmt.delivered.names)
    wanted = Wanted(
        topics.key in used,
        topics.record_time and RECORD_TIME in used,
        tuple(name for name in topics.headers if name in used),
        topics.patience,
    )
    for block in read_stretch(topics.cluster, wanted, stretch):
        parsed = decode(fmt, topics, block)
        shift = block.offsets - stretch.base
        parsed.positions = shift[parsed.positions]
        parsed.dead = [replace(one, position=int(shift[one.position])) for one in parsed.dead]
        yield parsed, block.size


def count_records(fmt: Format, stretch: Stretch) -> int:
    """How many records a range has: offsets of transactions and of compacted records are none."""
    if fmt.kind == DEBEZIUM:  # where a tombstone is none
        return sum(parsed.offered for parsed, _ in read_records(fmt, stretch))
    assert fmt.topics is not None
    nothing = Wanted(False, False, (), fmt.topics.patience)
    return sum(len(block.values) for block in read_stretch(fmt.topics.cluster, nothing, stretch))


def decode(fmt: Format, topics: Topics, block: Block) -> Parsed:
    """Records as columns; positions are their numbers in the block."""
    inner = _of_values(fmt, topics)
    parsed = _values(inner, block, topics)
    errors: dict[int, str] = {}
    columns: dict[str, pa.Array] = {}
    rows = parsed.positions
    for name in topics.beside:
        if name in fmt.delivered.names:
            kind = fmt.delivered.field(name).type
            columns[name], bad = _beside(name, kind, topics, block, rows, fmt)
            errors = {**bad, **errors}
    ts = parsed.ts
    if fmt.time == RECORD_TIME and topics.record_time:
        assert block.times is not None
        ts = block.times[rows] * 1000
    elif fmt.time in columns:
        raise AssertionError(f"time={fmt.time!r}")  # refused when the source is described
    arrays = [
        columns[name] if name in columns else parsed.table.column(name)
        for name in fmt.delivered.names
    ]
    table = pa.Table.from_arrays(arrays, schema=fmt.delivered)
    if not errors:
        return Parsed(table, ts, rows, parsed.dead, parsed.offered)
    good = np.ones(len(rows), bool)
    good[list(errors)] = False
    dead = [
        Dead(int(rows[i]), _shown(block.values[int(rows[i])]), why) for i, why in errors.items()
    ]
    dead = sorted([*parsed.dead, *dead], key=lambda one: one.position)
    ts = None if ts is None else ts[good]
    return Parsed(table.filter(pa.array(good)), ts, rows[good], dead, parsed.offered)


def _of_values(fmt: Format, topics: Topics) -> Format:
    """The format of values alone."""
    beside = set(topics.beside)
    return replace(
        fmt,
        schema=pa.schema([field for field in fmt.schema if field.name not in beside]),
        columns=None
        if fmt.columns is None
        else tuple(name for name in fmt.columns if name not in beside),
        time=None if fmt.time in beside else fmt.time,
        topics=None,
    )


def _values(fmt: Format, block: Block, topics: Topics) -> Parsed:
    values = block.values
    if fmt.kind in (BYTES, "text"):
        return _whole(fmt, values)
    numbers = np.arange(len(values), dtype=np.int64)
    missing: list[Dead] = []
    if None in values:
        there = [i for i, value in enumerate(values) if value is not None]
        if fmt.kind != DEBEZIUM:  # where it only says once more that a row is gone
            why = _NO_VALUE.format(fmt.kind)
            missing = [Dead(i, "", why) for i, value in enumerate(values) if value is None]
        values, numbers = [values[i] for i in there], np.array(there, np.int64)
    if fmt.kind in REGISTERED:
        parsed = _registered(fmt, topics, values, numbers)
    else:
        parsed = _lines(fmt, values, numbers)
    if missing:
        parsed.dead = sorted([*parsed.dead, *missing], key=lambda one: one.position)
        parsed.offered += len(missing)
    return parsed


def _lines(fmt: Format, values: list[bytes | None], numbers: Ints) -> Parsed:
    """Values as if each were a line."""
    data = b"\n".join(values)  # type: ignore[arg-type]
    lengths = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    ends = np.cumsum(lengths + 1) - 1
    inside = data.count(b"\n") != max(0, len(values) - 1)
    lines = Lines(data, ends - lengths, ends, numbers, True)
    # A record with a line end in it is one record still, which Arrow's csv reader would not see.
    return parse_scanned(fmt, lines, tuple(fmt.schema.names), careful=inside and fmt.kind == "csv")


def _registered(fmt: Format, topics: Topics, values: list[bytes | None], numbers: Ints) -> Parsed:
    """Values that say with which schema of a registry they were written."""
    assert topics.registry is not None and topics.wanted is not None
    reader = _reader(fmt.kind, topics.registry, topics.wanted)
    rows, at, dead = [], [], []
    for number, value in zip(numbers.tolist(), values, strict=True):
        try:
            rows.append(reader.row(value or b""))
            at.append(number)
        # NotThere is of a number that nobody has: a broken value, or another registry.
        except (ValueError, NotThere) as error:
            dead.append(Dead(number, _shown(value), str(error)))
    shown = dict(zip(numbers.tolist(), values, strict=True))
    try:
        raw = [pa.array([row.get(one.name) for row in rows], one.type) for one in fmt.delivered]
    except _UNFIT:
        rows, wrong = _fitting(fmt.delivered, rows)
        dead += [Dead(at[i], _shown(shown[at[i]]), why) for i, why in wrong.items()]
        at = [number for i, number in enumerate(at) if i not in wrong]
        raw = [pa.array([row[one.name] for row in rows], one.type) for one in fmt.delivered]
    return build(fmt, raw, np.array(at, np.int64), dead, lambda i: _shown(shown[at[i]]))


def _fitting(
    columns: pa.Schema, rows: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows whose values have the types of their columns, and why others have not, by number."""
    fitted = [{one.name: _fitted(row.get(one.name), one.type) for one in columns} for row in rows]
    wrong: dict[int, str] = {}
    for one in columns:
        if _mistake([row[one.name] for row in fitted], one.type) is None:
            continue
        for number, row in enumerate(fitted):
            if (told := _mistake([row[one.name]], one.type)) is not None:
                wrong.setdefault(number, f"column {one.name!r} is not of type {one.type}: {told}")
    return [row for number, row in enumerate(fitted) if number not in wrong], wrong


def _mistake(values: list[Any], kind: pa.DataType) -> str | None:
    """Why values are not of a type."""
    try:
        pa.array(values, kind)
    except _UNFIT as error:
        return " ".join(str(error).split())[:200]
    return None


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """A value with texts for what libraries have classes for: UUIDs, times without a zone."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value.isoformat() if isinstance(value, datetime | clock) else str(value)
    if pa.types.is_map(kind):
        several = value.items() if isinstance(value, dict) else value
        return [(key, _fitted(one, kind.item_type)) for key, one in several]
    if pa.types.is_list(kind):
        return [_fitted(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {one.name: _fitted(value.get(one.name), one.type) for one in kind}
    return value


@lru_cache(maxsize=16)
def _reader(kind: str, registry: Registry, wanted: Schema) -> Any:
    return (avro if kind == "avro" else protobuf).Reader(registry, wanted)


def _whole(fmt: Format, values: list[bytes | None]) -> Parsed:
    """Values that are not taken apart."""
    raw = pa.array(values, pa.binary())
    numbers = np.arange(len(values), dtype=np.int64)
    dead: list[Dead] = []
    if fmt.kind == "text":
        try:
            raw = raw.cast(pa.string())
        except pa.ArrowInvalid:
            good, dead = _decodable(values)
            raw = pa.array([values[i] for i in good], pa.binary()).cast(pa.string())
            numbers = np.array(good, np.int64)
    return build(fmt, [raw], numbers, dead, lambda i: _shown(values[int(numbers[i])]))


def _decodable(values: list[bytes | None]) -> tuple[list[int], list[Dead]]:
    good, dead = [], []
    for i, value in enumerate(values):
        try:
            (value or b"").decode()
            good.append(i)
        except UnicodeDecodeError as error:
            why = f"not UTF-8: {error.reason} at byte {error.start} of the value"
            dead.append(Dead(i, _shown(value), why))
    return good, dead


def _beside(
    name: str, kind: pa.DataType, topics: Topics, block: Block, rows: Ints, fmt: Format
) -> tuple[pa.Array, dict[int, str]]:
    """A column that is not in values, for the records that could be read, and what is wrong."""
    if name == RECORD_TIME and topics.record_time:
        assert block.times is not None
        times = block.times[rows]
        array = pa.array(times * 1000, pa.int64(), mask=times < 0).cast(TIMESTAMP)
        why = "Kafka has no time of this record"
        return array, {int(i): why for i in np.flatnonzero(times < 0)}
    found = block.keys if name == topics.key else block.headers[name]
    raw = [found[i] for i in rows.tolist()]
    what = "key" if name == topics.key else f"header {name!r}"
    if kind == pa.binary():
        return pa.array(raw, kind), {}
    texts, errors = _texts(raw, what)
    array, bad = convert(pa.array(texts, pa.string()), kind, fmt.zone)
    field = pa.field(name, kind)
    for i in np.flatnonzero(bad).tolist():
        errors.setdefault(i, f"the {what}: {explain(field, pa.scalar(texts[i]), fmt.zone)}")
    return array, errors


def _texts(raw: list[bytes | None], what: str) -> tuple[list[str | None], dict[int, str]]:
    texts: list[str | None] = []
    errors: dict[int, str] = {}
    for i, one in enumerate(raw):
        try:
            texts.append(None if one is None else one.decode())
        except UnicodeDecodeError:
            texts.append(None)
            errors[i] = f"the {what} is not UTF-8: {raw_text(one or b'')[:100]!r}"
    return texts, errors


def _shown(value: bytes | None) -> str:
    return raw_text((value or b"")[:MAX_RAW])
