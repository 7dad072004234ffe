"""Avro values of a schema registry: schemas to columns, values to rows and back.

The columns of a source are those of the newest schema when the run starts, the reader's schema. A
value that was written with another is resolved by Avro's own rules: what it lacks has the default
of the reader, what the reader does not know is left out. A value whose schema cannot be resolved so
is a dead letter, and a schema with another type under a name is refused.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.io.kafka.registry import HEAD, Registry, Schema, head_of, with_head

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_UNNAMED = re.compile(r"[^A-Za-z0-9_]")
_LOGICAL = {  # all others are their plain types, as Avro says
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "uuid": pa.string(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "local-timestamp-millis": pa.string(),
    "local-timestamp-micros": pa.string(),
}


def require_avro(module: str = "fastavro") -> Any:
    """A library of that extra; one line says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            "Avro and Protobuf need another package: pip install 'millstream[avro]'"
        ) from None


# -- schemas to columns --------------------------------------------------------------------------


def columns_of(schema: Schema) -> pa.Schema:
    """The columns of records with a schema."""
    found = json.loads(schema.text)
    if not isinstance(found, dict) or found.get("type") != "record":
        raise ConfigError("the schema of the topic is not one of records, which have columns")
    named: dict[str, Any] = {}
    for _, text in schema.references:
        _name(json.loads(text), named, "")
    return pa.schema(list(_type(found, named, "", ()).fields))


def _name(found: Any, named: dict[str, Any], space: str) -> str:
    """Remember a named type; gives the namespace of what is in it."""
    space = str(found.get("namespace", space))
    name = str(found["name"])
    full = name if "." in name or not space else f"{space}.{name}"
    named[full] = named[name] = found
    return full.rpartition(".")[0]


def _type(found: Any, named: dict[str, Any], space: str, inside: tuple[str, ...]) -> Any:
    if isinstance(found, list):
        return _union([one for one in found if one != "null"], named, space, inside)
    if isinstance(found, str):
        if found in _PLAIN:
            return _PLAIN[found]
        full = found if found in named else f"{space}.{found}"
        if full not in named or full in inside:
            raise ConfigError(f"the Avro schema names {found!r}, which is not there or in itself")
        return _type(named[full], named, space, (*inside, full))
    kind, logical = found["type"], found.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "decimal":
        return pa.decimal128(int(found["precision"]), int(found.get("scale", 0)))
    match kind:
        case "record":
            inner = _name(found, named, space)
            within = (*inside, str(found["name"]))
            return pa.struct(
                [
                    pa.field(f["name"], _type(f["type"], named, inner, within))
                    for f in found["fields"]
                ]
            )
        case "enum":
            _name(found, named, space)
            return pa.string()
        case "fixed":
            _name(found, named, space)
            return pa.binary()
        case "array":
            return pa.list_(_type(found["items"], named, space, inside))
        case "map":
            return pa.map_(pa.string(), _type(found["values"], named, space, inside))
    return _type(kind, named, space, inside)


def _union(several: list[Any], named: dict[str, Any], space: str, inside: tuple[str, ...]) -> Any:
    if len(several) == 1:
        return _type(several[0], named, space, inside)
    kinds = {_type(one, named, space, inside) for one in several}
    if len(kinds) == 1:
        return kinds.pop()
    if all(map(pa.types.is_integer, kinds)):
        return pa.int64()
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        return pa.float64()
    raise ConfigError(
        f"the Avro schema has a union of {', '.join(map(str, kinds))}, and a column has one type"
    )


# -- values to rows ------------------------------------------------------------------------------


class Reader:
    """Values of a topic by the columns of one schema."""

    def __init__(self, registry: Registry, wanted: Schema) -> None:
        self.registry, self.wanted = registry, wanted
        self._avro = require_avro()
        self._reads = _parsed(wanted)
        self._columns = {one.name: one.type for one in columns_of(wanted)}
        self._writers: dict[int, Any] = {}

    def row(self, value: bytes) -> dict[str, Any]:
        """One value; raises ValueError with what is wrong."""
        number = head_of(value)
        writer = self._writers.get(number)
        if writer is None:
            writer = self._writers[number] = self._writer(number)
        if isinstance(writer, str):
            raise ValueError(writer)
        stream = io.BytesIO(memoryview(value)[HEAD:])
        try:
            row = self._avro.schemaless_reader(stream, writer, self._reads)
        except Exception as error:  # what broken bytes raise is not told by the library
            raise ValueError(f"no Avro of schema {number}: {told_of(error)}") from None
        if stream.read(1):
            raise ValueError(f"no Avro of schema {number}: bytes follow its end")
        if not isinstance(row, dict):
            raise ValueError(f"schema {number} is not one of records")
        return row

    def _writer(self, number: int) -> Any:
        """The schema a value was written with, or why it cannot be read by ours."""
        found = self.registry.by_number(number)
        if found.kind != "AVRO":
            return f"schema {number} is {found.kind}, not AVRO"
        try:
            other = {one.name: one.type for one in columns_of(found)}
        except ConfigError as error:
            return f"schema {number}: {error}"
        for name in other.keys() & self._columns.keys():
            if not _widens(other[name], self._columns[name]):
                return (
                    f"schema {number} has {name!r} as {other[name]}, and it is read as "
                    f"{self._columns[name]}: its meaning has changed"
                )
        return _parsed(found)


