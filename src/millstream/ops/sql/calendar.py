"""Dates and instants moved along the calendar: intervals, months, weekdays, zones.

Whatever depends on a calendar goes by UTC. `AT TIME ZONE` gives the clock of another zone: an
instant whose year, day and hour in UTC are the local ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, by_row, elementwise, kernel
from millstream.ops.sql.coercion import fixed
from millstream.ops.sql.conversions import zone_of
from millstream.ops.sql.types import (
    DATE,
    MICROS,
    TIMESTAMP,
    DataType,
    Datum,
    ExpressionError,
    TypeMismatch,
    Types,
    as_array,
    row_count,
    to_micros,
    type_name,
)
from millstream.ops.zones import MAX_MICROS, MIN_MICROS, shown

DAY = 86_400 * MICROS
# How long the units are that do not depend on the calendar, and how many months the others.
LENGTHS = {
    "week": 7 * DAY,
    "day": DAY,
    "hour": 3_600 * MICROS,
    "minute": 60 * MICROS,
    "second": MICROS,
    "millisecond": 1_000,
    "microsecond": 1,
}
MONTHS = {"year": 12, "quarter": 3, "month": 1}
_FAR = "a time outside the years 1 to 9999"


# -- intervals ----------------------------------------------------------------------------------


def _moving(types: Types, months: int, micros: int) -> tuple[Types, DataType]:
    """A date stays one if it is moved by whole days or months."""
    (of,) = types
    if of == DATE:
        moved = TIMESTAMP if micros % DAY else DATE
        return (moved,), moved
    if of not in (TIMESTAMP, pa.null()):
        raise TypeMismatch(f"an INTERVAL goes with a date or a timestamp, not {type_name(of)}")
    return (TIMESTAMP,), TIMESTAMP


def _moved(args: Sequence[Datum], months: int, micros: int) -> Datum:
    (of,) = args
    if of.type == DATE:
        made = _in_months(_days(of), months) + micros // DAY
        return _as_dates(made, of)
    numbers = np.asarray(of.cast(pa.int64()).fill_null(0))
    return _as_moments(_later(numbers, months, micros), of)


def _later(moments: Any, months: Any, micros: Any) -> Any:
    days, rest = np.divmod(moments, DAY)
    if np.any(months):
        days = _in_months(days, months)
    if np.abs(days, dtype=np.float64).max(initial=0) * DAY > 2.0**62:
        raise ExpressionError(_FAR)
    return days * DAY + rest + micros


def _in_months(days: Any, months: Any) -> Any:
    """So many months later: the same day of the month, or the last one if there is no such."""
    at = days.astype("datetime64[D]")
    month = at.astype("datetime64[M]")
    nth = at - month.astype("datetime64[D]")
    there = month + np.asarray(months, np.int64).astype("timedelta64[M]")
    last = (there + np.timedelta64(1, "M")).astype("datetime64[D]") - np.timedelta64(1, "D")
    return np.minimum(there.astype("datetime64[D]") + nth, last).astype(np.int64)


def _days(of: Datum) -> Any:
    return np.asarray(of.cast(pa.int32()).fill_null(0)).astype(np.int64)


def _as_dates(days: Any, like: Datum) -> Datum:
    none = np.asarray(like.is_null())
    if ((days < MIN_MICROS // DAY) | (days > MAX_MICROS // DAY))[~none].any():
        raise ExpressionError(_FAR)
    return pa.array(days.astype(np.int32), pa.int32(), mask=none).cast(DATE)


def _as_moments(micros: Any, like: Datum) -> Datum:
    none = np.asarray(like.is_null())
    if ((micros < MIN_MICROS) | (micros > MAX_MICROS))[~none].any():
        raise ExpressionError(_FAR)
    return pa.array(micros, pa.int64(), mask=none).cast(TIMESTAMP)


# -- units: timestampadd and timestampdiff ------------------------------------------------------


def _added(args: Sequence[Datum], unit: str) -> Datum:
    of, count = _columns(args)
    numbers = np.asarray(of.cast(pa.int64()).fill_null(0))
    many = np.asarray(count.fill_null(0)).astype(np.int64)
    both = pc.if_else(count.is_valid(), of, pa.scalar(None, TIMESTAMP))
    if unit in MONTHS:
        return _as_moments(_later(numbers, many * MONTHS[unit], 0), both)
    if np.abs(many, dtype=np.float64).max(initial=0) * LENGTHS[unit] > 2.0**62:
        raise ExpressionError(_FAR)
    return _as_moments(numbers + many * LENGTHS[unit], both)


def _columns(args: Sequence[Datum]) -> list[Datum]:
    return [as_array(arg, max(map(row_count, args))) for arg in args]


def _between(args: Sequence[Datum], unit: str) -> Datum:
    if unit in MONTHS:
        return elementwise(lambda a, b: units_between(a, b, unit), pa.int64())(args)
    start, end = (arg.cast(pa.int64()) for arg in args)
    return pc.divide(pc.subtract_checked(end, start), LENGTHS[unit])


def units_between(start: datetime, end: datetime, unit: str) -> int:
    """Whole units from one to the other, towards zero."""
    if unit not in MONTHS:
        micros = to_micros(end) - to_micros(start)
        return abs(micros) // LENGTHS[unit] * (1 if micros >= 0 else -1)
    first, last = start.date(), end.date()
    if last > first and end.time() < start.time():
        last -= timedelta(days=1)
    elif last < first and end.time() > start.time():
        last += timedelta(days=1)
    # As Java counts: in months of 32 days, of which no day is before the first.
    days = [(one.year * 12 + one.month) * 32 + one.day for one in (first, last)]
    return int(int((days[1] - days[0]) / 32) / MONTHS[unit])


# -- dates --------------------------------------------------------------------------------------


def _date_moved(sign: int) -> Function:
    def vector(args: Sequence[Datum]) -> Datum:
        of, count = _columns(args)
        both = pc.if_else(count.is_valid(), of, pa.scalar(None, DATE))
        return _as_dates(_days(of) + sign * np.asarray(count.fill_null(0)).astype(np.int64), both)

    return Function(fixed(DATE, pa.int32(), result=DATE), vector)


def _months_added(args: Sequence[Datum]) -> Datum:
    of, count = _columns(args)
    both = pc.if_else(count.is_valid(), of, pa.scalar(None, DATE))
    months = np.asarray(count.fill_null(0)).astype(np.int64)
    return _as_dates(_in_months(_days(of), months), both)


def _last_days(args: Sequence[Datum]) -> Datum:
    (of,) = args
    month = _days(of).astype("datetime64[D]").astype("datetime64[M]") + np.timedelta64(1, "M")
    return _as_dates(month.astype("datetime64[D]").astype(np.int64) - 1, of)


def _days_between(args: Sequence[Datum]) -> Datum:
    end, start = (arg.cast(pa.int32()) for arg in args)
    return pc.subtract_checked(end, start)


def made_date(year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError as error:
        raise ExpressionError(f"make_date({year}, {month}, {day}): {error}") from None


# -- zones --------------------------------------------------------------------------------------


def _local(args: Sequence[Datum], zone: str) -> Datum:
    if "/" not in zone:
        return elementwise(local_time, TIMESTAMP)(args, zone)
    moments = np.asarray(args[0].cast(pa.int64()).fill_null(0))
    return _as_moments(shown(moments, zone), args[0])


def local_time(of: datetime, zone: str) -> datetime:
    return of.astimezone(zone_of(zone)).replace(tzinfo=UTC)


def instant_of(of: datetime, zone: str) -> datetime:
    """When clocks there show this: of two such moments the first; in a gap, as much later."""
    return of.replace(tzinfo=zone_of(zone), fold=0).astimezone(UTC)


_WHOLE = {"week_start": 7, "count_from_zero": False}
_INT = pa.int32()

FUNCTIONS: dict[str, Function] = {
    "+interval": Function(lambda types: _moving(types, 0, 0), _moved, shape=_moving),
    "timestampadd": Function(fixed(TIMESTAMP, pa.int64(), result=TIMESTAMP), _added),
    "timestampdiff": Function(fixed(TIMESTAMP, TIMESTAMP, result=pa.int64()), _between),
    "date_add": _date_moved(1),
    "date_sub": _date_moved(-1),
    "datediff": Function(fixed(DATE, DATE, result=_INT), _days_between),
    "add_months": Function(fixed(DATE, _INT, result=DATE), _months_added),
    "last_day": Function(fixed(DATE, result=DATE), _last_days),
    "make_date": by_row(made_date, _INT, _INT, _INT, result=DATE),
    "dayofweek": Function(fixed(DATE, result=_INT), lambda args: pc.day_of_week(args[0], **_WHOLE)),
    "weekday": Function(fixed(DATE, result=_INT), lambda args: pc.day_of_week(args[0])),
    "weekofyear": Function(fixed(DATE, result=_INT), kernel("iso_week")),
    "from_utc_timestamp": Function(fixed(TIMESTAMP, result=TIMESTAMP), _local),
    "to_utc_timestamp": by_row(instant_of, TIMESTAMP, result=TIMESTAMP),
}
