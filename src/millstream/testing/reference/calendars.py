"""Days, weeks and months of a zone by their definition, with Python's own calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from millstream.ops.times.calendars import Calendar

_EPOCH = datetime(1970, 1, 1)
_MICRO = timedelta(microseconds=1)


def local_window(calendar: Calendar, ts: int) -> tuple[int, int]:
    """When the period begins and ends that holds a time."""
    zone = ZoneInfo(calendar.zone)
    clock = (_EPOCH.replace(tzinfo=UTC) + ts * _MICRO).astimezone(zone).replace(tzinfo=None)
    number = _period(calendar, clock)
    while _instant(_wall(calendar, number + 1), zone) <= ts:  # a midnight that came twice
        number += 1
    return tuple(_instant(_wall(calendar, one), zone) for one in (number, number + 1))  # type: ignore[return-value]


def _period(calendar: Calendar, clock: datetime) -> int:
    if calendar.months:
        return ((clock.year - 1970) * 12 + clock.month - 1) // calendar.size
    return (clock - _EPOCH - calendar.offset * _MICRO) // (calendar.size * _MICRO)


def _wall(calendar: Calendar, number: int) -> datetime:
    """What the clock shows when a period begins."""
    if calendar.months:
        months = 1970 * 12 + number * calendar.size
        return datetime(months // 12, months % 12 + 1, 1)
    return _EPOCH + (calendar.offset + number * calendar.size) * _MICRO


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """When the clock shows this first; or, if it never does, when it shows more."""
    while True:
        found = wall.replace(tzinfo=zone).astimezone(UTC)
        if found.astimezone(zone).replace(tzinfo=None) == wall:
            return (found.replace(tzinfo=None) - _EPOCH) // _MICRO
        wall += timedelta(minutes=1)
