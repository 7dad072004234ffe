"""`CAST` and `TRY_CAST` over a batch: by an Arrow kernel if one does as Spark, else by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.conversions import cast_value, require_castable
from millstream.ops.sql.decimals import unscaled
from millstream.ops.sql.types import (
    DATE,
    INTEGERS,
    MICROS,
    TIMESTAMP,
    DataType,
    Datum,
    ExpressionError,
    as_array,
    bounds,
    is_decimal,
    is_floating,
)

_EXACT_DIGITS = 15  # of a number that a double holds as it is


def cast_datum(of: Datum, target: DataType, lenient: bool = False) -> Datum:
    """`CAST`, or `TRY_CAST` if `lenient`."""
    source = of.type
    if source == target:
        return of
    require_castable(source, target)
    if isinstance(of, pa.Scalar):
        return cast_datum(as_array(of, 1), target, lenient)[0]
    if source == pa.null():
        return pa.nulls(len(of), target)
    try:
        fast = _cast_fast(of, source, target)
    except pa.ArrowInvalid:
        fast = None  # some value does not fit: go value by value, to name it or to make it NULL
    if fast is not None:
        return fast
    values = (_cast_one(v, source, target, lenient) for v in of.to_pylist())
    return pa.array(values, target)


def _cast_fast(of: Datum, source: DataType, target: DataType) -> Datum | None:
    """The cast by an Arrow kernel, or None (or ArrowInvalid) where no kernel does what Spark does.

    A kernel may refuse more than Spark does, never accept more.
    """
    if source == pa.string():
        return _cast_text_fast(of, target)
    if source == TIMESTAMP:
        return _cast_timestamp_fast(of, target)
    if is_decimal(source) or is_decimal(target):
        return _cast_decimal_fast(of, source, target)
    if target == pa.string():
        return None if is_floating(source) else of.cast(target)
    if target == pa.bool_():
        return pc.not_equal(of, pa.scalar(0, source))
    if target == TIMESTAMP:
        return of.cast(pa.timestamp("us")).cast(TIMESTAMP) if source == DATE else None
    if is_floating(target):
        return of.cast(target, safe=False)
    if is_floating(source):
        return _truncate(of, target)
    return of.cast(target)


def _cast_decimal_fast(of: Datum, source: DataType, target: DataType) -> Datum | None:
    """Between decimals and whole numbers where no digit is lost; to floats if that is exact."""
    whole = {*INTEGERS}
    if (is_decimal(source) or source in whole) and (is_decimal(target) or target in whole):
        return of.cast(target)
    if target == pa.float64() and source.precision <= _EXACT_DIGITS:
        there = np.asarray(of.is_valid())
        numbers = np.zeros(len(of))
        numbers[there] = np.array(unscaled(of), np.float64) / 10.0**source.scale
        return pa.array(numbers, mask=~there)
    return None


def _truncate(of: Datum, target: DataType) -> Datum | None:
    low, high = bounds(target)
    whole = pc.trunc(of)
    inside = pc.and_(pc.greater_equal(whole, float(low)), pc.less(whole, float(high + 1)))
    return whole.cast(target) if pc.all(inside, min_count=0).as_py() else None


def _cast_text_fast(of: Datum, target: DataType) -> Datum | None:
    if is_decimal(target):
        return None
    if target in INTEGERS:
        hexadecimal = pc.match_substring(of, "x", ignore_case=True)
        return None if pc.any(hexadecimal).as_py() else of.cast(target)
    if target == TIMESTAMP:
        return of.cast(pa.timestamp("us")).cast(TIMESTAMP)
    return of.cast(target)


def _cast_timestamp_fast(of: Datum, target: DataType) -> Datum | None:
    if target == DATE:
        return of.cast(DATE)
    if target in INTEGERS:
        return floor_divide(of.cast(pa.int64()), MICROS).cast(target)
    if is_floating(target):
        return pc.divide(of.cast(pa.int64()).cast(pa.float64(), safe=False), float(MICROS)).cast(
            target, safe=False
        )
    return None


def floor_divide(of: Datum, by: int) -> Datum:
    # Arrow truncates towards zero; before 1970 that is a unit off.
    above = pc.call_function("modulo", [of, pa.scalar(by, pa.int64())])
    return pc.divide(pc.subtract(of, above), by)


def _cast_one(value: Any, source: DataType, target: DataType, lenient: bool) -> Any:
    try:
        return cast_value(value, source, target)
    except ExpressionError:
        if lenient:
            return None
        raise
