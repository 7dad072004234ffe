"""Wall-clock times of a zone as instants: microseconds since the epoch, UTC.

Used where records are read (times without an offset) and where windows begin by a zone's clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from millstream.ops.chunks import Int64

MIN_MICROS = -62_135_596_800_000_000  # 0001-01-01T00:00:00
MAX_MICROS = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(micros: int) -> datetime:
    """Microseconds since the epoch as an aware datetime."""
    return EPOCH + timedelta(microseconds=micros)


def localize(wall: Int64, zone: str) -> Int64:
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


def shown(moments: Int64, zone: str) -> Int64:
    """What clocks of a zone show at moments of UTC; Arrow's own kernel has no summer after 2037."""
    years = _years(moments)
    result = np.empty_like(moments)
    for year in np.unique(years):
        rows = years == year
        instants, _, offsets = _transitions(zone, min(max(int(year), 1), 9999))
        at = np.searchsorted(instants[1:], moments[rows], side="right")
        result[rows] = moments[rows] + offsets[at]
    return result


def _years(wall: Int64) -> Int64:
    return wall.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970


def _localize_year(wall: Int64, zone: str, year: int) -> Int64:
    # Offset o1 holds until the wall clock shows T + o1. From there on o2 holds, except that in a
    # gap (o2 > o1) wall - o2 would lie before T: those times never existed and become T itself.
    # In an overlap (o2 < o1) the repeated hour is still below T + o1, hence read as the first one.
    instants, breaks, offsets = _transitions(zone, min(max(year, 1), 9999))
    at = np.searchsorted(breaks, wall, side="right")
    result: Int64 = np.maximum(wall - offsets[at], instants[at])
    return result


@lru_cache(maxsize=4096)
def _transitions(zone: str, year: int) -> tuple[Int64, Int64, Int64]:
    """Offset changes around a year: instants (one sentinel before), wall-clock breaks, offsets."""
    tz = ZoneInfo(zone)

    def offset(second: int) -> int:
        delta = (EPOCH + timedelta(seconds=second)).astimezone(tz).utcoffset() or timedelta()
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
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(seconds=1)
