"""Protobuf values of a schema registry: descriptors to columns, values to rows.

The registry hands out descriptors (`format=serialized`), so nothing is compiled. Fields are known
by their numbers: a value that was written with another schema is read with the newest one when the
run started, unless a number means something else there.
"""

from __future__ import annotations

import base64
import importlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.io.kafka.avro import require_avro, told_of
from millstream.io.kafka.registry import HEAD, Registry, Schema, head_of

_TIMESTAMP = "google.protobuf.Timestamp"
_FILES = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_LOOSE = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}  # texts of JSON
_WRAPPED = {  # a value that may be null
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of messages with a schema: those of its first message."""
    return pa.schema(list(_struct(_messages(schema)[0], ())))


def _struct(message: Any, inside: tuple[str, ...]) -> pa.DataType:
    if message.full_name in inside:
        raise ConfigError(
            f"the message {message.full_name} holds itself, and columns end somewhere"
        )
    inner = (*inside, message.full_name)
    return pa.struct([pa.field(one.name, _type(one, inner)) for one in message.fields])


def _type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[n] for n in ("key", "value"))
        return pa.map_(_single(key, inside), _single(value, inside))
    kind = _single(field, inside)
    return pa.list_(kind) if _repeats(field) else kind


def _single(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    kinds = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type in kinds:
        return kinds[field.cpp_type]
    if field.cpp_type == field.CPPTYPE_STRING:
        return pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if field.message_type.full_name in _LOOSE:
        return pa.string()
    if field.message_type.full_name in _WRAPPED:
        return _single(field.message_type.fields_by_name["value"], inside)
    return _struct(field.message_type, inside)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _repeats(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


class Reader:
    """Values of a topic by the columns of one schema."""

    def __init__(self, registry: Registry, wanted: Schema) -> None:
        from google.protobuf.message_factory import GetMessageClass

        self.registry, self.wanted = registry, wanted
        self._message = _messages(wanted)[0]
        self._class = GetMessageClass(self._message)
        self._wrong: dict[int, str | None] = {}

    def row(self, value: bytes) -> dict[str, Any]:
        """One value; raises ValueError with what is wrong."""
        number = head_of(value)
        if number not in self._wrong:
            self._wrong[number] = self._differs(number)
        wrong = self._wrong[number]
        if wrong is not None:
            raise ValueError(wrong)
        at = _past_indexes(value)
        message = self._class()
        try:
            message.ParseFromString(value[at:])
            return _row(message)
        except Exception as error:  # the library has an error of its own for each way it is built
            raise ValueError(f"no Protobuf of schema {number}: {told_of(error)}") from None

    def _differs(self, number: int) -> str | None:
        """Why values of a schema cannot be read by ours."""
        found = self.registry.by_number(number)
        if found.kind != "PROTOBUF":
            return f"schema {number} is {found.kind}, not PROTOBUF"
        return _difference(_messages(found)[0], self._message, f"schema {number}")


def _difference(was: Any, now: Any, what: str) -> str | None:
    """Where a number or a name of a field means something else."""
    for field in was.fields:
        same = now.fields_by_number.get(field.number)
        named = now.fields_by_name.get(field.name)
        other = same or named
        if other is None:
            continue
        if (
            other.number != field.number
            or other.name != field.name
            or not _widens(field, other)
            or _repeats(other) != _repeats(field)
            or _googles(field) != _googles(other)
        ):
            return (
                f"{what} has field {field.number} as {field.name!r}, and it is read as field "
                f"{other.number}, {other.name!r}: its meaning has changed"
            )
        if field.message_type is not None and not _googles(field):
            inner = _difference(field.message_type, other.message_type, what)
            if inner is not None:
                return inner
    return None


def _googles(field: Any) -> str:
    """The name of a type that everybody has the same, and that may hold itself; else nothing."""
    name = "" if field.message_type is None else str(field.message_type.full_name)
    return name if name.startswith("google.protobuf.") else ""


def _widens(was: Any, now: Any) -> bool:
    """Whether values of one type are read as the same values of another."""
    return was.type == now.type or (was.type, now.type) in (
        (was.TYPE_INT32, was.TYPE_INT64),
        (was.TYPE_SINT32, was.TYPE_SINT64),
        (was.TYPE_UINT32, was.TYPE_UINT64),
        (was.TYPE_STRING, was.TYPE_BYTES),
    )


def _past_indexes(value: bytes) -> int:
    """Where the message begins, behind the numbers of the one that is meant: the first."""
    count, at = _varint(value, HEAD)
    if count == 0:  # short for the first
        return at
    if count < 0 or count > 16:
        raise ValueError("it does not say which message it is")
    several = []
    for _ in range(count):
        index, at = _varint(value, at)
        several.append(index)
    if several != [0]:
        raise ValueError(f"it is message {several} of its schema, and the first one is read")
    return at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and where it ends."""
    found = shift = 0
    while True:
        if at >= len(value) or shift > 35:
            raise ValueError("it does not say which message it is")
        found |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not value[at - 1] & 0x80:
            return (found >> 1) ^ -(found & 1), at


def _row(message: Any) -> dict[str, Any]:
    return {one.name: _value(message, one) for one in message.DESCRIPTOR.fields}


def _value(message: Any, field: Any) -> Any:
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        found = getattr(message, field.name)
        return [(key, _plain(found[key], value)) for key in sorted(found)]
    if _repeats(field):
        return [_plain(one, field) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(getattr(message, field.name), field)


def _plain(value: Any, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type != field.CPPTYPE_MESSAGE:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if field.message_type.full_name in _LOOSE:
        from google.protobuf.json_format import MessageToJson

        return MessageToJson(value, indent=None)
    if field.message_type.full_name in _WRAPPED:
        return value.value
    return _row(value)


@lru_cache(maxsize=256)
def _messages(schema: Schema) -> list[Any]:
    """The messages of a schema, in their order."""
    require_avro()
    descriptor_pb2 = require_avro("google.protobuf.descriptor_pb2")
    descriptor_pool = require_avro("google.protobuf.descriptor_pool")
    pool = descriptor_pool.DescriptorPool()
    for name in _FILES:
        known = importlib.import_module(f"google.protobuf.{name}_pb2")
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    try:
        for name, text in (*schema.references, ("", schema.text)):
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
            file.name = name or f"schema-{schema.number}.proto"
            found = pool.AddSerializedFile(file.SerializeToString())
            found = found or pool.FindFileByName(file.name)
    except Exception as error:  # as above
        raise ConfigError(f"the schema is no descriptor of Protobuf: {told_of(error)}") from None
    messages = list(found.message_types_by_name.values())
    if not messages:
        raise ConfigError("the schema of the topic has no message")
    return messages
