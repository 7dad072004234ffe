"""Event-time arithmetic: texts, numbers and wall-clock times to microseconds since the epoch, UTC.

Used by the column conversion (`columns.py`) right after a block of records was parsed, and by
format inference in the driver. Everything works on whole columns; a value that cannot be converted
is reported in a mask, never raised, so that one bad record does not disturb its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

MIN_MICROS = -62_135_596_800_000_000  # 0001-01-01T00:00:00
MAX_MICROS = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999
MICROS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}  # microseconds in one unit
DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UTC_TYPE = pa.timestamp("us", "UTC")
_NAIVE_TYPE = pa.timestamp("us")
_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_CLOCK = r"[T ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?"
_ZONED = _DATE + _CLOCK + r"(Z|[+-]\d\d(:?\d\d)?)$"
_NAIVE = _DATE + f"({_CLOCK})?$"
_FANOUT = 16  # cutting in 16 reaches a single value of 262,144 in five steps


def out_of_range(micros: Ints) -> Bools:
    """True where the instant lies outside the years 1 to 9999, which Python cannot represent."""
    return (micros < MIN_MICROS) | (micros > MAX_MICROS)


def cast_each(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Bools]:
    """Cast; a value that does not fit becomes null and is marked, found by repeated cutting."""
    try:
        return array.cast(target), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, target), np.ones(1, bool)
    step = -(-len(array) // _FANOUT)
    parts = [cast_each(array.slice(i, step), target) for i in range(0, len(array), step)]
    return pa.concat_arrays([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def ints_of(array: pa.Array) -> Ints:
    """The 64-bit values of a timestamp or int64 array; nulls read as 0."""
    numbers = array if pa.types.is_int64(array.type) else array.cast(pa.int64())
    filled = numbers.fill_null(0) if numbers.null_count else numbers
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


def nulls_of(array: pa.Array) -> Bools:
    if not array.null_count:
        return np.zeros(len(array), bool)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def floor_micros(values: Ints, unit: str) -> tuple[Ints, Bools]:
    """Integers in `unit` to microseconds, rounded down; the mask marks what is out of range."""
    if unit == "ns":
        micros = values // 1000
        return micros, out_of_range(micros)
    factor = int(MICROS[unit])
    bad = (values < MIN_MICROS // factor) | (values > MAX_MICROS // factor)
    return np.where(bad, 0, values) * factor, bad  # zeroed first: the product must not overflow


def float_micros(values: npt.NDArray[np.float64], unit: str) -> tuple[Ints, Bools]:
    """Floats in `unit` to the nearest microsecond; NaN, infinities and far years are marked."""
    with np.errstate(all="ignore"):
        scaled = np.rint(values * MICROS[unit])
        bad = ~((scaled >= MIN_MICROS) & (scaled <= MAX_MICROS))
    return np.where(bad, 0.0, scaled).astype(np.int64), bad


def localize(wall: Ints, zone: str) -> Ints:
    """Wall-clock microseconds in `zone` to UTC: ambiguous -> first, nonexistent -> end of gap."""
    if zone == "UTC" or not len(wall):
        return wall
    first, last = (int(y) for y in _years(np.array([wall.min(), wall.max()])))
    if first == last:
        return _localize_year(wall, zone, first)
    years = _years(wall)
    result = np.empty_like(wall)
    for year in np.unique(years):
        rows = years == year
        result[rows] = _localize_year(wall[rows], zone, int(year))
    return result


def _years(wall: Ints) -> Ints:
    return wall.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970


def _localize_year(wall: Ints, zone: str, year: int) -> Ints:
    # Offset o1 holds until the wall clock shows T + o1. From there on o2 holds, except that in a
    # gap (o2 > o1) wall - o2 would lie before T: those times never existed and become T itself.
    # In an overlap (o2 < o1) the repeated hour is still below T + o1, hence read as the first one.
    instants, breaks, offsets = _transitions(zone, min(max(year, 1), 9999))
    at = np.searchsorted(breaks, wall, side="right")
    result: Ints = np.maximum(wall - offsets[at], instants[at])
    return result


@lru_cache(maxsize=4096)
def _transitions(zone: str, year: int) -> tuple[Ints, Ints, Ints]:
    """Offset changes around a year: instants (one sentinel before), wall-clock breaks, offsets."""
    tz = ZoneInfo(zone)

    def offset(second: int) -> int:
        delta = (_EPOCH + timedelta(seconds=second)).astimezone(tz).utcoffset() or timedelta()
        return delta // timedelta(microseconds=1)

    # Two days beyond either end cover every offset; clamped so that no datetime overflows.
    low = max(_seconds(datetime(year, 1, 1)) - 2 * 86_400, MIN_MICROS // 1_000_000 + 2 * 86_400)
    high = min(_seconds(datetime(year, 12, 31)) + 3 * 86_400, MAX_MICROS // 1_000_000 - 2 * 86_400)
    instants, breaks, offsets = [np.iinfo(np.int64).min], [], [offset(low)]
    for day in range(low, high, 86_400):
        before, end = offsets[-1], min(day + 86_400, high)
        if offset(end) == before:
            continue
        begin = day
        while end - begin > 1:
            middle = (begin + end) // 2
            begin, end = (middle, end) if offset(middle) == before else (begin, middle)
        instants.append(end * 1_000_000)
        breaks.append(end * 1_000_000 + before)
        offsets.append(offset(end))
    return np.array(instants, np.int64), np.array(breaks, np.int64), np.array(offsets, np.int64)


def _seconds(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)


def iso_micros(texts: pa.Array, zone: str | None) -> tuple[Ints, Bools]:
    """ISO-8601 texts to microseconds UTC; the mask marks what is unreadable (nulls are not).

    Accepted: `YYYY-MM-DD`, then optionally `T` or a space, `hh[:mm[:ss[.f]]]` with up to nine
    fraction digits (cut to microseconds), then optionally `Z`, `+hh`, `+hhmm` or `+hh:mm`.
    Without an offset the text is wall-clock time in `zone`, and unreadable if there is none.
    """
    for target, finish in _whole_column_ways(zone):
        try:
            micros = finish(ints_of(texts.cast(target)))
        except pa.ArrowInvalid:
            continue
        return _checked(micros, nulls_of(texts), np.zeros(len(texts), bool))
    return _iso_mixed(texts, zone)


def _whole_column_ways(zone: str | None) -> list[tuple[pa.DataType, Callable[[Ints], Ints]]]:
    ways: list[tuple[pa.DataType, Callable[[Ints], Ints]]] = [(_UTC_TYPE, lambda wall: wall)]
    if zone is not None:
        ways.append((_NAIVE_TYPE, lambda wall: localize(wall, zone)))
    return ways


def _iso_mixed(texts: pa.Array, zone: str | None) -> tuple[Ints, Bools]:
    clean = pc.replace_substring_regex(
        pc.ascii_trim_whitespace(texts), r"(\.\d{6})\d{1,3}($|Z|[+-])", r"\1\2"
    )
    micros = np.zeros(len(texts), np.int64)
    bad = np.ones(len(texts), bool)
    # Matching first keeps plain rubbish away from the cast, which is slow for what it refuses.
    zoned = _true(pc.match_substring_regex(clean, _ZONED))
    array, bad[zoned] = cast_each(clean.filter(pa.array(zoned)), _UTC_TYPE)
    micros[zoned] = ints_of(array)
    if zone is not None:
        naive = _true(pc.match_substring_regex(clean, _NAIVE))
        array, bad[naive] = cast_each(clean.filter(pa.array(naive)), _NAIVE_TYPE)
        micros[naive] = localize(ints_of(array), zone)
    return _checked(micros, nulls_of(texts), bad)


def _true(mask: Any) -> Bools:
    return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def _checked(micros: Ints, nulls: Bools, bad: Bools) -> tuple[Ints, Bools]:
    micros = np.where(nulls, 0, micros)  # a null localizes to garbage: it must not look far away
    return micros, (bad | out_of_range(micros)) & ~nulls


def is_naive_text(text: str) -> bool:
    """True when a text has the form of a timestamp, but no zone offset."""
    return re.match(_NAIVE, text.strip()) is not None
