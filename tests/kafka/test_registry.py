"""Avro and Protobuf with a schema registry: columns, evolution, poison, and Avro written."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass

import millstream as ms
from millstream.errors import ConfigError
from millstream.run.planning import plan_flow
from millstream.testing import run_in_process
from tests.kafka.registering import Registry
from tests.kafka.test_source import Reading

AT = datetime(2026, 11, 17, 12, 0, 0, 5000, UTC)
FIELDS: list[dict[str, Any]] = [
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "k", "type": ["null", "string"], "default": None},
    {"name": "v", "type": "int"},
]
MORE: list[dict[str, Any]] = [
    {
        "name": "price",
        "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        "default": None,
    },
    {"name": "day", "type": [{"type": "int", "logicalType": "date"}, "null"], "default": 0},
    {
        "name": "side",
        "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"], "default": "BUY"},
        "default": "BUY",
    },
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {
        "name": "at",
        "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]},
        "default": {"x": 0.5},
    },
    {"name": "sizes", "type": {"type": "map", "values": "long"}, "default": {}},
]


def record(fields: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "record", "name": "Trade", "namespace": "x", "fields": fields})


def avro(schema: str, number: int, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), row)
    return struct.pack(">bI", 0, number) + out.getvalue()


@pytest.fixture
def registry() -> Iterator[Registry]:
    one = Registry()
    yield one
    one.close()


def reading(topics: Any, place: Path, topic: str, registry: Registry, **options: Any) -> Reading:
    given = {"format": "avro", "registry": registry.url, **options}
    return Reading(topics, place, topic=topic, schema=None, **given)


def test_avro_of_every_type_and_of_older_schemas(
    topics: Any, tmp_path: Path, registry: Registry
) -> None:
    topic = topics.make()
    subject = f"{topic}-value"
    old, new = record(FIELDS), record([*FIELDS[:2], {"name": "v", "type": "long"}, *MORE])
    first = registry.add(subject, old)
    topics.send(topic, [avro(old, first, {"ts": AT, "k": "a", "v": 1})])
    source = reading(topics, tmp_path / "one", topic, registry)
    assert source.rows() == [{"ts": AT, "k": "a", "v": 1}]
    second = registry.add(subject, new)
    full = {
        "ts": AT,
        "k": None,
        "v": 2**40,
        "price": Decimal("1.25"),
        "day": date(2026, 11, 17),
        "side": "SELL",
        "tags": ["x", "ü"],
        "at": {"x": 1.5},
        "sizes": {"m": 3},
    }
    topics.send(topic, [avro(new, second, full)])
    shown = {**full, "sizes": [("m", 3)]}
    defaults = {
        "price": None,
        "day": date(1970, 1, 1),
        "side": "BUY",
        "tags": [],
        "at": {"x": 0.5},
        "sizes": [],
    }
    whole = reading(topics, tmp_path / "two", topic, registry)  # columns of the newest schema
    assert whole.rows() == [{"ts": AT, "k": "a", "v": 1, **defaults}, shown]
    again = reading(topics, tmp_path / "one", topic, registry)  # goes on with more columns
    assert again.rows() == [shown]


def test_avro_that_means_something_else_or_nothing_is_a_dead_letter(
    topics: Any, tmp_path: Path, registry: Registry
) -> None:
    topic = topics.make()
    schema = record(FIELDS)
    odd = registry.add("other", record([*FIELDS[:2], {"name": "v", "type": "string"}]))
    text = json.loads(record([*FIELDS[:2], {"name": "v", "type": "string"}]))
    number = registry.add(f"{topic}-value", schema)
    good = avro(schema, number, {"ts": AT, "k": "a", "v": 1})
    poison = [
        b"",
        b"{}",
        good[:-1],
        good + b"x",
        struct.pack(">bI", 0, 999) + good[5:],
        avro(json.dumps(text), odd, {"ts": AT, "k": "a", "v": "1"}),
        None,
    ]
    for one in poison:
        topics.send(topic, [good, one])
    source = reading(topics, tmp_path, topic, registry)
    assert [row["v"] for row in source.rows()] == [1] * 7
    assert source.ledger == {"offered": 14, "aggregated": 7, "dead": 7}
    errors = [one["error"] for one in source.dead]
    assert [one["offset"] for one in source.dead] == [1, 3, 5, 7, 9, 11, 13]
    assert "begin with the number of a schema" in errors[0] and "bytes follow" in errors[3]
    assert "Schema not found" in errors[4] and "its meaning has changed" in errors[5]
    assert registry.asked.count("/schemas/ids/1") <= 1  # each schema is asked for once


def test_protobuf_by_field_numbers(topics: Any, tmp_path: Path, registry: Registry) -> None:
    def described(*fields: tuple[str, int, int, str | None, bool]) -> Any:
        file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
        file.dependency.append("google/protobuf/timestamp.proto")
        message = file.message_type.add(name="Trade")
        for name, number, kind, of, repeated in fields:
            one = message.field.add(name=name, number=number, type=kind)  # type: ignore[arg-type]
            one.label = 3 if repeated else 1  # type: ignore[assignment]
            if of:
                one.type_name = of
        return file

    stamp = ("ts", 1, 11, ".google.protobuf.Timestamp", False)
    old = described(stamp, ("k", 2, 9, None, False), ("v", 3, 3, None, False))
    new = described(
        stamp,
        ("k", 2, 9, None, False),
        ("v", 3, 3, None, False),
        ("tags", 4, 9, None, True),
        ("data", 5, 12, None, False),
        ("big", 6, 4, None, False),
    )
    odd = described(stamp, ("k", 2, 9, None, False), ("weight", 3, 1, None, False))

    def message(file: Any, number: int, indexes: bytes = b"\0", **values: Any) -> bytes:
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.AddSerializedFile(file.SerializeToString())
        one = GetMessageClass(pool.FindMessageTypeByName("p.Trade"))(**values)
        one.ts.FromDatetime(AT)
        return struct.pack(">bI", 0, number) + indexes + bytes(one.SerializeToString())

    topic = topics.make()
    numbers = [
        registry.add(
            f"{topic}-value" if file is not odd else "other",
            f"syntax {n}",
            "PROTOBUF",
            base64.b64encode(file.SerializeToString()).decode(),
        )
        for n, file in enumerate((old, odd, new))
    ]
    first, third, second = numbers
    topics.send(
        topic,
        [
            message(old, first, k="a", v=1),
            message(new, second, b"\x02\0", k="b", v=2, tags=["x"], data=b"\xff", big=2**64 - 1),
            message(odd, third, k="c", weight=1.5),
            struct.pack(">bI", 0, second) + b"\0\xff\xff\xff",
            struct.pack(">bI", 0, second) + b"\x02\x02",
            message(new, second),
        ],
    )
    source = reading(topics, tmp_path, topic, registry, format="protobuf")
    empty = {"tags": [], "data": b"", "big": Decimal(0)}
    assert source.rows() == [
        {"ts": AT, "k": "a", "v": 1, **empty},
        {"ts": AT, "k": "b", "v": 2, "tags": ["x"], "data": b"\xff", "big": Decimal(2**64 - 1)},
        {"ts": AT, "k": "", "v": 0, **empty},
    ]
    errors = [one["error"] for one in source.dead]
    assert [one["offset"] for one in source.dead] == [2, 3, 4]
    assert "its meaning has changed" in errors[0] and "no Protobuf" in errors[1]
    assert "the first one is read" in errors[2]


def test_avro_is_written_and_read_again(topics: Any, tmp_path: Path) -> None:
    registry = Registry(auth="me:word")
    topic = topics.make()
    rows = [{"ts": n, "k": "ü" if n % 2 else None, "v": n} for n in range(5)]
    flow = ms.Flow("avro")
    source = ms.Generator(lambda: iter(rows), schema="ts bigint, k string, v int", time="ts")
    options = {"registry.auth": "me:word"}
    sink = ms.Kafka(
        topics.address, topic, format="avro", registry=registry.url, options=options, key="v"
    )
    flow.source(source).map(lambda row: {**row, "m": [row["v"], 2]}).sink(sink)
    registry.failing = 1  # it is asked again

    run_in_process(flow, tmp_path / "out")
    schema = fastavro.parse_schema(json.loads(registry.schemas[1]["schema"]))
    found = [
        fastavro.schemaless_reader(io.BytesIO(one.value()[5:]), schema, None)
        for one in topics.committed(topic)
    ]
    wanted = [{**row, "m": [row["v"], 2]} for row in rows]
    assert found == wanted
    assert "me:word" not in repr(sink) and "word" not in repr(sink.schemas)
    assert reading(topics, tmp_path / "in", topic, registry, options=options).rows() == wanted
    with pytest.raises(ConfigError, match=r"Unauthorized; see registry\.auth"):
        reading(topics, tmp_path / "no", topic, registry).rows()
    registry.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"registry": None}, "need a registry"),
        ({"format": "json", "schema": "a int"}, "no other format"),
        ({"schema": "a int"}, "the registry has the schema"),
        ({"registry": "somewhere"}, "expected an address like"),
        ({"topic": ("a", "b")}, "subject="),
        ({"subject": "nobody"}, "Subject not found"),
        ({"format": "protobuf"}, "is AVRO"),
        ({"subject": "plain"}, "not one of records"),
        ({"time": "nobody"}, "not among the columns"),
    ],
)
def test_what_cannot_be_is_refused(registry: Registry, given: dict[str, Any], told: str) -> None:
    registry.add("t-value", record(FIELDS))
    registry.add("plain", '"string"')
    options = {"topic": "t", "format": "avro", "registry": registry.url, "time": "ts", **given}
    flow = ms.Flow("refused")
    with pytest.raises(ConfigError, match=told):
        flow.source(ms.Kafka("127.0.0.1:1", **options)).sink(ms.Memory())
        plan_flow(flow)
