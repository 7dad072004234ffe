"""What SQL functions mean on one row of plain Python values, by their definition in Spark.

Those that the engine computes value by value as well (regular expressions, patterns of times, some
functions of text) are its own; Spark and DuckDB say what is right of these.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa

from millstream.ops.sql import calendar, decimals, patterns, text, timeformats
from millstream.ops.sql.arithmetic import round_value, whole_divide
from millstream.ops.sql.calendar import DAY, LENGTHS, MONTHS
from millstream.ops.sql.times import seconds_of
from millstream.ops.sql.types import MICROS, ExpressionError, bounds, from_micros, to_micros

_FAR = "a time outside the years 1 to 9999"


# -- comparisons --------------------------------------------------------------------------------


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _greater(x: Any, y: Any) -> bool:
    if _is_nan(x) or _is_nan(y):
        return _is_nan(x) and not _is_nan(y)
    return bool(x > y)


def _equal(x: Any, y: Any) -> bool:
    return (_is_nan(x) and _is_nan(y)) or bool(x == y)


def _null_safe_equal(x: Any, y: Any) -> bool:
    return x is y if x is None or y is None else _equal(x, y)


def _is_in(value: Any, *members: Any) -> bool | None:
    if value is None:
        return None
    if any(m is not None and _equal(value, m) for m in members):
        return True
    return None if None in members else False


def _extreme(values: Sequence[Any], better: Callable[[Any, Any], bool]) -> Any:
    present = [value for value in values if value is not None]
    return reduce(lambda a, b: b if better(b, a) else a, present) if present else None


# -- numbers ------------------------------------------------------------------------------------


def _exactly(name: str, scalar: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def both(x: Any, y: Any) -> Any:
        return decimals.compute(name, x, y) if isinstance(x, Decimal) else scalar(x, y)

    return both


def _remainder(x: Any, y: Any) -> Any:
    if y == 0:
        raise ExpressionError("divide by zero")
    if isinstance(x, int):
        return int(math.copysign(1, x)) * (abs(x) % abs(y))
    return math.nan if math.isinf(x) or math.isnan(y) else math.fmod(x, y)


def _divide(x: float, y: float) -> float:
    if y == 0:
        raise ExpressionError("divide by zero")
    return x / y


def _to_whole(rounding: Callable[[Any], int]) -> Callable[[Any], Any]:
    def scalar(number: Any) -> Any:
        if isinstance(number, int):
            return number
        if isinstance(number, Decimal):
            return Decimal(rounding(number))
        if math.isnan(number):
            return 0
        if math.isinf(number):
            raise ExpressionError("overflow")
        near = rounding(number)
        return near - 1 if near == 1 << 63 else near

    return scalar


def _logarithm(log: Callable[[float], float]) -> Callable[[float], float | None]:
    return lambda number: None if number <= 0 else log(number)


def _log_base(base: float, number: float) -> float | None:
    if base <= 0 or number <= 0:
        return None
    over, under = math.log(number), math.log(base)
    if under != 0:
        return over / under
    return math.nan if over == 0 or math.isnan(over) else math.copysign(math.inf, over)


def _power(base: float, exponent: float) -> float:
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


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def _negative(number: Any) -> Any:  # Decimal's own operators round to 28 digits
    return number.copy_negate() if isinstance(number, Decimal) else -number


def _abs(number: Any) -> Any:
    return number.copy_abs() if isinstance(number, Decimal) else abs(number)


def _sign(number: float) -> float:
    return number if number == 0 or math.isnan(number) else math.copysign(1.0, number)


# -- times --------------------------------------------------------------------------------------


def _date_trunc(moment: datetime, unit: str) -> datetime:
    if unit in LENGTHS and unit != "week":
        micros = to_micros(moment)
        return from_micros(micros - micros % LENGTHS[unit])
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    month = {"year": 1, "quarter": (moment.month - 1) // 3 * 3 + 1}.get(unit, moment.month)
    return midnight.replace(month=month, day=1)


def _trunc(day: Any, unit: str) -> Any:
    return _date_trunc(datetime(day.year, day.month, day.day, tzinfo=UTC), unit).date()


def _moment(micros: int) -> datetime:
    low, high = bounds(pa.int64())
    if not low <= micros <= high:
        raise ExpressionError("overflow")
    try:
        return from_micros(micros)
    except OverflowError:
        raise ExpressionError("a timestamp outside the years 1 to 9999") from None


def _moved(of: Any, months: int, micros: int) -> Any:
    try:
        moved = _in_months(of, months)
        return moved + timedelta(microseconds=micros)
    except (OverflowError, ValueError):
        raise ExpressionError(_FAR) from None


def _in_months(of: Any, months: int) -> Any:
    if not months:
        return of
    count = of.year * 12 + of.month - 1 + months
    year, month = count // 12, count % 12 + 1
    return of.replace(year=year, month=month, day=min(of.day, _last(year, month).day))


def _last(year: int, month: int) -> date:
    return date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)


def _added(of: datetime, count: int, unit: str) -> Any:
    if unit in MONTHS:
        return _moved(of, count * MONTHS[unit], 0)
    return _moved(of, 0, count * LENGTHS[unit])


def _element(of: Any, at: Any) -> Any:
    if isinstance(of, dict):
        return of.get(at)
    if not 0 <= at < len(of):
        raise ExpressionError("array index out of bounds")
    return of[at]


# Nulls are for these; all others are null if a value they get is.
TAKES_NULL = {"<=>", "in", "isnull", "isnan", "greatest", "least"}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "=": _equal,
    "<>": lambda x, y: not _equal(x, y),
    ">": _greater,
    "<": lambda x, y: _greater(y, x),
    ">=": lambda x, y: not _greater(y, x),
    "<=": lambda x, y: not _greater(x, y),
    "<=>": _null_safe_equal,
    "in": _is_in,
    "not": operator.not_,
    "isnull": lambda value: value is None,
    "isnan": _is_nan,
    "greatest": lambda *values: _extreme(values, _greater),
    "least": lambda *values: _extreme(values, lambda x, y: _greater(y, x)),
    "+": _exactly("+", operator.add),
    "-": _exactly("-", operator.sub),
    "*": _exactly("*", operator.mul),
    "/": _exactly("/", _divide),
    "%": _exactly("%", _remainder),
    "div": whole_divide,
    "negative": _negative,
    "abs": _abs,
    "round": round_value,
    "floor": _to_whole(math.floor),
    "ceil": _to_whole(math.ceil),
    "sqrt": lambda n: math.nan if n < 0 else math.sqrt(n),
    "exp": _exp,
    "ln": _logarithm(math.log),
    "log10": _logarithm(math.log10),
    "log2": _logarithm(math.log2),
    "log": _log_base,
    "power": _power,
    "sign": _sign,
    "upper": str.upper,
    "lower": str.lower,
    "length": len,
    "trim": str.strip,
    "ltrim": str.lstrip,
    "rtrim": str.rstrip,
    "substring": text._row_substring,
    "concat": lambda *parts: "".join(parts),
    "replace": text._row_replace,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
    "instr": lambda text, part: text.find(part) + 1,
    "lpad": text._row_lpad,
    "rpad": text._row_rpad,
    "split_part": text._row_split_part,
    "like": patterns._row_like,
    "rlike": patterns._row_rlike,
    "regexp_extract": patterns._row_regexp_extract,
    "regexp_replace": patterns._row_regexp_replace,
    "year": lambda day: day.year,
    "quarter": lambda day: (day.month + 2) // 3,
    "month": lambda day: day.month,
    "day": lambda day: day.day,
    "dayofyear": lambda day: day.timetuple().tm_yday,
    "hour": lambda moment: moment.hour,
    "minute": lambda moment: moment.minute,
    "second": lambda moment: moment.second,
    "second.fraction": seconds_of,
    "trunc": _trunc,
    "date_trunc": _date_trunc,
    "unix_seconds": lambda moment: to_micros(moment) // MICROS,
    "unix_timestamp": lambda moment: whole_divide(to_micros(moment), MICROS),
    "unix_millis": lambda moment: to_micros(moment) // 1_000,
    "unix_micros": to_micros,
    "timestamp_seconds": lambda count: _moment(count * MICROS),
    "timestamp_millis": lambda count: _moment(count * 1_000),
    "timestamp_micros": _moment,
    "+interval": _moved,
    "timestampadd": _added,
    "timestampdiff": calendar.units_between,
    "date_add": lambda of, count: _moved(of, 0, count * DAY),
    "date_sub": lambda of, count: _moved(of, 0, -count * DAY),
    "datediff": lambda end, start: (end - start).days,
    "add_months": lambda of, n: _moved(of, n, 0),
    "last_day": lambda of: _last(of.year, of.month),
    "make_date": calendar.made_date,
    "dayofweek": lambda of: of.isoweekday() % 7 + 1,
    "weekday": lambda of: of.weekday(),
    "weekofyear": lambda of: of.isocalendar().week,
    "from_utc_timestamp": calendar.local_time,
    "to_utc_timestamp": calendar.instant_of,
    "date_format": timeformats.written,
    "to_timestamp by": timeformats.read,
    "to_date by": lambda text, pattern: timeformats.read(text, pattern).date(),
    "unix_timestamp by": timeformats._seconds,
    "from_unixtime": timeformats._from_seconds,
    "element": _element,
    "size": len,
}
