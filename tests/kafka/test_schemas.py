"""Schemas that change and values of every type, beside what the libraries themselves make of them.

No broker: values are decoded as tasks decode them.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from millstream.io.formats import Format
from millstream.io.kafka import avro, protobuf
from millstream.io.kafka.cluster import Cluster
from millstream.io.kafka.consuming import Block
from millstream.io.kafka.decoding import Topics, decode
from millstream.io.kafka.registry import Registry, Schema
from millstream.io.records import Parsed

AT = datetime(2026, 11, 17, 12, 0, 0, 5000, UTC)
STAMP = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
UID = {"type": "string", "logicalType": "uuid"}


_numbers = itertools.count(1)


class Known(Registry):
    """A registry that has its schemas at hand."""

    schemas: dict[int, Schema]

    def by_number(self, number: int) -> Schema:
        return self.schemas[number]


def known(*schemas: Schema) -> Known:
    found = Known(f"http://nowhere:{next(_numbers)}")  # readers are kept by their registry
    object.__setattr__(found, "schemas", {one.number: one for one in schemas})
    return found


def decoded(kind: str, registry: Known, reads: int, values: list[bytes]) -> Parsed:
    """Values as a task reads them by one of the schemas."""
    wanted = registry.schemas[reads]
    columns = (avro if kind == "avro" else protobuf).columns_of(wanted)
    topics = Topics(Cluster("nowhere:1"), registry=registry, wanted=wanted)
    block = Block(np.arange(len(values)), list(values))
    return decode(Format(kind, columns, topics=topics), topics, block)


# -- Avro ----------------------------------------------------------------------------------------


def record(fields: dict[str, Any], defaults: dict[str, Any] | None = None, **more: Any) -> str:
    given = [{"name": name, "type": kind, **more.get(name, {})} for name, kind in fields.items()]
    for one in given:
        if one["name"] in (defaults or {}):
            one["default"] = (defaults or {})[one["name"]]
    return json.dumps({"type": "record", "name": "R", "namespace": "x", "fields": given})


def written(text: str, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text)), row)
    return struct.pack(">bI", 0, 1) + out.getvalue()


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def named(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": "N", **more}


def inner(**fields: Any) -> dict[str, Any]:
    return named("record", fields=[{"name": name, "type": one} for name, one in fields.items()])


# what was written, its value, and what it is read as: the value is as fastavro reads it
SAME = {
    "widened to long": ("int", 1, "long"),
    "widened to double": ("int", 1, "double"),
    "a long as float": ("long", 2**53 + 1, "float"),
    "a text as bytes": ("string", "é", "bytes"),
    "bytes as a text": ("bytes", b"abc", "string"),
    "may be null now": ("int", 1, ["null", "int"]),
    "may be null no more": (["null", "int"], 1, "int"),
    "finer times": (MILLIS, AT, STAMP),
    "a wider decimal": (decimal(9, 2), Decimal("1.25"), decimal(12, 2)),
    "a fixed decimal": (
        {**decimal(5, 1), **named("fixed", size=4)},
        Decimal("2.5"),
        {**decimal(5, 1), **named("fixed", size=4)},
    ),
    "one symbol more": (named("enum", symbols=["A"]), "A", named("enum", symbols=["A", "B"])),
    "a symbol with a default": (
        named("enum", symbols=["A", "B"]),
        "B",
        named("enum", symbols=["A"], default="A"),
    ),
    "fixed": (named("fixed", size=2), b"ab", named("fixed", size=2)),
    "duration": (
        named("fixed", size=12, logicalType="duration"),
        b"0" * 12,
        named("fixed", size=12, logicalType="duration"),
    ),
    "a logical type nobody knows": (
        {"type": "long", "logicalType": "of-our-own"},
        7,
        {"type": "long", "logicalType": "of-our-own"},
    ),
    "numbers": (["int", "long"], 2**40, ["int", "long"]),
    "a text or a symbol": (
        ["string", named("enum", symbols=["A"])],
        "A",
        ["string", named("enum", symbols=["A"])],
    ),
    "wider inside": (inner(x="int"), {"x": 1}, inner(x="long")),
    "one less inside": (inner(x="int", y="string"), {"x": 1, "y": "a"}, inner(x="int")),
    "a list that widens": (
        {"type": "array", "items": "int"},
        [1, 2],
        {"type": "array", "items": "long"},
    ),
}
# as texts, for what has no column of its own
TEXTS = {
    "uuid": (UID, UUID(int=5), str(UUID(int=5))),
    "uuids": ({"type": "array", "items": UID}, [UUID(int=5)], [str(UUID(int=5))]),
    "uuids by key": ({"type": "map", "values": UID}, {"a": UUID(int=5)}, [("a", str(UUID(int=5)))]),
    "a clock": ({"type": "int", "logicalType": "time-millis"}, time(1, 2), "01:02:00"),
    "a time without a zone": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        datetime(2026, 1, 1),
        "2026-01-01T00:00:00",
    ),
}
# another meaning, or no way to read it
REFUSED = {
    "narrowed": ("long", 1, "int", "its meaning has changed"),
    "cut": ("double", 1.5, "long", "its meaning has changed"),
    "a number as a text": ("int", 1, "string", "its meaning has changed"),
    "a number as a time": ("long", 5, STAMP, "its meaning has changed"),
    "a time as a number": (STAMP, AT, "long", "its meaning has changed"),
    "another scale": (decimal(9, 2), Decimal("1.25"), decimal(9, 3), "its meaning has changed"),
    "numbers as times inside": (
        {"type": "array", "items": "long"},
        [5],
        {"type": "array", "items": MILLIS},
        "its meaning has changed",
    ),
    "another type inside": (inner(x=STAMP), {"x": AT}, inner(x="long"), "its meaning has changed"),
    "a list as a map": (
        {"type": "array", "items": "int"},
        [1],
        {"type": "map", "values": "int"},
        "its meaning has changed",
    ),
    "null where none may be": (["null", "int"], None, "int", "no Avro of schema 1"),
    "a symbol that is gone": (
        named("enum", symbols=["A", "B"]),
        "B",
        named("enum", symbols=["A"]),
        "no Avro of schema 1",
    ),
    "no text": ("bytes", b"\xff", "string", "no Avro of schema 1"),
}


def read_as(was: Any, value: Any, now: Any) -> Parsed:
    old, new = record({"id": "int", "v": was}), record({"id": "int", "v": now})
    registry = known(Schema(old, "AVRO", 1), Schema(new, "AVRO", 2))
    return decoded("avro", registry, 2, [written(old, {"id": 7, "v": value})])


@pytest.mark.parametrize("case", SAME)
def test_avro_is_read_as_fastavro_reads_it(case: str) -> None:
    was, value, now = SAME[case]
    found = read_as(was, value, now)
    assert found.dead == []
    old, new = (json.loads(record({"id": "int", "v": kind})) for kind in (was, now))
    data = written(json.dumps(old), {"id": 7, "v": value})[5:]
    oracle = fastavro.schemaless_reader(
        io.BytesIO(data), fastavro.parse_schema(old), fastavro.parse_schema(new)
    )
    assert found.table.to_pylist() == [oracle]


@pytest.mark.parametrize("case", TEXTS)
def test_avro_without_a_column_type_is_a_text(case: str) -> None:
    kind, value, text = TEXTS[case]
    found = read_as(kind, value, kind)
    assert found.table.to_pylist() == [{"id": 7, "v": text}] and found.dead == []


@pytest.mark.parametrize("case", REFUSED)
def test_avro_of_another_meaning_is_a_dead_letter(case: str) -> None:
    was, value, now, told = REFUSED[case]
    found = read_as(was, value, now)
    assert not len(found.table)
    assert told in found.dead[0].error


def test_fields_of_avro_that_come_go_and_are_renamed() -> None:
    first = record({"a": "int", "b": "string"})
    second = record({"c": "long", "d": "string"}, {"d": "z"}, c={"aliases": ["a"]})
    third = record({"a": "int", "e": "string"})
    registry = known(*(Schema(one, "AVRO", n + 1) for n, one in enumerate((first, second, third))))
    value = written(first, {"a": 1, "b": "x"})
    assert decoded("avro", registry, 2, [value]).table.to_pylist() == [{"c": 1, "d": "z"}]
    assert "No default value for field e" in decoded("avro", registry, 3, [value]).dead[0].error


def test_a_value_that_is_none_of_its_type_spares_its_neighbours() -> None:
    plain, claimed = record({"v": "bytes"}), record({"v": decimal(3, 1)})
    registry = known(Schema(claimed, "AVRO", 1))
    huge = written(plain, {"v": (10**9).to_bytes(8, "big")})  # more digits than its schema has
    good = written(claimed, {"v": Decimal("1.5")})
    found = decoded("avro", registry, 1, [good, huge, good])
    assert found.table.to_pylist() == [{"v": Decimal("1.5")}] * 2
    assert [(one.position, found.offered) for one in found.dead] == [(1, 3)]
    assert "column 'v' is not of type decimal128(3, 1)" in found.dead[0].error


def test_maps_inside_of_rows_are_written_in_avro() -> None:
    import pyarrow as pa

    maps = pa.map_(pa.string(), pa.int64())
    columns = pa.schema(
        [("s", pa.struct([("m", maps)])), ("l", pa.list_(maps)), ("d", pa.date32())]
    )
    row = {"s": {"m": [("a", 1)]}, "l": [[("b", 2)], None], "d": date(2026, 11, 17)}
    table = pa.Table.from_pylist([row], columns)
    registry = known()
    object.__setattr__(registry, "register", lambda subject, text: 1)
    write = avro.writer_of.__wrapped__(registry, "t-value", columns)
    schema = fastavro.parse_schema(json.loads(avro.schema_of(columns, "r_t_value")))
    data = write(table.to_pylist()[0])
    found = fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)
    assert found == {"s": {"m": {"a": 1}}, "l": [{"b": 2}, None], "d": date(2026, 11, 17)}


# -- Protobuf ------------------------------------------------------------------------------------

INT32, INT64, UINT64, STRING, BYTES, MESSAGE, ENUM, DOUBLE, BOOL = 5, 3, 4, 9, 12, 11, 14, 1, 8


def described() -> Any:
    """Messages inside, lists, maps, a choice, an enum, optional fields and Google's own types."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    for name in ("timestamp", "wrappers", "struct"):
        file.dependency.append(f"google/protobuf/{name}.proto")
    file.enum_type.add(name="Side").value.add(name="BUY", number=0)
    file.enum_type[0].value.add(name="SELL", number=1)
    trade = file.message_type.add(name="Trade")
    leg = trade.nested_type.add(name="Leg")
    _field(leg, "x", 1, DOUBLE)
    _field(leg, "tags", 2, STRING, repeated=True)
    entry = trade.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, STRING)
    _field(entry, "value", 2, MESSAGE, ".p.Trade.Leg")
    _field(trade, "ts", 1, MESSAGE, ".google.protobuf.Timestamp")
    _field(trade, "v", 2, INT64)
    _field(trade, "big", 3, UINT64)
    _field(trade, "side", 4, ENUM, ".p.Side")
    _field(trade, "leg", 5, MESSAGE, ".p.Trade.Leg")
    _field(trade, "legs", 6, MESSAGE, ".p.Trade.Leg", repeated=True)
    _field(trade, "sizes", 7, MESSAGE, ".p.Trade.SizesEntry", repeated=True)
    trade.oneof_decl.add(name="which")
    _field(trade, "text", 8, STRING, choice=0)
    _field(trade, "number", 9, INT32, choice=0)
    _field(trade, "note", 10, MESSAGE, ".google.protobuf.StringValue")
    _field(trade, "more", 11, MESSAGE, ".google.protobuf.Struct")
    _field(trade, "data", 12, BYTES)
    _field(trade, "maybe", 13, BOOL, choice=1).proto3_optional = True
    trade.oneof_decl.add(name="_maybe")
    return file