def _widens(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether values of one type are values of another without a change of meaning."""
    if was == now or pa.types.is_null(was):
        return True
    order = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]
    if was in order and now in order:
        return order.index(was) <= order.index(now)
    if pa.types.is_decimal(was) and pa.types.is_decimal(now):
        return bool(was.scale == now.scale and was.precision <= now.precision)
    if pa.types.is_struct(was) and pa.types.is_struct(now):
        both = {one.name for one in was} & {one.name for one in now}
        return all(_widens(was.field(name).type, now.field(name).type) for name in both)
    if pa.types.is_map(was) and pa.types.is_map(now):
        return _widens(was.item_type, now.item_type)
    if pa.types.is_list(was) and pa.types.is_list(now):
        return _widens(was.value_type, now.value_type)
    return {was, now} == {pa.string(), pa.binary()}


def told_of(error: Exception) -> str:
    """What a library says, in one line."""
    return " ".join(f"{type(error).__name__} {error}".split())[:200]


@lru_cache(maxsize=256)
def _parsed(schema: Schema) -> Any:
    avro = require_avro()
    named: dict[str, Any] = {}
    for _, text in schema.references:
        avro.parse_schema(json.loads(text), named_schemas=named)
    return avro.parse_schema(json.loads(schema.text), named_schemas=named)


# -- rows to values ------------------------------------------------------------------------------


def schema_of(columns: pa.Schema, name: str) -> str:
    """The Avro schema of rows with these columns; every one may be null."""
    return json.dumps({"type": "record", "name": name, "fields": _fields(columns, name)})


def _fields(columns: Any, name: str) -> list[dict[str, Any]]:
    found = []
    for one in columns:
        if _UNNAMED.search(one.name) or one.name[:1].isdigit() or not one.name:
            raise ConfigError(
                f"column {one.name!r} cannot be a name in Avro; give it another with select()"
            )
        kind: Any = "null"  # what it is to be is not known before there is a value
        if not pa.types.is_null(one.type):
            kind = ["null", _written(one.type, f"{name}_{one.name}")]
        found.append({"name": one.name, "type": kind, "default": None})
    return found


def _written(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    for avro, plain in _PLAIN.items():
        if plain == kind and avro != "null":
            return avro
    if pa.types.is_integer(kind):
        return "long"
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_decimal(kind):
        precise = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **precise}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _written(kind.value_type, f"{name}_item")]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _written(kind.item_type, f"{name}_value")]}
    if pa.types.is_struct(kind):
        return {"type": "record", "name": name, "fields": _fields(kind, name)}
    if pa.types.is_large_string(kind):
        return "string"
    raise ConfigError(f"a column of type {kind} has no type in Avro; cast it first")


@lru_cache(maxsize=64)
def writer_of(
    registry: Registry, subject: str, columns: pa.Schema
) -> Callable[[dict[str, Any]], bytes]:
    """What makes values of rows, with a schema that the registry knows by a number."""
    avro = require_avro()
    text = schema_of(columns, _UNNAMED.sub("_", f"r_{subject}"))
    number = registry.register(subject, text)
    schema = avro.parse_schema(json.loads(text))
    mapped = [one for one in columns if _has_map(one.type)]

    def write(row: dict[str, Any]) -> bytes:
        for one in mapped:
            row[one.name] = _with_maps(row[one.name], one.type)
        out = io.BytesIO()
        avro.schemaless_writer(out, schema, row)
        return with_head(number, out.getvalue())

    return write


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return any(map(_has_map, inner))


def _with_maps(value: Any, kind: pa.DataType) -> Any:
    """Maps as Python has them, where Arrow gives pairs."""
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {key: _with_maps(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {one.name: _with_maps(value[one.name], one.type) for one in kind}
    return [_with_maps(one, kind.value_type) for one in value]
