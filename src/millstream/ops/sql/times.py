"""Times: their parts, cutting them to a unit, and counting them from 1970."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, elementwise, kernel
from millstream.ops.sql.arithmetic import row_whole_divide
from millstream.ops.sql.calendar import LENGTHS
from millstream.ops.sql.casts import floor_divide
from millstream.ops.sql.coercion import fixed
from millstream.ops.sql.types import (
    DATE,
    MICROS,
    TIMESTAMP,
    DataType,
    Datum,
    ExpressionError,
    bounds,
    from_micros,
    to_micros,
)

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


def _date_trunc(args: Sequence[Datum], unit: str) -> Datum:
    return pc.floor_temporal(args[0], unit=unit).cast(TIMESTAMP)


def _row_date_trunc(moment: datetime, unit: str) -> datetime:
    if unit in LENGTHS and unit != "week":
        micros = to_micros(moment)
        return from_micros(micros - micros % LENGTHS[unit])
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return midnight - timedelta(days=midnight.weekday())
    month = {"year": 1, "quarter": (moment.month - 1) // 3 * 3 + 1}.get(unit, moment.month)
    return midnight.replace(month=month, day=1)


def _trunc(args: Sequence[Datum], unit: str) -> Datum:
    return pc.floor_temporal(args[0], unit=unit).cast(DATE)


def _row_trunc(day: Any, unit: str) -> Any:
    return _row_date_trunc(datetime(day.year, day.month, day.day, tzinfo=UTC), unit).date()


def _row_seconds(moment: datetime) -> Decimal:
    return Decimal(moment.second * MICROS + moment.microsecond).scaleb(-6)


def _time_part(name: str, wanted: DataType, scalar: Callable[[Any], int]) -> Function:
    return Function(fixed(wanted, result=pa.int32()), kernel(name), scalar)


def _unix(unit: int) -> Function:
    return Function(
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: floor_divide(args[0].cast(pa.int64()), unit),
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


FUNCTIONS: dict[str, Function] = {
    "year": _time_part("year", DATE, lambda day: day.year),
    "quarter": _time_part("quarter", DATE, lambda day: (day.month + 2) // 3),
    "month": _time_part("month", DATE, lambda day: day.month),
    "day": _time_part("day", DATE, lambda day: day.day),
    "dayofyear": _time_part("day_of_year", DATE, lambda day: day.timetuple().tm_yday),
    "hour": _time_part("hour", TIMESTAMP, lambda moment: moment.hour),
    "minute": _time_part("minute", TIMESTAMP, lambda moment: moment.minute),
    "second": _time_part("second", TIMESTAMP, lambda moment: moment.second),
    "second.fraction": Function(  # what EXTRACT(SECOND ...) gives
        fixed(TIMESTAMP, result=pa.decimal128(8, 6)),
        elementwise(_row_seconds, pa.decimal128(8, 6)),
        _row_seconds,
    ),
    "trunc": Function(fixed(DATE, result=DATE), _trunc, _row_trunc),
    "date_trunc": Function(fixed(TIMESTAMP, result=TIMESTAMP), _date_trunc, _row_date_trunc),
    "unix_seconds": _unix(MICROS),
    "unix_timestamp": Function(  # unlike unix_seconds, cut towards zero before 1970
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: pc.divide(args[0].cast(pa.int64()), MICROS),
        lambda moment: row_whole_divide(to_micros(moment), MICROS),
    ),
    "unix_millis": _unix(1_000),
    "unix_micros": _unix(1),
    "timestamp_seconds": _from_unix(MICROS),
    "timestamp_millis": _from_unix(1_000),
    "timestamp_micros": _from_unix(1),
}
