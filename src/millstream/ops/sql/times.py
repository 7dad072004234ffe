"""Times: their parts, cutting them to a unit, and counting them from 1970."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, by_row, kernel
from millstream.ops.sql.casts import floor_divide
from millstream.ops.sql.coercion import fixed
from millstream.ops.sql.types import DATE, MICROS, TIMESTAMP, DataType, Datum

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


def _cut(args: Sequence[Datum], unit: str) -> Datum:
    return pc.floor_temporal(args[0], unit=unit)


def seconds_of(moment: datetime) -> Decimal:
    return Decimal(moment.second * MICROS + moment.microsecond).scaleb(-6)


def _time_part(name: str, wanted: DataType) -> Function:
    return Function(fixed(wanted, result=pa.int32()), kernel(name))


def _unix(unit: int) -> Function:
    return Function(
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: floor_divide(args[0].cast(pa.int64()), unit),
    )


def _from_unix(unit: int) -> Function:
    return Function(
        fixed(pa.int64(), result=TIMESTAMP),
        lambda args: pc.multiply_checked(args[0], unit).cast(TIMESTAMP),
    )


FUNCTIONS: dict[str, Function] = {
    "year": _time_part("year", DATE),
    "quarter": _time_part("quarter", DATE),
    "month": _time_part("month", DATE),
    "day": _time_part("day", DATE),
    "dayofyear": _time_part("day_of_year", DATE),
    "hour": _time_part("hour", TIMESTAMP),
    "minute": _time_part("minute", TIMESTAMP),
    "second": _time_part("second", TIMESTAMP),
    # What EXTRACT(SECOND ...) gives.
    "second.fraction": by_row(seconds_of, TIMESTAMP, result=pa.decimal128(8, 6)),
    "trunc": Function(fixed(DATE, result=DATE), _cut),
    "date_trunc": Function(fixed(TIMESTAMP, result=TIMESTAMP), _cut),
    "unix_seconds": _unix(MICROS),
    "unix_timestamp": Function(  # unlike unix_seconds, cut towards zero before 1970
        fixed(TIMESTAMP, result=pa.int64()),
        lambda args: pc.divide(args[0].cast(pa.int64()), MICROS),
    ),
    "unix_millis": _unix(1_000),
    "unix_micros": _unix(1),
    "timestamp_seconds": _from_unix(MICROS),
    "timestamp_millis": _from_unix(1_000),
    "timestamp_micros": _from_unix(1),
}
