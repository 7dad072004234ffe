"""Numbers: the arithmetic operators, rounding, roots, powers and logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql import decimals
from millstream.ops.sql.applying import Function, elementwise, kernel
from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.coercion import all_of, arithmetic, operation, rounding, to_whole, whole
from millstream.ops.sql.types import (
    INTEGERS,
    MOST_DIGITS,
    Datum,
    ExpressionError,
    bounds,
    is_decimal,
    is_floating,
)


def _exactly(name: str, vector: Callable[[Sequence[Datum]], Datum]) -> Callable[..., Datum]:
    """A kernel for numbers, and one for decimals where Arrow's gives other digits than Spark."""

    def both(args: Sequence[Datum]) -> Datum:
        if not is_decimal(args[0].type):
            return vector(args)
        types = tuple(arg.type for arg in args)
        if name in "+-*" and decimals.digits_of(name, types) <= MOST_DIGITS:
            return vector(args)
        result = decimals.result_of(name, types)
        return elementwise(lambda x, y: decimals.fit(decimals.compute(name, x, y), result), result)(
            args
        )

    return both


def _whole_divide(args: Sequence[Datum]) -> Datum:
    if is_decimal(args[0].type):
        return elementwise(_checked_divide, pa.int64())(args)
    return pc.call_function("divide_checked", list(args))


def _checked_divide(x: Decimal, y: Decimal) -> int:
    whole = whole_divide(x, y)
    low, high = bounds(pa.int64())
    if not low <= whole <= high:
        raise ExpressionError("overflow")
    return whole


def _remainder(args: Sequence[Datum]) -> Datum:
    x, y = args
    if not is_floating(y.type):
        # MIN % -1 overflows in the kernel; the remainder by 1 is the same.
        y = pc.if_else(pc.equal(y, pa.scalar(-1, y.type)), pa.scalar(1, y.type), y)
    return pc.call_function("remainder_checked", [x, y])


def whole_divide(x: Any, y: Any) -> int:
    if y == 0:
        raise ExpressionError("divide by zero")
    if isinstance(x, Decimal):
        return int(decimals.compute("/", x, y).to_integral_value(ROUND_DOWN))
    return int(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))


def _round(args: Sequence[Datum], digits: int) -> Datum:
    (of,) = args
    if is_decimal(of.type):
        result = decimals.rounded_type(of.type, digits)
        if digits >= of.type.scale:
            return of.cast(result)
        return elementwise(decimals.round_half_up, result)(args, digits, result)
    if not is_floating(of.type):
        if digits >= 0:
            return of
        rounded = elementwise(round_value, pa.decimal128(38, 0))(args, digits)
        return rounded.cast(of.type)
    numbers = of.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    missing = np.asarray(of.is_null())
    return pa.array(_round_floats(numbers, digits), mask=missing).cast(of.type, safe=False)


def _round_floats(numbers: Any, digits: int) -> Any:
    """Half up on the shortest decimal text of a double, as Spark does: 2.675 becomes 2.68.

    Scaling by a power of ten decides all but the numbers that come close to a tie or are too
    large; those go through Decimal.
    """
    if not 0 <= digits <= 15:
        doubtful = np.ones(len(numbers), dtype=bool)
        out = numbers.copy()
    else:
        with np.errstate(all="ignore"):
            power = 10.0**digits
            scaled = np.abs(numbers) * power
            down = np.floor(scaled)
            distance = np.abs(scaled - down - 0.5)
            out = np.copysign(np.floor(scaled + 0.5) / power, numbers)
            # written so that NaN is doubtful too
            doubtful = ~((scaled < 2.0**50) & (distance > scaled * 2.0**-50))
    for at in np.flatnonzero(doubtful):
        out[at] = round_value(float(numbers[at]), digits)
    return out


def round_value(number: Any, digits: int) -> Any:
    if isinstance(number, float):
        if not math.isfinite(number) or digits > 330:
            return number
        return float(_half_up(Decimal(repr(number)), digits))
    if isinstance(number, Decimal):
        return number if digits > MOST_DIGITS else _half_up(number, digits)
    return number if digits >= 0 else int(_half_up(Decimal(number), digits))


def _half_up(number: Decimal, digits: int) -> Decimal:
    with localcontext() as context:
        context.prec = 800  # a double has up to 309 digits before the point, and 330 may be kept
        context.rounding = ROUND_HALF_UP
        return number.quantize(Decimal(1).scaleb(-digits))


def _to_whole(rounding: str) -> Callable[[Sequence[Datum]], Datum]:
    def vector(args: Sequence[Datum]) -> Datum:
        (of,) = args
        if of.type in INTEGERS:
            return of
        if is_decimal(of.type):  # which may need a digit more in front of the point
            wide = pa.decimal256(of.type.precision + 1, of.type.scale)
            return pc.call_function(rounding, [of.cast(wide)])
        near = pc.call_function(rounding, [of])
        near = pc.if_else(pc.is_nan(near), pa.scalar(0.0), near)  # Java's (long) NaN
        return cast_datum(near, pa.int64())

    return vector


def _logarithm(name: str) -> Callable[[Sequence[Datum]], Datum]:
    def vector(args: Sequence[Datum]) -> Datum:
        return pc.call_function(name, [_positive(args[0])])

    return vector


def _positive(of: Datum) -> Datum:
    # Spark gives NULL for the logarithm of what has none; NaN stays NaN.
    return pc.if_else(pc.less_equal(of, 0.0), pa.scalar(None, pa.float64()), of)


def _log_base(args: Sequence[Datum]) -> Datum:
    base, number = (pc.ln(_positive(arg)) for arg in args)
    return pc.divide(number, base)


def _power(args: Sequence[Datum]) -> Datum:
    base, exponent = args
    # C makes pow(±1, ±Infinity) and pow(1, NaN) one, Java makes them NaN.
    odd = pc.or_(pc.is_nan(exponent), pc.and_(pc.equal(pc.abs(base), 1.0), pc.is_inf(exponent)))
    return pc.if_else(odd, pa.scalar(math.nan), pc.power(base, exponent))


def _real(vector: Callable[..., Datum]) -> Function:
    return Function(all_of(pa.float64(), pa.float64()), vector)


def _operation(name: str, vector: Callable[..., Datum]) -> Function:
    return Function(operation(name), _exactly(name, vector))


FUNCTIONS: dict[str, Function] = {
    "+": _operation("+", kernel("add_checked")),
    "-": _operation("-", kernel("subtract_checked")),
    "*": _operation("*", kernel("multiply_checked")),
    "/": _operation("/", kernel("divide_checked")),
    "%": _operation("%", _remainder),
    "div": Function(whole, _whole_divide),
    "negative": Function(arithmetic, kernel("negate_checked")),
    "abs": Function(arithmetic, kernel("abs_checked")),
    "round": Function(arithmetic, _round, shape=rounding),
    "floor": Function(to_whole, _to_whole("floor")),
    "ceil": Function(to_whole, _to_whole("ceil")),
    "sqrt": _real(kernel("sqrt")),
    "exp": _real(kernel("exp")),
    "ln": _real(_logarithm("ln")),
    "log10": _real(_logarithm("log10")),
    "log2": _real(_logarithm("log2")),
    "log": _real(_log_base),
    "power": _real(_power),
    "sign": _real(kernel("sign")),
}
