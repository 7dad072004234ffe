"""SQL's types as Arrow types: their names, the storage types they stand for, how two of them mix.

Also what everything in this package speaks of: a value over a batch (`Datum`), an error of a value
(`ExpressionError`) and an error of types (`TypeMismatch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa

# pyarrow ships no type information: a Datum is a pa.Array or a pa.Scalar, a DataType a pa.DataType.
Datum = Any
DataType = Any
Types = tuple[DataType, ...]

TIMESTAMP = pa.timestamp("us", "UTC")
DATE = pa.date32()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MICROS = 1_000_000
MOST_DIGITS = 38  # of a decimal
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
SQL_NAMES = dict(zip(INTEGERS, ("tinyint", "smallint", "int", "bigint"), strict=True)) | {
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    TIMESTAMP: "timestamp",
    DATE: "date",
    pa.null(): "void",
}
NUMBERS = frozenset({*INTEGERS, pa.float32(), pa.float64()})
ATOMS = frozenset(SQL_NAMES) - {pa.null()}


class ExpressionError(ValueError):
    """A value cannot be computed: division by zero, overflow, a cast of text that does not fit."""


class TypeMismatch(Exception):
    """An expression is applied to types it has no meaning for; reported as a ConfigError."""


def type_name(of: DataType) -> str:
    if is_decimal(of):
        return f"decimal({of.precision},{of.scale})"
    return str(SQL_NAMES.get(of, of))


def is_floating(of: DataType) -> bool:
    return of in (pa.float32(), pa.float64())


def is_decimal(of: DataType) -> bool:
    return bool(pa.types.is_decimal(of))


def is_numeric(of: DataType) -> bool:
    return of in INTEGERS or is_floating(of) or is_decimal(of)


def logical_type(of: DataType) -> DataType:
    """The Spark type that stands for a storage type."""
    if pa.types.is_dictionary(of):
        return logical_type(of.value_type)
    if pa.types.is_large_string(of) or pa.types.is_string_view(of):
        return pa.string()
    if pa.types.is_timestamp(of):
        return TIMESTAMP
    if pa.types.is_date(of):
        return DATE
    if pa.types.is_unsigned_integer(of):
        return {8: pa.int16(), 16: pa.int32()}.get(of.bit_width, pa.int64())
    if is_decimal(of) and not pa.types.is_decimal128(of):
        return pa.decimal128(min(of.precision, MOST_DIGITS), min(of.scale, MOST_DIGITS))
    return pa.float32() if pa.types.is_float16(of) else of


def common_type(types: Iterable[DataType], promote_strings: bool = True) -> DataType:
    """The type that all of `types` are brought to before they are compared or mixed."""
    return reduce(lambda a, b: _wider(a, b, promote_strings), types, pa.null())


def _wider(a: DataType, b: DataType, promote_strings: bool) -> DataType:
    if a == b or b == pa.null():
        return a
    if a == pa.null():
        return b
    if is_numeric(a) and is_numeric(b):
        return _wider_number(a, b)
    if {a, b} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if promote_strings and pa.string() in (a, b):
        other = b if a == pa.string() else a
        if other in INTEGERS:
            return pa.int64()
        if is_numeric(other):
            return pa.float64()
        if other in SQL_NAMES:
            return other
    raise TypeMismatch(f"{type_name(a)} and {type_name(b)} do not go together; CAST one of them")


def _wider_number(a: DataType, b: DataType) -> DataType:
    if is_floating(a) or is_floating(b):
        return pa.float64()  # also for float with int: an int does not fit in a float's 24 bits
    if a in INTEGERS and b in INTEGERS:
        return INTEGERS[max(INTEGERS.index(a), INTEGERS.index(b))]
    (precision_a, scale_a), (precision_b, scale_b) = digits(a), digits(b)
    scale = max(scale_a, scale_b)
    precision = max(precision_a - scale_a, precision_b - scale_b) + scale
    over = max(precision - MOST_DIGITS, 0)  # digits behind the point go before those in front
    return pa.decimal128(precision - over, max(scale - over, 0))


def digits(of: DataType) -> tuple[int, int]:
    """How many digits a decimal or whole number may have, and how many of them behind the point."""
    if of in INTEGERS:
        return (3, 5, 10, 20)[INTEGERS.index(of)], 0
    return of.precision, of.scale


def bounds(of: DataType) -> tuple[int, int]:
    half = 1 << (of.bit_width - 1)
    return -half, half - 1


def as_array(of: Datum, length: int) -> Datum:
    if not isinstance(of, pa.Scalar):
        return of
    return pa.repeat(of, length) if of.is_valid else pa.nulls(length, of.type)


def row_count(of: Datum) -> int:
    return 1 if isinstance(of, pa.Scalar) else len(of)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
