"""The types, casts and functions that SQL expressions are lowered to.

`expressions.py` turns SQL into a tree that names functions of this module; Python workers run them
over Arrow batches, inside a stage's fused stateless chain. This module therefore never imports the
SQL parser.

Every function is written twice: `vector` on Arrow arrays, which is what runs, and `scalar` on plain
Python values, which is the oracle. The two share only the type rules (`coerce`), so that a slip in
one shows as a difference. The rules are Spark's in ANSI mode. Two kinds of function are computed
per value on both sides: those on regular expressions, because Python's `re` is closer to Java's
than RE2 is, and those that read or write numbers and times as text.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache, reduce
from itertools import repeat
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# pyarrow ships no type information: a Datum is a pa.Array or a pa.Scalar, a DataType a pa.DataType.
Datum = Any
DataType = Any
Types = tuple[DataType, ...]

TIMESTAMP = pa.timestamp("us", "UTC")
DATE = pa.date32()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MICROS = 1_000_000
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


class ExpressionError(ValueError):
    """A value cannot be computed: division by zero, overflow, a cast of text that does not fit."""


class TypeMismatch(Exception):
    """An expression is applied to types it has no meaning for; reported as a ConfigError."""


# --- types -------------------------------------------------------------------------------------


def type_name(of: DataType) -> str:
    return str(SQL_NAMES.get(of, of))


def is_floating(of: DataType) -> bool:
    return of in (pa.float32(), pa.float64())


def is_numeric(of: DataType) -> bool:
    return of in INTEGERS or is_floating(of) or pa.types.is_decimal(of)


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
    (precision_a, scale_a), (precision_b, scale_b) = _digits(a), _digits(b)
    scale = max(scale_a, scale_b)
    precision = max(precision_a - scale_a, precision_b - scale_b) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else pa.float64()


def _digits(of: DataType) -> tuple[int, int]:
    if of in INTEGERS:
        return (3, 5, 10, 19)[INTEGERS.index(of)], 0
    return of.precision, of.scale


def bounds(of: DataType) -> tuple[int, int]:
    half = 1 << (of.bit_width - 1)
    return -half, half - 1


# --- casts -------------------------------------------------------------------------------------

_NUMBERS = frozenset({*INTEGERS, pa.float32(), pa.float64()})
_ATOMS = frozenset(SQL_NAMES) - {pa.null()}
# What may be cast to each type; decimals are added to the sources of numbers and text.
_CASTS: dict[DataType, frozenset[DataType]] = {
    **{t: _NUMBERS | {pa.string(), pa.bool_(), TIMESTAMP} for t in _NUMBERS},
    pa.string(): _ATOMS | {pa.binary()},
    pa.bool_(): _NUMBERS | {pa.string(), pa.bool_()},
    TIMESTAMP: _NUMBERS | {pa.string(), DATE, TIMESTAMP},
    DATE: frozenset({pa.string(), TIMESTAMP, DATE}),
}
CAST_TARGETS = frozenset(_CASTS)


def require_castable(source: DataType, target: DataType) -> None:
    if source in (target, pa.null()) or source in _CASTS.get(target, ()):
        return
    if pa.types.is_decimal(target) and (pa.types.is_decimal(source) or source in INTEGERS):
        return
    if pa.types.is_decimal(source) and target in _NUMBERS | {pa.string()}:
        return
    raise TypeMismatch(f"cannot cast {type_name(source)} to {type_name(target)}")


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
    if target == pa.string():
        return None if is_floating(source) or pa.types.is_decimal(source) else of.cast(target)
    if target == pa.bool_():
        return pc.not_equal(of, pa.scalar(0, source))
    if target == TIMESTAMP:
        return of.cast(pa.timestamp("us")).cast(TIMESTAMP) if source == DATE else None
    if is_floating(target):
        return of.cast(target, safe=False)
    if is_floating(source):
        return _truncate(of, target)
    return of.cast(target)


def _truncate(of: Datum, target: DataType) -> Datum | None:
    low, high = bounds(target)
    whole = pc.trunc(of)
    inside = pc.and_(pc.greater_equal(whole, float(low)), pc.less(whole, float(high + 1)))
    return whole.cast(target) if pc.all(inside, min_count=0).as_py() else None


def _cast_text_fast(of: Datum, target: DataType) -> Datum | None:
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
        return _floor_divide(of.cast(pa.int64()), MICROS).cast(target)
    if is_floating(target):
        return pc.divide(of.cast(pa.int64()).cast(pa.float64(), safe=False), float(MICROS)).cast(
            target, safe=False
        )
    return None


def _floor_divide(of: Datum, by: int) -> Datum:
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
    return "decimal" if pa.types.is_decimal(target) else type_name(target)


# What Spark strips from text before it reads it: ASCII blanks and controls, no other whitespace.
_BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOATING = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?[fd]?|inf|infinity|nan)", re.IGNORECASE
)
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
    if pa.types.is_decimal(source):
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
    return local.replace(tzinfo=_zone(zone or "Z")).astimezone(UTC)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
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


def _to_decimal(value: Any, source: DataType, target: DataType) -> Decimal:
    return Decimal(value)


_CONVERSIONS: dict[str, Callable[[Any, DataType, DataType], Any]] = {
    "integer": _to_integer,
    "floating": _to_floating,
    "string": _to_text,
    "boolean": _to_truth,
    "timestamp": _to_timestamp,
    "date": _to_date,
    "decimal": _to_decimal,
}


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def to_float32(number: float) -> float:
    try:
        return cast(float, struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


# --- how functions are applied -----------------------------------------------------------------

Coerce = Callable[[Types], tuple[Types, DataType]]


@dataclass(frozen=True)
class Function:
    """One SQL function: its type rule, its kernel, and its meaning on one row.

    `vector(args, *params)` gets at least one array, `scalar(*values, *params)` only non-null
    values unless not `strict`; both get what `coerce` asks for.
    """

    coerce: Coerce
    vector: Callable[..., Datum]
    scalar: Callable[..., Any]
    strict: bool = True


def as_array(of: Datum, length: int) -> Datum:
    if not isinstance(of, pa.Scalar):
        return of
    return pa.repeat(of, length) if of.is_valid else pa.nulls(length, of.type)


def apply_vector(function: Function, args: Sequence[Datum], params: tuple[object, ...]) -> Datum:
    wanted, result = function.coerce(tuple(arg.type for arg in args))
    args = [cast_datum(arg, to) for arg, to in zip(args, wanted, strict=True)]
    constant = all(isinstance(arg, pa.Scalar) for arg in args)
    if constant:
        args = [as_array(arg, 1) for arg in args]
    try:
        out = function.vector(args, *params)
    except pa.ArrowInvalid as error:
        raise ExpressionError(str(error)) from None
    if out.type != result:
        out = out.cast(result)
    return out[0] if constant else out


def apply_scalar(
    function: Function, types: Types, values: Sequence[Any], params: tuple[object, ...]
) -> Any:
    wanted, result = function.coerce(types)
    values = [cast_value(*each) for each in zip(values, types, wanted, strict=True)]
    if function.strict and any(value is None for value in values):
        return None
    out = function.scalar(*values, *params)
    if out is not None and result in INTEGERS:
        low, high = bounds(result)
        if not low <= out <= high:
            raise ExpressionError("overflow")
    return to_float32(out) if out is not None and result == pa.float32() else out


def elementwise(scalar: Callable[..., Any], result: DataType) -> Callable[..., Datum]:
    """A kernel that calls `scalar` for every row without a null."""

    def vector(args: Sequence[Datum], *params: object) -> Datum:
        columns = [
            repeat(arg.as_py()) if isinstance(arg, pa.Scalar) else arg.to_pylist() for arg in args
        ]
        rows = zip(*columns, strict=False)  # a constant repeats for ever
        return pa.array(
            (None if any(v is None for v in row) else scalar(*row, *params) for row in rows),
            result,
        )

    return vector


def constants(args: Sequence[Datum]) -> list[Any] | None:
    """The values of `args` if all are constant and not null, which kernels with options need."""
    if all(isinstance(arg, pa.Scalar) and arg.is_valid for arg in args):
        return [arg.as_py() for arg in args]
    return None


def with_options(
    kernel: Callable[..., Datum | None], scalar: Callable[..., Any], result: DataType
) -> Callable[..., Datum]:
    """`kernel(array, *constants)` where it can do it (does not give None), else row by row."""
    slow = elementwise(scalar, result)

    def vector(args: Sequence[Datum], *params: object) -> Datum:
        options = None if isinstance(args[0], pa.Scalar) else constants(args[1:])
        fast = None if options is None else kernel(args[0], *options, *params)
        return slow(args, *params) if fast is None else fast

    return vector


def kernel(name: str) -> Callable[..., Datum]:
    return lambda args: pc.call_function(name, list(args))


# --- type rules --------------------------------------------------------------------------------


# What is turned into each type without a CAST, besides void and the type itself.
_IMPLICIT: dict[DataType, frozenset[DataType]] = {
    pa.string(): _ATOMS,
    pa.bool_(): frozenset({pa.string()}),
    pa.int32(): frozenset({*INTEGERS, pa.string()}),
    pa.int64(): frozenset({*INTEGERS, pa.string()}),
    pa.float64(): _NUMBERS | {pa.string()},
    TIMESTAMP: frozenset({pa.string(), DATE}),
    DATE: frozenset({pa.string(), TIMESTAMP}),
}


def fixed(*wanted: DataType, result: DataType) -> Coerce:
    def coerce(types: Types) -> tuple[Types, DataType]:
        for source, target in zip(types, wanted, strict=False):
            require_implicit(source, target)
        return wanted[: len(types)], result

    return coerce


def all_of(wanted: DataType, result: DataType) -> Coerce:
    return lambda types: fixed(*(wanted,) * len(types), result=result)(types)


def require_implicit(source: DataType, target: DataType) -> None:
    if source in (target, pa.null()) or source in _IMPLICIT[target]:
        return
    if pa.types.is_decimal(source) and target in (pa.float64(), pa.string()):
        return
    raise TypeMismatch(f"{type_name(target)} is needed, not {type_name(source)}")


def alike(types: Types) -> tuple[Types, DataType]:
    """Any types that order; compared as their common type."""
    common = common_type(types)
    if common == pa.null():
        common = pa.bool_()
    if common not in _ATOMS and not pa.types.is_decimal(common) and common != pa.binary():
        raise TypeMismatch(f"{type_name(common)} cannot be compared")
    return (common,) * len(types), pa.bool_()


def extreme(types: Types) -> tuple[Types, DataType]:
    common = common_type(types, promote_strings=False)
    alike((common,))
    return (common,) * len(types), common


def arithmetic(types: Types) -> tuple[Types, DataType]:
    common = common_type(types)
    if len(types) == 1 and common == pa.string():
        common = pa.float64()
    _require_number(common)
    common = pa.float64() if common == pa.null() else common
    return (common,) * len(types), common


def _require_number(of: DataType) -> None:
    if pa.types.is_decimal(of):
        raise TypeMismatch("decimal arithmetic is not supported: CAST(... AS DOUBLE) or .map(fn)")
    if not is_numeric(of) and of != pa.null():
        raise TypeMismatch(f"a number is needed, not {type_name(of)}")


def quotient(types: Types) -> tuple[Types, DataType]:
    arithmetic(types)
    return (pa.float64(),) * len(types), pa.float64()


def whole(types: Types) -> tuple[Types, DataType]:
    common = common_type(types)
    if common not in INTEGERS and common != pa.null():
        raise TypeMismatch(f"DIV needs whole numbers, not {type_name(common)}")
    return (pa.int64(),) * len(types), pa.int64()


def to_whole(types: Types) -> tuple[Types, DataType]:
    _, source = arithmetic(types)
    return (source if source in INTEGERS else pa.float64(),), pa.int64()


def anything(result: DataType) -> Coerce:
    return lambda types: (types, result)


def list_size(types: Types) -> tuple[Types, DataType]:
    if not (pa.types.is_list(types[0]) or pa.types.is_map(types[0])):
        raise TypeMismatch(f"an array or a map is needed, not {type_name(types[0])}")
    return types, pa.int32()


def element(types: Types) -> tuple[Types, DataType]:
    if pa.types.is_map(types[0]):
        return (types[0], types[0].key_type), types[0].item_type
    if not pa.types.is_list(types[0]):
        raise TypeMismatch(f"[...] needs an array or a map, not {type_name(types[0])}")
    return (types[0], pa.int64()), types[0].value_type


# --- comparison --------------------------------------------------------------------------------
# NaN equals NaN and is greater than every other number. IEEE comparisons with NaN are false, so
# against a constant that is not NaN the right operator, or the negation of its opposite, is right
# as it is: that keeps `price > 0` as fast as the bare kernel.


def _never_nan(of: Datum) -> bool:
    if not is_floating(of.type):
        return True
    return isinstance(of, pa.Scalar) and not (of.is_valid and math.isnan(of.as_py()))


def _greater(x: Datum, y: Datum) -> Datum:
    if not is_floating(x.type) or _never_nan(x):
        return pc.greater(x, y)
    below = pc.invert(pc.less_equal(x, y))
    return below if _never_nan(y) else pc.and_(below, pc.invert(pc.is_nan(y)))


def _equal(x: Datum, y: Datum) -> Datum:
    same = pc.equal(x, y)
    if _never_nan(x) or _never_nan(y):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(x), pc.is_nan(y)))


def _null_safe_equal(x: Datum, y: Datum) -> Datum:
    both_null = pc.and_(pc.is_null(x), pc.is_null(y))
    return pc.coalesce(_equal(x, y), both_null)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _row_greater(x: Any, y: Any) -> bool:
    if _is_nan(x) or _is_nan(y):
        return _is_nan(x) and not _is_nan(y)
    return bool(x > y)


def _row_equal(x: Any, y: Any) -> bool:
    return (_is_nan(x) and _is_nan(y)) or bool(x == y)


def _row_null_safe_equal(x: Any, y: Any) -> bool:
    return x is y if x is None or y is None else _row_equal(x, y)


def _is_in(args: Sequence[Datum]) -> Datum:
    value, *members = args
    if not is_floating(value.type) and all(isinstance(m, pa.Scalar) for m in members):
        known = pa.array([m.as_py() for m in members if m.is_valid], value.type)
        found = pc.if_else(pc.is_valid(value), pc.is_in(value, known), pa.scalar(None, pa.bool_()))
        if len(known) == len(members):
            return found
        return pc.or_kleene(found, pa.scalar(None, pa.bool_()))
    return reduce(pc.or_kleene, (_equal(value, member) for member in members))


def _row_is_in(value: Any, *members: Any) -> bool | None:
    if value is None:
        return None
    if any(m is not None and _row_equal(value, m) for m in members):
        return True
    return None if None in members else False


def _extreme(args: Sequence[Datum], better: Callable[[Datum, Datum], Datum]) -> Datum:
    def pick(best: Datum, other: Datum) -> Datum:
        return pc.if_else(pc.coalesce(better(other, best), pc.is_valid(other)), other, best)

    if args[0].type == pa.null():  # nulls do not compare, not even to NULL
        return pa.nulls(max(map(_length, args)))
    return reduce(pick, args)


def _row_extreme(values: Sequence[Any], better: Callable[[Any, Any], bool]) -> Any:
    present = [value for value in values if value is not None]
    return reduce(lambda a, b: b if better(b, a) else a, present) if present else None


def _is_nan_vector(args: Sequence[Datum]) -> Datum:
    return pc.fill_null(pc.is_nan(args[0]), False)


# --- numbers -----------------------------------------------------------------------------------


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


def _row_whole_divide(x: int, y: int) -> int:
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


# --- text --------------------------------------------------------------------------------------


def _ascii(of: Datum) -> bool:
    return bool(pc.all(pc.string_is_ascii(of), min_count=0).as_py())


def _change_case(ascii_kernel: str, scalar: Callable[[str], str]) -> Callable[..., Datum]:
    # Arrow maps single characters; Java, like Python, maps ß to SS.
    slow = elementwise(scalar, pa.string())

    def vector(args: Sequence[Datum]) -> Datum:
        return pc.call_function(ascii_kernel, list(args)) if _ascii(args[0]) else slow(args)

    return vector


def _trim(side: str) -> Function:
    strip = {"": str.strip, "l": str.lstrip, "r": str.rstrip}[side]
    trim = getattr(pc, f"utf8_{side}trim")
    return Function(
        all_of(pa.string(), pa.string()),
        with_options(lambda of, chars: trim(of, characters=chars), strip, pa.string()),
        strip,
    )


def _row_substring(text: str, start: int, length: int | None = None) -> str:
    begin = start - 1 if start > 0 else (len(text) + start if start < 0 else 0)
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _substring(of: Datum, start: int, length: int | None = None) -> Datum:
    begin = start - 1 if start > 0 else start
    if length is None:
        return pc.utf8_slice_codeunits(of, begin)
    if length <= 0:
        return pc.utf8_slice_codeunits(of, 0, 0)
    end = begin + length
    return pc.utf8_slice_codeunits(of, begin, None if begin < 0 <= end else end)


def _concat(args: Sequence[Datum]) -> Datum:
    return pc.binary_join_element_wise(*args, pa.scalar(""), null_handling="emit_null")


def _replace(of: Datum, old: str, new: str) -> Datum:
    return pc.replace_substring(of, old, new) if old else of


def _row_replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _position(of: Datum, part: str) -> Datum | None:
    # The kernel counts bytes.
    return pc.add(pc.find_substring(of, part), 1) if _ascii(of) else None


def _row_split_part(text: str, delimiter: str, number: int) -> str:
    if number == 0:
        raise ExpressionError("SPLIT_PART counts parts from 1, or from -1 backwards; 0 is no part")
    parts = text.split(delimiter) if delimiter else [text]
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


@lru_cache(maxsize=1024)
def like_parts(pattern: str, escape: str) -> tuple[str | None, ...]:
    """A LIKE pattern as literal characters, "%%" for any run and None for any one character."""
    parts: list[str | None] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None or literal not in ("%", "_", escape):
                raise ExpressionError(
                    f"LIKE pattern {pattern!r}: the escape {escape!r} must be followed by %, _ "
                    "or itself"
                )
            parts.append(literal)
        else:
            parts.append({"%": "%%", "_": None}.get(character, character))
    return tuple(parts)


def _like(of: Datum, pattern: str, escape: str) -> Datum:
    parts = like_parts(pattern, escape)
    literal = "".join(part for part in parts if part and part != "%%")
    runs = [at for at, part in enumerate(parts) if part == "%%"]
    if None not in parts:
        if not runs:
            return pc.equal(of, literal)
        if runs == [len(parts) - 1]:
            return pc.starts_with(of, literal)
        if runs == [0]:
            return pc.ends_with(of, literal)
        if runs == [0, len(parts) - 1]:
            return pc.match_substring(of, literal)
    return pc.match_substring_regex(of, rf"(?s)\A{''.join(map(_re2, parts))}\z")


def _re2(part: str | None) -> str:
    return "." if part is None else ".*" if part == "%%" else f"\\x{{{ord(part):x}}}"


def _row_like(text: str, pattern: str, escape: str) -> bool:
    """Every way to match is followed at once: `ends` are the lengths of text matched so far."""
    ends = {0}
    for part in like_parts(pattern, escape):
        if part == "%%":
            ends = set(range(min(ends), len(text) + 1)) if ends else ends
        else:
            ends = {e + 1 for e in ends if e < len(text) and part in (None, text[e])}
    return len(text) in ends


@lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> re.Pattern[str]:
    """A Java pattern for Python: classes are ASCII, and groups are named with a P."""
    try:
        return re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
    except (re.error, RecursionError) as error:
        raise ExpressionError(f"bad regular expression {pattern!r}: {error}") from None


def _row_rlike(text: str, pattern: str) -> bool:
    return compile_regex(pattern).search(text) is not None


def _row_regexp_extract(text: str, pattern: str, group: int) -> str:
    regex = compile_regex(pattern)
    if not 0 <= group <= regex.groups:
        raise ExpressionError(f"regular expression {pattern!r} has no group {group}")
    match = regex.search(text)
    return (match[group] or "") if match else ""


_REPLACEMENT = re.compile(r"\\(.)|\$\{(\w+)\}|\$(\d)|([^\\$]+)", re.ASCII | re.DOTALL)


@lru_cache(maxsize=1024)
def compile_replacement(text: str) -> tuple[str | int, ...]:
    """A Java replacement as group numbers and literal text; groups by name are not supported."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        match = _REPLACEMENT.match(text, at)
        if match is None or match[2]:
            raise ExpressionError(f"bad replacement {text!r}: use $1 for a group, \\$ for a $")
        parts.append(int(match[3]) if match[3] else match[1] or match[4])
        at = match.end()
    return tuple(parts)


