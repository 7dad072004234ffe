"""Values of columns as keys of dicts that MessagePack can hold, and the type to make them of again.

Equal values have equal wires, and wires are in the order of values, whatever chunk they came with.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.codec import decode, encode
from millstream.ops.keys.hashing import canonical
from millstream.ops.mixed import column_of as column_of_values

_PLAIN = ("int64", "double", "string", "binary", "bool")
_WIDEST = pa.decimal256(76, 38)  # holds every decimal of up to 38 digits, wherever its point is
_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (-?\d+)\)")


def wires_of(values: pa.Array) -> tuple[str, list[Any]]:
    """Plain Python values and their type. NaN is None, as there are no nulls; times are numbers."""
    values = canonical(values)
    kind = values.type
    if pa.types.is_null(kind):
        return "null", []
    if pa.types.is_floating(kind):
        return "double", [None if v != v else v for v in values.to_pylist()]
    if str(kind) in _PLAIN:
        return str(kind), values.to_pylist()
    if pa.types.is_decimal(kind) and kind.scale >= 0 and kind.precision <= 38:
        return str(kind), _from_decimals(values)
    if pa.types.is_temporal(kind):
        if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
            values = values.cast(pa.timestamp("us", kind.tz))
        number = pa.int32() if values.type.bit_width == 32 else pa.int64()
        return str(values.type), values.view(number).to_pylist()
    return "packed", [encode(value) for value in values.to_pylist()]


def type_of(kind: str) -> pa.DataType:
    """The type a kind stands for."""
    if kind.startswith("timestamp[") and ", tz=" in kind:
        unit, zone = kind.removeprefix("timestamp[").removesuffix("]").split(", tz=")
        return pa.timestamp(unit, zone)
    found = _DECIMAL.fullmatch(kind)
    if found is not None:
        precision, scale = map(int, found.groups())
        return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    return pa.type_for_alias(kind)


def column_of(wires: list[Any], kind: str) -> pa.Array:
    """The column these wires were made of."""
    if kind == "packed":
        return column_of_values([decode(wire) for wire in wires], {})
    if kind == "double":
        return pa.array([float("nan") if wire is None else float(wire) for wire in wires], kind)
    if kind in _PLAIN or kind == "null":
        return pa.array(wires, kind)
    made = type_of(kind)
    if pa.types.is_decimal(made):
        return _to_decimals(wires).cast(made)
    return pa.array(wires, pa.int32() if made.bit_width == 32 else pa.int64()).view(made)


def _from_decimals(values: pa.Array) -> list[bytes]:
    """All with one point, the highest byte first and its sign turned: bytes in numeric order."""
    wide = values.cast(_WIDEST)
    data = wide.buffers()[1]
    if data is None:
        return []
    start = wide.offset * 32
    digits = np.frombuffer(data, np.uint8)[start : start + len(wide) * 32].reshape(-1, 32)
    turned = digits[:, ::-1].copy()
    turned[:, 0] ^= 0x80
    return [row.tobytes() for row in turned]


def _to_decimals(wires: list[bytes]) -> pa.Array:
    turned = np.frombuffer(b"".join(wires), np.uint8).reshape(-1, 32).copy()
    turned[:, 0] ^= 0x80
    data = pa.py_buffer(turned[:, ::-1].tobytes())
    return pa.Array.from_buffers(_WIDEST, len(wires), [None, data])


def wider(one: str, other: str) -> str:
    """The kind that holds values of both."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if {one, other} == {"int64", "double"}:
        return "double"
    decimals = [_DECIMAL.fullmatch(kind) for kind in (one, other)]
    if all(decimals):
        sizes = [tuple(map(int, found.groups())) for found in decimals if found is not None]
        scale = max(scale for _, scale in sizes)
        precision = scale + max(precision - scale for precision, scale in sizes)
        return f"decimal{128 if precision <= 38 else 256}({precision}, {scale})"
    return "packed"
