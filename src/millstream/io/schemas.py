"""Schemas as users write them: Spark DDL text, a dict of names and types, or an Arrow schema.

Driver side only, before anything is read: `formats.py` turns what a user gave into the Arrow
schema that every task then delivers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from millstream.errors import ConfigError

TIMESTAMP = pa.timestamp("us", "UTC")

_SIMPLE: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "binary": pa.binary(),
}
KNOWN_TYPES = (
    "string, int, bigint (long), smallint, tinyint, double, float, boolean, date, timestamp, "
    "binary, decimal(p,s), array<T>, struct<name:T,...>, map<K,V>"
)
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:]|\S)")
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}


def parse_schema(schema: str | Mapping[str, str | pa.DataType] | pa.Schema) -> pa.Schema:
    """The Arrow schema for a DDL text, a dict name -> type, or an Arrow schema (normalised)."""
    if isinstance(schema, pa.Schema):
        fields = [pa.field(f.name, normal_type(f.type)) for f in schema]
    elif isinstance(schema, str):
        fields = _Parser(schema).columns()
    elif isinstance(schema, Mapping):
        fields = [pa.field(str(name), _one_type(name, kind)) for name, kind in schema.items()]
    else:
        raise ConfigError(
            f"schema= must be a text like 'ts timestamp, price double', a dict of names and types, "
            f"or a pyarrow.Schema, not {type(schema).__name__}"
        )
    _check_names([f.name for f in fields], schema)
    return pa.schema(fields)


def _one_type(name: str, kind: str | pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return normal_type(kind)
    if not isinstance(kind, str):
        raise ConfigError(f"schema: the type of column {name!r} is {kind!r}; give a type name")
    return _Parser(kind, f"column {name!r}: ").only_type()


def _check_names(names: list[str], schema: object) -> None:
    if not names:
        raise ConfigError(f"schema {str(schema)!r} has no columns: give at least one 'name type'")
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"schema names column {', '.join(map(repr, twice))} more than once")


def normal_type(kind: pa.DataType) -> pa.DataType:
    """The type delivered for a stored type: Spark has no unsigned, large or dictionary types.

    Timestamps become microseconds; a stored zone becomes UTC, a missing zone stays missing (the
    caller, who knows `zone=`, decides what that means).
    """
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    if pa.types.is_dictionary(kind):
        return normal_type(kind.value_type)
    if pa.types.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(normal_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, normal_type(f.type)) for f in kind])
    return _WIDER.get(kind, kind)


class _Parser:
    """Recursive descent over the tokens of one DDL text."""

    def __init__(self, text: str, where: str = "") -> None:
        self.text, self.where = text, where
        self.tokens: list[str] = _TOKEN.findall(text)
        self.at = 0

    def columns(self) -> list[pa.Field]:
        fields = self.fields(until="")
        return fields

    def only_type(self) -> pa.DataType:
        kind = self.type()
        if self.peek():
            raise self.error(self.peek(), "after the type")
        return kind

    def fields(self, until: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while self.peek() != until:
            if fields:
                self.expect(",")
            name = self.next()
            if not re.fullmatch(r"\w+|`.*`", name):
                raise self.error(name, "where a column name should be")
            if self.peek() == ":":
                self.next()
            plain = name[1:-1].replace("``", "`") if name.startswith("`") else name
            fields.append(pa.field(plain, self.type()))
        return fields

    def type(self) -> pa.DataType:
        word = self.next()
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in ("decimal", "numeric"):
            return self.decimal()
        if name in ("array", "struct", "map"):
            self.expect("<")
            kind = self.nested(name)
            self.expect(">")
            return kind
        raise self.error(word, "where a type should be")

    def nested(self, name: str) -> pa.DataType:
        if name == "array":
            return pa.list_(self.type())
        if name == "struct":
            return pa.struct(self.fields(until=">"))
        key = self.type()
        self.expect(",")
        return pa.map_(key, self.type())

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.peek() == "(":
            self.next()
            precision = self.number()
            if self.peek() == ",":
                self.next()
                scale = self.number()
            self.expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.error(f"decimal({precision},{scale})", "beyond 38 digits or scale > digits")
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        word = self.next()
        if not re.fullmatch(r"[0-9]{1,3}", word):
            raise self.error(word, "where a number should be")
        return int(word)

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        word = self.peek()
        self.at += 1
        return word

    def expect(self, word: str) -> None:
        found = self.next()
        if found != word:
            raise self.error(found, f"where {word!r} should be")

    def error(self, found: str, problem: str) -> ConfigError:
        what = repr(found) if found else "the end"
        return ConfigError(
            f"schema: {self.where}cannot read {self.text!r}: {what} {problem}. "
            f"Write 'name type, name type'; known types: {KNOWN_TYPES}"
        )
