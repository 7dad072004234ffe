"""What `CAST` makes of one Python value, as Spark reads and writes numbers, times and text.

This is the only cast there is on the oracle's side; `casts.py` falls back on it for the values that
no Arrow kernel converts as Spark does.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from millstream.ops.sql.decimals import fit
from millstream.ops.sql.types import (
    ATOMS,
    DATE,
    INTEGERS,
    MICROS,
    NUMBERS,
    TIMESTAMP,
    DataType,
    ExpressionError,
    TypeMismatch,
    bounds,
    from_micros,
    is_decimal,
    is_floating,
    to_micros,
    type_name,
)

# What may be cast to each type, but for decimals.
_CASTS: dict[DataType, frozenset[DataType]] = {
    **{t: NUMBERS | {pa.string(), pa.bool_(), TIMESTAMP} for t in NUMBERS},
    pa.string(): ATOMS | {pa.binary()},
    pa.bool_(): NUMBERS | {pa.string(), pa.bool_()},
    TIMESTAMP: NUMBERS | {pa.string(), DATE, TIMESTAMP},
    DATE: frozenset({pa.string(), TIMESTAMP, DATE}),
}
CAST_TARGETS = frozenset(_CASTS)


def require_castable(source: DataType, target: DataType) -> None:
    if source in (target, pa.null()) or source in _CASTS.get(target, ()):
        return
    exact = NUMBERS | {pa.string(), pa.bool_(), TIMESTAMP}
    if is_decimal(target) and (is_decimal(source) or source in exact):
        return
    if is_decimal(source) and target in exact:
        return
    raise TypeMismatch(f"cannot cast {type_name(source)} to {type_name(target)}")


def cast_value(value: Any, source: DataType, target: DataType) -> Any:
    """`CAST` of one Python value; the only cast there is on the oracle's side."""
    require_castable(source, target)
    if value is None or source == target:
        return value
    try:
        return _CONVERSIONS[_family(target)](value, source, target)
    except (ValueError, OverflowError, ArithmeticError):
        raise ExpressionError(
            f"cannot cast {value!r} ({type_name(source)}) to {type_name(target)}; "
            "TRY_CAST gives NULL instead"
        ) from None


def _family(target: DataType) -> str:
    if target in INTEGERS:
        return "integer"
    if is_floating(target):
        return "floating"
    return "decimal" if is_decimal(target) else type_name(target)


# What Spark strips from text before it reads it: ASCII blanks and controls, no other whitespace.
_BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOATING = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?[fd]?|inf|infinity|nan)", re.IGNORECASE
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,9})?", re.IGNORECASE)
_DATE = re.compile(r"([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?\s*(\S*))?)?)?"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_TRUTH = dict.fromkeys(("t", "true", "y", "yes", "1"), True) | dict.fromkeys(
    ("f", "false", "n", "no", "0"), False
)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise ValueError(text)
    return match


def _to_integer(value: Any, source: DataType, target: DataType) -> int:
    low, high = bounds(target)
    if source == pa.string():
        number = int(_matched(_INTEGER, value)[0])
    elif source == TIMESTAMP:
        number = to_micros(value) // MICROS
    else:
        number = math.trunc(value)
        if is_floating(source) and number == high + 1 and target == pa.int64():
            number = high  # Long.MaxValue is 2^63 as a double: Spark lets it pass
    if not low <= number <= high:
        raise OverflowError(number)
    return number


def _to_floating(value: Any, source: DataType, target: DataType) -> float:
    if source == pa.string():
        text = _matched(_FLOATING, value)[0].lower()
        number = float(text if text.endswith("inf") else text.rstrip("fd"))
    elif source == TIMESTAMP:
        number = float(to_micros(value)) / MICROS
    else:
        number = float(value)
    return to_float32(number) if target == pa.float32() else number


def to_float32(number: float) -> float:
    try:
        return cast(float, struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _to_text(value: Any, source: DataType, target: DataType) -> str:
    if source == pa.bool_():
        return "true" if value else "false"
    if is_floating(source):
        return _java_text(value, source)
    if source == TIMESTAMP:
        text = f"{value.replace(tzinfo=None, microsecond=0)}"
        return text + f".{value.microsecond:06d}".rstrip("0") if value.microsecond else text
    if source == pa.binary():
        return cast(str, value.decode())
    if is_decimal(source):
        return format(value, "f")
    return str(value)  # a date in ISO form, or a whole number


def _java_text(value: float, of: DataType) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    plain = 1e-3 <= abs(value) < 1e7
    if plain and of == pa.float64():
        return repr(value)
    text = repr(value) if of == pa.float64() else np.format_float_scientific(np.float32(value))
    sign, numbers, exponent = Decimal(text).as_tuple()
    digits = "".join(map(str, numbers)).rstrip("0") or "0"
    point = len(numbers) + cast(int, exponent)  # the value is 0.digits × 10^point
    prefix = "-" if sign else ""
    if value == 0:
        return prefix + "0.0"
    if plain:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{digits}"
        return f"{prefix}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    return f"{prefix}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _to_truth(value: Any, source: DataType, target: DataType) -> bool:
    if source != pa.string():
        return bool(value != 0)
    truth = _TRUTH.get(value.strip(_BLANKS).lower())
    if truth is None:
        raise ValueError(value)
    return truth


def _to_timestamp(value: Any, source: DataType, target: DataType) -> datetime:
    if source == DATE:
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if source == pa.string():
        return _read_timestamp(_matched(_TIMESTAMP, value))
    return from_micros(math.trunc(value * MICROS))


def _read_timestamp(match: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "")[:6].ljust(6, "0"))
    local = datetime(
        int(year),
        int(month or 1),
        int(day or 1),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        micros,
    )
    return local.replace(tzinfo=zone_of(zone or "Z")).astimezone(UTC)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        try:
            return ZoneInfo(name)
        except (KeyError, OSError):  # unknown names and names of directories
            raise ValueError(name) from None
    minutes = int(offset[2]) * 60 + int(offset[3] or 0)
    return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))


def _to_date(value: Any, source: DataType, target: DataType) -> date:
    if source == TIMESTAMP:
        return cast(date, value.date())
    year, month, day = _matched(_DATE, value).groups()
    return date(int(year), int(month or 1), int(day or 1))


def _to_decimal(value: Any, source: DataType, target: DataType) -> Decimal | None:
    if source == pa.string():
        return fit(Decimal(_matched(_NUMBER, value)[0]), target)
    if source == TIMESTAMP:
        value = float(to_micros(value)) / MICROS
    if isinstance(value, float):  # what is no number has no decimal
        return fit(Decimal(repr(value)), target) if math.isfinite(value) else None
    return fit(Decimal(value), target)


_CONVERSIONS: dict[str, Callable[[Any, DataType, DataType], Any]] = {
    "integer": _to_integer,
    "floating": _to_floating,
    "string": _to_text,
    "boolean": _to_truth,
    "timestamp": _to_timestamp,
    "date": _to_date,
    "decimal": _to_decimal,
}