def _field(
    of: Any,
    name: str,
    number: int,
    kind: int,
    message: str = "",
    *,
    repeated: bool = False,
    choice: int | None = None,
) -> Any:
    one = of.field.add(name=name, number=number, type=kind, label=3 if repeated else 1)
    if message:
        one.type_name = message
    if choice is not None:
        one.oneof_index = choice
    return one


def class_of(file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for one in (timestamp_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(one.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("p.Trade"))


def schema_of(file: Any, number: int) -> Schema:
    return Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF", number)


def in_message(message: Any, number: int = 1) -> bytes:
    return struct.pack(">bI", 0, number) + b"\0" + bytes(message.SerializeToString())


def some_trade(kind: Any, dice: random.Random) -> Any:
    one = kind(v=dice.randint(-(2**63), 2**63 - 1), big=dice.randint(0, 2**64 - 1))
    one.side, one.data = dice.choice([0, 1]), dice.randbytes(3)
    if dice.random() < 0.7:
        one.ts.FromMicroseconds(dice.randint(0, 2**50))
    for _ in range(dice.randint(0, 2)):
        one.legs.add(x=dice.random(), tags=dice.choices(["a", "ü", ""], k=2))
        one.sizes[dice.choice("abc")].x = dice.random()
    if dice.random() < 0.5:
        one.leg.SetInParent()
    match dice.randrange(3):
        case 0:
            one.text = ""
        case 1:
            one.number = 0
    if dice.random() < 0.5:
        one.note.value = dice.choice(["", "n"])
    if dice.random() < 0.5:
        one.more.update({"a": [1.5, None], "b": {"c": "d"}})
    if dice.random() < 0.5:
        one.maybe = False
    return one


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Protobuf writes messages in JSON."""

    def leg(found: dict[str, Any]) -> dict[str, Any]:
        return {"x": found["x"], "tags": found["tags"]}

    found: dict[str, Any] = {
        "v": str(row["v"]),
        "big": str(row["big"]),
        "side": row["side"],
        "data": base64.b64encode(row["data"]).decode(),
        "legs": [leg(one) for one in row["legs"]],
        "sizes": {key: leg(one) for key, one in row["sizes"]},
    }
    there = {
        name: row[name] for name in ("text", "number", "note", "maybe") if row[name] is not None
    }
    if row["ts"] is not None:
        there["ts"] = int(row["ts"].timestamp() * 1_000_000 + 0.5)
    if row["leg"] is not None:
        there["leg"] = leg(row["leg"])
    if row["more"] is not None:
        there["more"] = json.loads(row["more"])
    return found | there


def test_protobuf_is_read_as_its_own_json_says() -> None:
    file, dice = described(), random.Random(15)
    kind = class_of(file)
    messages = [some_trade(kind, dice) for _ in range(200)]
    found = decoded("protobuf", known(schema_of(file, 1)), 1, [in_message(m) for m in messages])
    assert found.dead == []
    for message, row in zip(messages, found.table.to_pylist(), strict=True):
        oracle = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        if "ts" in oracle:
            oracle["ts"] = message.ts.ToMicroseconds()
        for leg in [*oracle["legs"], *oracle["sizes"].values(), *filter(None, [oracle.get("leg")])]:
            leg.setdefault("tags", [])
        assert as_json(row) == oracle


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda trade: trade.field.pop(1), None),
        (lambda trade: setattr(trade.field[8], "type", INT64), None),
        (lambda trade: setattr(trade.field[7], "type", BYTES), None),
        (lambda trade: setattr(trade.field[1], "type", INT32), "its meaning has changed"),
        (lambda trade: setattr(trade.field[1], "name", "w"), "its meaning has changed"),
        (lambda trade: setattr(trade.field[1], "number", 99), "its meaning has changed"),
        (lambda trade: setattr(trade.nested_type[0].field[0], "type", INT64), "meaning has"),
    ],
    ids=["removed", "widened", "as bytes", "narrowed", "renamed", "renumbered", "inside"],
)
def test_protobuf_of_another_schema(change: Any, told: str | None) -> None:
    old, new = described(), described()
    change(new.message_type[0])
    one = class_of(old)(v=5, number=7)
    registry = known(schema_of(old, 1), schema_of(new, 2))
    found = decoded("protobuf", registry, 2, [in_message(one)])
    if told is None:
        assert found.dead == [] and found.table.to_pylist()[0]["number"] == 7
    else:
        assert told in found.dead[0].error


def test_a_time_of_protobuf_beyond_all_calendars_is_a_dead_letter() -> None:
    file = described()
    wrong = class_of(file)()
    wrong.ts.seconds = 2**60
    found = decoded("protobuf", known(schema_of(file, 1)), 1, [in_message(wrong)])
    assert "no Protobuf of schema 1: OverflowError" in found.dead[0].error