def _row_regexp_replace(text: str, pattern: str, replacement: str) -> str:
    regex, parts = compile_regex(pattern), compile_replacement(replacement)
    highest = max((part for part in parts if isinstance(part, int)), default=0)
    if highest > regex.groups:
        raise ExpressionError(f"regular expression {pattern!r} has no group {highest}")

    def expand(match: re.Match[str]) -> str:
        return "".join(p if isinstance(p, str) else match[p] or "" for p in parts)

    return regex.sub(expand, text)


# --- times -------------------------------------------------------------------------------------

# Arrow's unit for each name that DATE_TRUNC takes.
TRUNC_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MM", "MON"), "month"),
    "WEEK": "week",
    **dict.fromkeys(("DAY", "DD"), "day"),
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
    "MILLISECOND": "millisecond",
    "MICROSECOND": "microsecond",
}
_UNIT_MICROS = {
    "day": 86_400 * MICROS,
    "hour": 3_600 * MICROS,
    "minute": 60 * MICROS,
    "second": MICROS,
    "millisecond": 1_000,
    "microsecond": 1,
}


def _date_trunc(args: Sequence[Datum], unit: str) -> Datum:
    return pc.floor_temporal(args[0], unit=unit).cast(TIMESTAMP)


def _row_date_trunc(moment: datetime, unit: str) -> datetime:
    if unit in _UNIT_MICROS:
        micros = to_micros(moment)
        return from_micros(micros - micros % _UNIT_MICROS[unit])
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    month = {"year": 1, "quarter": (moment.month - 1) // 3 * 3 + 1}.get(unit, moment.month)
    return midnight.replace(month=month, day=1)


def _time_part(name: str, wanted: DataType, scalar: Callable[[Any], int]) -> Function:
    return Function(fixed(wanted, result=pa.int32()), kernel(name), scalar)


def _unix(unit: int) -> Function:
    return Function(
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: _floor_divide(args[0].cast(pa.int64()), unit),
        lambda moment: to_micros(moment) // unit,
    )


def _from_unix(unit: int) -> Function:
    return Function(
        fixed(pa.int64(), result=TIMESTAMP),
        lambda args: pc.multiply_checked(args[0], unit).cast(TIMESTAMP),
        lambda count: _moment(count * unit),
    )


def _moment(micros: int) -> datetime:
    low, high = bounds(pa.int64())
    if not low <= micros <= high:
        raise ExpressionError("overflow")
    try:
        return from_micros(micros)
    except OverflowError:
        raise ExpressionError("a timestamp outside the years 1 to 9999") from None


# --- arrays and maps ---------------------------------------------------------------------------


def _element(args: Sequence[Datum]) -> Datum:
    of, at = (as_array(arg, max(map(_length, args))) for arg in args)
    if pa.types.is_map(of.type):
        found = elementwise(lambda pairs, key: dict(pairs).get(key), of.type.item_type)
        return found((of, at))
    outside = pc.or_(pc.less(at, 0), pc.greater_equal(at, pc.list_value_length(of)))
    if pc.any(outside).as_py():
        raise ExpressionError("array index out of bounds")
    starts = of.offsets[:-1].cast(pa.int64())
    # An array or an index that is null makes the position null, and the taken value with it.
    return of.values.take(pc.if_else(of.is_valid(), pc.add(starts, at), None))


def _size(args: Sequence[Datum]) -> Datum:
    (of,) = args
    sizes = pc.subtract(of.offsets[1:], of.offsets[:-1])  # there is no kernel for maps
    return pc.if_else(of.is_valid(), sizes, pa.scalar(None, sizes.type))


def _length(of: Datum) -> int:
    return 1 if isinstance(of, pa.Scalar) else len(of)


def _row_element(of: Any, at: Any) -> Any:
    if isinstance(of, dict):
        return of.get(at)
    if not 0 <= at < len(of):
        raise ExpressionError("array index out of bounds")
    return of[at]


# --- the table of functions --------------------------------------------------------------------

_STRING, _DOUBLE, _BOOL = pa.string(), pa.float64(), pa.bool_()


def _comparison(
    vector: Callable[[Datum, Datum], Datum], scalar: Callable[[Any, Any], bool], strict: bool = True
) -> Function:
    return Function(alike, lambda args: vector(*args), scalar, strict)


def _text_test(vector: Callable[..., Datum], scalar: Callable[..., bool]) -> Function:
    return Function(all_of(_STRING, _BOOL), with_options(vector, scalar, _BOOL), scalar)


def _text_slow(scalar: Callable[..., Any], *wanted: DataType, result: DataType) -> Function:
    return Function(fixed(*wanted, result=result), elementwise(scalar, result), scalar)


def _real(vector: Callable[..., Datum], scalar: Callable[..., float | None]) -> Function:
    return Function(all_of(_DOUBLE, _DOUBLE), vector, scalar)


FUNCTIONS: dict[str, Function] = {
    "=": _comparison(_equal, _row_equal),
    "<>": _comparison(lambda x, y: pc.invert(_equal(x, y)), lambda x, y: not _row_equal(x, y)),
    ">": _comparison(_greater, _row_greater),
    "<": _comparison(lambda x, y: _greater(y, x), lambda x, y: _row_greater(y, x)),
    ">=": _comparison(lambda x, y: pc.invert(_greater(y, x)), lambda x, y: not _row_greater(y, x)),
    "<=": _comparison(lambda x, y: pc.invert(_greater(x, y)), lambda x, y: not _row_greater(x, y)),
    "<=>": _comparison(_null_safe_equal, _row_null_safe_equal, strict=False),
    "in": Function(alike, _is_in, _row_is_in, strict=False),
    "not": Function(all_of(_BOOL, _BOOL), kernel("invert"), operator.not_),
    "isnull": Function(
        anything(_BOOL), lambda args: pc.is_null(args[0]), lambda v: v is None, strict=False
    ),
    "isnan": Function(fixed(_DOUBLE, result=_BOOL), _is_nan_vector, _is_nan, strict=False),
    "greatest": Function(
        extreme,
        lambda args: _extreme(args, _greater),
        lambda *values: _row_extreme(values, _row_greater),
        strict=False,
    ),
    "least": Function(
        extreme,
        lambda args: _extreme(args, lambda x, y: _greater(y, x)),
        lambda *values: _row_extreme(values, lambda x, y: _row_greater(y, x)),
        strict=False,
    ),
    "+": Function(arithmetic, kernel("add_checked"), operator.add),
    "-": Function(arithmetic, kernel("subtract_checked"), operator.sub),
    "*": Function(arithmetic, kernel("multiply_checked"), operator.mul),
    "/": Function(quotient, kernel("divide_checked"), _row_divide),
    "%": Function(arithmetic, _remainder, _row_remainder),
    "div": Function(whole, kernel("divide_checked"), _row_whole_divide),
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
    "upper": Function(
        fixed(_STRING, result=_STRING), _change_case("ascii_upper", str.upper), str.upper
    ),
    "lower": Function(
        fixed(_STRING, result=_STRING), _change_case("ascii_lower", str.lower), str.lower
    ),
    "length": Function(fixed(_STRING, result=pa.int32()), kernel("utf8_length"), len),
    "trim": _trim(""),
    "ltrim": _trim("l"),
    "rtrim": _trim("r"),
    "substring": Function(
        fixed(_STRING, pa.int32(), pa.int32(), result=_STRING),
        with_options(_substring, _row_substring, _STRING),
        _row_substring,
    ),
    "concat": Function(all_of(_STRING, _STRING), _concat, lambda *parts: "".join(parts)),
    "replace": Function(
        all_of(_STRING, _STRING), with_options(_replace, _row_replace, _STRING), _row_replace
    ),
    "startswith": _text_test(pc.starts_with, str.startswith),
    "endswith": _text_test(pc.ends_with, str.endswith),
    "contains": _text_test(pc.match_substring, operator.contains),
    "like": _text_test(_like, _row_like),
    "rlike": _text_slow(_row_rlike, _STRING, _STRING, result=_BOOL),
    "instr": Function(
        all_of(_STRING, pa.int32()),
        with_options(_position, lambda text, part: text.find(part) + 1, pa.int32()),
        lambda text, part: text.find(part) + 1,
    ),
    "split_part": _text_slow(_row_split_part, _STRING, _STRING, pa.int32(), result=_STRING),
    "regexp_extract": _text_slow(_row_regexp_extract, _STRING, _STRING, pa.int32(), result=_STRING),
    "regexp_replace": _text_slow(_row_regexp_replace, _STRING, _STRING, _STRING, result=_STRING),
    "year": _time_part("year", DATE, lambda day: day.year),
    "quarter": _time_part("quarter", DATE, lambda day: (day.month + 2) // 3),
    "month": _time_part("month", DATE, lambda day: day.month),
    "day": _time_part("day", DATE, lambda day: day.day),
    "dayofyear": _time_part("day_of_year", DATE, lambda day: day.timetuple().tm_yday),
    "hour": _time_part("hour", TIMESTAMP, lambda moment: moment.hour),
    "minute": _time_part("minute", TIMESTAMP, lambda moment: moment.minute),
    "second": _time_part("second", TIMESTAMP, lambda moment: moment.second),
    "date_trunc": Function(fixed(TIMESTAMP, result=TIMESTAMP), _date_trunc, _row_date_trunc),
    "unix_seconds": _unix(MICROS),
    "unix_timestamp": Function(  # unlike unix_seconds, cut towards zero before 1970
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: pc.divide(args[0].cast(pa.int64()), MICROS),
        lambda moment: _row_whole_divide(to_micros(moment), MICROS),
    ),
    "unix_millis": _unix(1_000),
    "unix_micros": _unix(1),
    "timestamp_seconds": _from_unix(MICROS),
    "timestamp_millis": _from_unix(1_000),
    "timestamp_micros": _from_unix(1),
    "element": Function(element, _element, _row_element),
    "size": Function(list_size, _size, len),
}
