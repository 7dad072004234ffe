"""Decimals: Spark's rules for how many digits a result has, and arithmetic exact up to them.

A result has as many digits as it may need, at most 38. Where more would be needed, digits behind
the point are given up (down to six) before those in front of it, and the last one is rounded half
up. What then still has too many digits in front of the point is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.sql.types import INTEGERS, MOST_DIGITS, DataType, ExpressionError, Types, digits

_LEAST_SCALE = 6  # digits behind the point that are kept where not all fit
_WIDE = Context(prec=160, rounding=ROUND_HALF_UP)
_OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _WIDE.add,
    "-": _WIDE.subtract,
    "*": _WIDE.multiply,
    "/": _WIDE.divide,
    "%": _WIDE.remainder,
}


def as_decimal(of: DataType) -> DataType:
    """The decimal that holds all values of a type."""
    return pa.decimal128(*digits(of)) if of in INTEGERS else of


def fitted(precision: int, scale: int) -> DataType:
    """A type for results of so many digits, of which some may have to be given up."""
    if precision <= MOST_DIGITS:
        return pa.decimal128(precision, scale)
    front = precision - scale
    return pa.decimal128(MOST_DIGITS, max(MOST_DIGITS - front, min(scale, _LEAST_SCALE)))


# How many digits an operator needs for two numbers of p and q digits, s and t of them behind the
# point; and how many of those are behind the point.
_NEEDED: dict[str, Callable[[int, int, int, int], tuple[int, int]]] = {
    "+": lambda p, s, q, t: (max(p - s, q - t) + max(s, t) + 1, max(s, t)),
    "-": lambda p, s, q, t: (max(p - s, q - t) + max(s, t) + 1, max(s, t)),
    "*": lambda p, s, q, t: (p + q + 1, s + t),
    "/": lambda p, s, q, t: (
        p - s + t + max(_LEAST_SCALE, s + q + 1),
        max(_LEAST_SCALE, s + q + 1),
    ),
    "%": lambda p, s, q, t: (min(p - s, q - t) + max(s, t), max(s, t)),
}


def digits_of(function: str, types: Types) -> int:
    """How many digits an operator would need for two decimals."""
    return _NEEDED[function](*digits(types[0]), *digits(types[1]))[0]


def result_of(function: str, types: Types) -> DataType:
    """The type of what an operator gives for two decimals."""
    return fitted(*_NEEDED[function](*digits(types[0]), *digits(types[1])))


def rounded_type(of: DataType, places: int) -> DataType:
    """The type of ROUND: one digit more in front of the point, which rounding up may need."""
    precision, scale = digits(of)
    if places < 0:
        return pa.decimal128(min(max(precision - scale + 1, 1 - places), MOST_DIGITS), 0)
    scale_now = min(scale, places)
    return pa.decimal128(min(precision - scale + 1 + scale_now, MOST_DIGITS), scale_now)


def fit(number: Decimal, of: DataType) -> Decimal:
    """A number with the digits of a type; an error if it has more in front of the point."""
    try:
        made = number.quantize(Decimal(1).scaleb(-of.scale), context=_WIDE)
    except InvalidOperation:
        made = None
    if made is None or made.copy_abs() >= Decimal(1).scaleb(of.precision - of.scale):
        raise ExpressionError(f"{number} does not fit in decimal({of.precision},{of.scale})")
    return made


def compute(function: str, x: Decimal, y: Decimal) -> Decimal:
    """One operation on two numbers, with more digits than any type has."""
    if function in "/%" and y == 0:
        raise ExpressionError("divide by zero")
    return _OPERATIONS[function](x, y)


def round_half_up(number: Decimal, places: int, result: DataType) -> Decimal:
    """ROUND of one number."""
    return fit(number.quantize(Decimal(1).scaleb(-places), context=_WIDE), result)


def unscaled(of: Any) -> list[int]:
    """The values that are there in whole numbers of their last digit."""
    low, high = _words(of)
    if np.array_equal(high, low.view(np.int64) >> 63):  # all of them fit in 64 bits
        return list(low.view(np.int64).tolist())
    return [(upper << 64) + lower for lower, upper in zip(low.tolist(), high.tolist(), strict=True)]


def limbs(of: Any) -> list[Any]:
    """The same as columns of 32 bits, the lowest first: so many can be added up without a carry."""
    low, high = _words(of)
    mask = np.uint64(0xFFFFFFFF)
    lower = [(low & mask).astype(np.int64), (low >> np.uint64(32)).astype(np.int64)]
    return [*lower, high & 0xFFFFFFFF, high >> 32]


def from_limbs(columns: Sequence[Any]) -> list[int]:
    """Whole numbers of sums of such columns."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [a + (b << 32) + (c << 64) + (d << 96) for a, b, c, d in rows]


def _words(of: Any) -> tuple[Any, Any]:
    """The lower and upper 64 bits of the values that are there."""
    whole = of.drop_null().cast(pa.decimal128(MOST_DIGITS, of.type.scale))
    words = np.frombuffer(whole.buffers()[1] or b"", np.int64)[2 * whole.offset :]
    return words[0 : 2 * len(whole) : 2].view(np.uint64), words[1 : 2 * len(whole) : 2]


def literal_type(number: Any) -> DataType:
    """The type of a number that stands in the text: as many digits as are written."""
    written = Decimal(number)
    _, figures, exponent = written.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    return pa.decimal128(min(max(len(figures) + max(exponent, 0), scale, 1), MOST_DIGITS), scale)
