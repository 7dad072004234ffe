"""Numbers: the arithmetic operators, rounding, roots, powers and logarithms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, elementwise, kernel
from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.coercion import all_of, arithmetic, quotient, to_whole, whole
from millstream.ops.sql.types import INTEGERS, Datum, ExpressionError, is_floating


def _remainder(args: Sequence[Datum]) -> Datum:
    x, y = args
    if not is_floating(y.type):
        # MIN % -1 overflows in the kernel; the remainder by 1 is the same.
        y = pc.if_else(pc.equal(y, pa.scalar(-1, y.type)), pa.scalar(1, y.type), y)
    return pc.call_function("remainder_checked", [x, y])


def _row_remainder(x: Any, y: Any) -> Any:
    if y == 0:
        raise ExpressionError("divide by zero")
    if isinstance(x, int):
        return int(math.copysign(1, x)) * (abs(x) % abs(y))
    return math.nan if math.isinf(x) or math.isnan(y) else math.fmod(x, y)


def _row_divide(x: float, y: float) -> float:
    if y == 0:
        raise ExpressionError("divide by zero")
    return x / y


def row_whole_divide(x: int, y: int) -> int:
    if y == 0:
        raise ExpressionError("divide by zero")
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _round(args: Sequence[Datum], digits: int) -> Datum:
    (of,) = args
    if not is_floating(of.type):
        if digits >= 0:
            return of
        rounded = elementwise(_row_round, pa.decimal128(38, 0))(args, digits)
        return rounded.cast(of.type)
    numbers = of.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return pa.array(_round_floats(numbers, digits), mask=_null_mask(of)).cast(of.type, safe=False)


def _null_mask(of: Datum) -> Any:
    return of.is_null().to_numpy(zero_copy_only=False)


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
        out[at] = _row_round(float(numbers[at]), digits)
    return out


def _row_round(number: Any, digits: int) -> Any:
    if isinstance(number, float):
        if not math.isfinite(number) or digits > 330:
            return number
        return float(_half_up(Decimal(repr(number)), digits))
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
        near = pc.call_function(rounding, [of])
        near = pc.if_else(pc.is_nan(near), pa.scalar(0.0), near)  # Java's (long) NaN
        return cast_datum(near, pa.int64())

    return vector


def _row_to_whole(rounding: Callable[[float], int]) -> Callable[[Any], int]:
    def scalar(number: Any) -> int:
        if isinstance(number, int):
            return number
        if math.isnan(number):
            return 0
        if math.isinf(number):
            raise ExpressionError("overflow")
        near = rounding(number)
        return near - 1 if near == 1 << 63 else near

    return scalar


def _logarithm(name: str) -> Callable[[Sequence[Datum]], Datum]:
    def vector(args: Sequence[Datum]) -> Datum:
        return pc.call_function(name, [_positive(args[0])])

    return vector


def _positive(of: Datum) -> Datum:
    # Spark gives NULL for the logarithm of what has none; NaN stays NaN.
    return pc.if_else(pc.less_equal(of, 0.0), pa.scalar(None, pa.float64()), of)


def _row_logarithm(log: Callable[[float], float]) -> Callable[[float], float | None]:
    return lambda number: None if number <= 0 else log(number)


def _log_base(args: Sequence[Datum]) -> Datum:
    base, number = (pc.ln(_positive(arg)) for arg in args)
    return pc.divide(number, base)


def _row_log_base(base: float, number: float) -> float | None:
    if base <= 0 or number <= 0:
        return None
    over, under = math.log(number), math.log(base)
    if under != 0:
        return over / under
    return math.nan if over == 0 or math.isnan(over) else math.copysign(math.inf, over)


def _power(args: Sequence[Datum]) -> Datum:
    base, exponent = args
    # C makes pow(±1, ±Infinity) and pow(1, NaN) one, Java makes them NaN.
    odd = pc.or_(
        pc.is_nan(exponent),
        pc.and_(pc.equal(pc.abs(base), 1.0), pc.is_inf(exponent)),
    )
    return pc.if_else(odd, pa.scalar(math.nan), pc.power(base, exponent))


def _row_power(base: float, exponent: float) -> float:
    if math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    odd = exponent % 2 == 1 if math.isfinite(exponent) else False
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:  # zero to a negative power, or a root of a negative number
        if base == 0:
            return math.copysign(math.inf, base) if odd else math.inf
        return math.nan


def _row_exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def _row_sign(number: float) -> float:
    return number if number == 0 or math.isnan(number) else math.copysign(1.0, number)


def _real(vector: Callable[..., Datum], scalar: Callable[..., float | None]) -> Function:
    return Function(all_of(pa.float64(), pa.float64()), vector, scalar)


FUNCTIONS: dict[str, Function] = {
    "+": Function(arithmetic, kernel("add_checked"), operator.add),
    "-": Function(arithmetic, kernel("subtract_checked"), operator.sub),
    "*": Function(arithmetic, kernel("multiply_checked"), operator.mul),
    "/": Function(quotient, kernel("divide_checked"), _row_divide),
    "%": Function(arithmetic, _remainder, _row_remainder),
    "div": Function(whole, kernel("divide_checked"), row_whole_divide),
    "negative": Function(arithmetic, kernel("negate_checked"), operator.neg),
    "abs": Function(arithmetic, kernel("abs_checked"), abs),
    "round": Function(arithmetic, _round, _row_round),
    "floor": Function(to_whole, _to_whole("floor"), _row_to_whole(math.floor)),
    "ceil": Function(to_whole, _to_whole("ceil"), _row_to_whole(math.ceil)),
    "sqrt": _real(kernel("sqrt"), lambda n: math.nan if n < 0 else math.sqrt(n)),
    "exp": _real(kernel("exp"), _row_exp),
    "ln": _real(_logarithm("ln"), _row_logarithm(math.log)),
    "log10": _real(_logarithm("log10"), _row_logarithm(math.log10)),
    "log2": _real(_logarithm("log2"), _row_logarithm(math.log2)),
    "log": _real(_log_base, _row_log_base),
    "power": _real(_power, _row_power),
    "sign": _real(kernel("sign"), _row_sign),
}
