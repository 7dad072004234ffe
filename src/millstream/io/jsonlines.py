"""json lines to raw columns with msgspec: one object per line, checked against the schema's types.

msgspec decodes a whole block about as fast as Arrow's json reader, and it refuses what Arrow lets
pass (NaN, deep nesting, bad escapes in ignored fields). Using it for whole blocks and for single
lines alike is what makes both accept the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from millstream.io.formats import Format
from millstream.io.lines import Lines, Raw

_LIMITS = {pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63}
_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    pa.binary(): bytes,  # base64, as Spark writes it
}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def json_fields(fmt: Format, lines: Lines, careful: bool) -> Raw:
    """Lines as raw columns, each checked against the types of its columns.

    Where the columns were inferred, a text column takes any value: as it is written, if it is none.
    Most blocks hold texts only, so that is tried when a block does not.
    """
    schema = fmt.delivered
    decoder = _decoder(schema)
    objects = None if careful else decoded_together(decoder, lines)
    if objects is not None:
        return Raw(columns_of(schema, objects), np.arange(len(lines)), {})
    loose = fmt.loose and any(map(_holds_text, schema.types))
    if loose:
        decoder = _decoder(schema, msgspec.Raw)
    objects, rows, refused = [], [], {}
    decode = decoder.decode
    for i, line in enumerate(lines.all_lines()):
        try:
            one = decode(line)
            objects.append(_in_texts(schema, one) if loose else one)
            rows.append(i)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refused[i] = str(error)
    return Raw(columns_of(schema, objects), np.array(rows, np.int64), refused)


def _in_texts(schema: pa.Schema, record: Any) -> Any:
    """A record with texts for what was left as it is written."""
    if isinstance(record, dict):
        return {
            field.name: _text_of(record[field.name], field.type)
            for field in schema
            if field.name in record
        }
    for k, field in enumerate(schema):
        if _holds_text(field.type):
            setattr(record, f"f{k}", _text_of(getattr(record, f"f{k}"), field.type))
    return record


def _text_of(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _holds_text(kind):
        return value
    if pa.types.is_list(kind):
        return [_text_of(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {f.name: _text_of(value[f.name], f.type) for f in kind if f.name in value}
    written = bytes(value)
    if written.startswith(b'"'):
        return msgspec.json.decode(written, type=str)
    return None if written == b"null" else written.decode()


def _holds_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts, or have some in them."""
    if pa.types.is_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(field.type) for field in kind)
    return bool(pa.types.is_string(kind))


def decoded_together(decoder: msgspec.json.Decoder[Any], lines: Lines) -> list[Any] | None:
    """All lines at once; None if it is not sure that each holds one object."""
    # An object may run over line ends for the decoder. When every line begins with { and ends
    # with } none can: inside an object or array, } followed by { is an error. Then each line holds
    # at least one object, and as many objects as lines means exactly one in each.
    array = lines.as_array()
    if not len(lines):
        return []
    if not ((array[lines.starts] == 0x7B).all() and (array[lines.ends - 1] == 0x7D).all()):
        return None
    try:
        objects: list[Any] = decoder.decode_lines(lines.joined())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return objects if len(objects) == len(lines) else None


def columns_of(schema: pa.Schema, objects: list[Any]) -> list[pa.Array]:
    """Decoded objects as raw columns."""
    columns = []
    for field, get in zip(schema, getters_of(schema), strict=True):
        values = list(map(get, objects))
        if pa.types.is_decimal(field.type):
            values = [None if v is None else str(v) for v in values]
        columns.append(pa.array(values, raw_type(field.type)))
    return columns


def getters_of(schema: pa.Schema) -> list[Callable[[Any], Any]]:
    """What gives the value of each column of a decoded object."""
    if _fit_structs(schema):
        return [attrgetter(f"f{k}") for k in range(len(schema))]
    return [methodcaller("get", name) for name in schema.names]


@lru_cache(maxsize=64)
def _decoder(schema: pa.Schema, text: Any = str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type(schema, text))


def record_type(schema: pa.Schema, text: Any = str) -> Any:
    """What msgspec decodes an object with these columns to: `columns_of` knows its fields.

    text: what it makes of texts; `msgspec.Raw` leaves them, and all that stands in their place.
    """
    if not _fit_structs(schema):
        return _object_type(schema, text)
    fields = [(f"f{k}", _or_null(_python_type(f.type, text)), None) for k, f in enumerate(schema)]
    rename = {f"f{k}": f.name for k, f in enumerate(schema)}
    return msgspec.defstruct("Record", fields, rename=rename, gc=False)


def _or_null(kind: Any) -> Any:
    return kind if kind is msgspec.Raw else kind | None  # which may be null anyway


def _python_type(kind: pa.DataType, text: Any) -> Any:
    if kind in _LIMITS:
        return Annotated[int, msgspec.Meta(ge=-_LIMITS[kind], le=_LIMITS[kind] - 1)]
    if pa.types.is_string(kind):
        return text
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return str
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type, str) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_or_null(_python_type(kind.value_type, text))]  # type: ignore[misc]
    return _object_type(kind, text)


def _fit_structs(schema: pa.Schema) -> bool:
    """Whether all names may be those of a struct, the fastest; msgspec allows no others there."""
    return not any(_ESCAPED.search(name) for name in schema.names)


def _object_type(fields: Iterable[pa.Field], text: Any) -> Any:
    members = {}
    for field in fields:
        name = field.name
        # msgspec compares names with the UTF-8 that a text keeps, and only encoding it makes it
        # keep that: without, values under names that are not ASCII are taken for absent.
        msgspec.json.encode(name)
        members[name] = _or_null(_python_type(field.type, text))
    return TypedDict("Object", members, total=False)  # type: ignore[operator]


def raw_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type of a column as json holds it: moments and decimals are still texts."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), raw_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(raw_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, raw_type(f.type)) for f in kind])
    return pa.float64() if pa.types.is_float32(kind) else kind
