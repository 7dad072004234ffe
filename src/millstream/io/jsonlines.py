"""json lines to raw columns with msgspec: one object per line, checked against the schema's types.

msgspec decodes a whole block about as fast as Arrow's json reader, and it refuses what Arrow lets
pass (NaN, deep nesting, bad escapes in ignored fields). Using it for whole blocks and for single
lines alike is what makes both accept the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from millstream.io.formats import Format
from millstream.io.lines import Lines, Raw

_LIMITS = {
    pa.int8(): 2**7,
    pa.int16(): 2**15,
    pa.int32(): 2**31,
    pa.int64(): 2**63,
}
_SIMPLE: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    pa.binary(): bytes,  # base64, as Spark writes it
}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def json_fields(fmt: Format, lines: Lines, careful: bool) -> Raw:
    decoder = _decoder(fmt.delivered)
    objects = None if careful else decoded_together(decoder, lines)
    if objects is not None:
        return Raw(columns_of(fmt.delivered, objects), np.arange(len(lines)), {})
    objects, rows, refused = [], [], {}
    decode = decoder.decode
    for i, line in enumerate(lines.all_lines()):
        try:
            objects.append(decode(line))
            rows.append(i)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refused[i] = str(error)
    return Raw(columns_of(fmt.delivered, objects), np.array(rows, np.int64), refused)


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
    structs = _fit_structs(schema)
    for k, field in enumerate(schema):
        values: list[Any]
        if structs:
            values = list(map(attrgetter(f"f{k}"), objects))
        else:
            values = [one.get(field.name) for one in objects]
        if pa.types.is_decimal(field.type):
            values = [None if v is None else str(v) for v in values]
        columns.append(pa.array(values, raw_type(field.type)))
    return columns


@lru_cache(maxsize=64)
def _decoder(schema: pa.Schema) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type(schema))


def record_type(schema: pa.Schema) -> Any:
    """What msgspec decodes an object with these columns to: `columns_of` knows its fields."""
    if not _fit_structs(schema):
        return _object_type(schema)
    fields = [(f"f{k}", _python_type(f.type) | None, None) for k, f in enumerate(schema)]
    rename = {f"f{k}": f.name for k, f in enumerate(schema)}
    return msgspec.defstruct("Record", fields, rename=rename, gc=False)


def _python_type(kind: pa.DataType) -> Any:
    if kind in _LIMITS:
        return Annotated[int, msgspec.Meta(ge=-_LIMITS[kind], le=_LIMITS[kind] - 1)]
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return str
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    return _object_type(kind)


def _fit_structs(schema: pa.Schema) -> bool:
    """Whether all names may be those of a struct, the fastest; msgspec allows no others there."""
    return not any(_ESCAPED.search(name) for name in schema.names)


def _object_type(fields: Iterable[pa.Field]) -> Any:
    members = {}
    for field in fields:
        name = field.name
        # msgspec compares names with the UTF-8 that a text keeps, and only encoding it makes it
        # keep that: without, values under names that are not ASCII are taken for absent.
        msgspec.json.encode(name)
        members[name] = _python_type(field.type) | None
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
