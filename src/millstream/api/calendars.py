"""What `tumbling(size, zone=, start=)` says of days, weeks and months, checked."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

from millstream.durations import Duration, micros
from millstream.errors import ConfigError
from millstream.ops.times.calendars import Calendar

_DAY = 86_400_000_000
_MONTHS = re.compile(r"\s*(\d{1,5})\s*(mo|months?|q|quarters?|y|years?)\s*")
_EACH = {"m": 1, "q": 3, "y": 12}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_START = re.compile(rf"({'|'.join(_DAYS)})?\s*(?:(\d\d?):(\d\d))?", re.IGNORECASE)


def calendar_of(size: Duration, zone: str | None, start: str | None) -> Calendar | None:
    """The calendar of a window; None if plain arithmetic will do."""
    said = f"tumbling({size!r})" if zone is None else f"tumbling({size!r}, zone={zone!r})"
    _check_zone(zone, said)
    months = _MONTHS.fullmatch(size) if isinstance(size, str) else None
    if months is not None:
        count = int(months[1]) * _EACH[months[2][0]]
        if start is not None or not 0 < count <= 12_000:
            raise ConfigError(
                f"{said}: from one to 12,000 months, which begin with their first day; leave "
                f"start= out"
            )
        return Calendar(count, months=True, zone=zone or "UTC")
    if zone is None and start is None:
        return None
    width = micros(size, "tumbling(size)")
    if zone is not None and width % _DAY:
        raise ConfigError(
            f"{said}: a zone is for whole days, weeks and months; hours are the same in most "
            'zones, and where they are not, start="00:30" says so'
        )
    weeks = width % (7 * _DAY) == 0
    if weeks and start is None:
        raise ConfigError(f'{said}: on which day do weeks begin? Give start="monday"')
    offset = 0 if start is None else _offset(start, said)
    day_given = start is not None and start.strip()[:1].isalpha()
    if (day_given and not weeks) or offset >= width:
        raise ConfigError(
            f"{said}: start={start!r} does not lie within a window; a day is for weeks, a time "
            "for windows that are longer than that"
        )
    if offset == 0 and zone in (None, "UTC"):
        return None
    return Calendar(width, offset=offset, zone=zone or "UTC")


def _check_zone(zone: str | None, said: str) -> None:
    if zone is None:
        return
    try:
        if isinstance(zone, str):
            ZoneInfo(zone)
            return
    except (KeyError, ValueError, OSError, TypeError):
        pass
    key = getattr(zone, "key", None)  # of a ZoneInfo
    named = f"write its name, zone={key!r}" if key else "write one like 'UTC' or 'Asia/Tokyo'"
    raise ConfigError(f"{said}: there is no such zone; {named}")


def _offset(start: str, said: str) -> int:
    found = _START.fullmatch(start.strip()) if isinstance(start, str) and start.strip() else None
    if found is None or int(found[2] or 0) > 23 or int(found[3] or 0) > 59:
        raise ConfigError(
            f'{said}: start={start!r} is no start; write "monday", "06:00" or "monday 06:00"'
        )
    clock = (int(found[2] or 0) * 60 + int(found[3] or 0)) * 60_000_000
    if found[1] is None:
        return clock
    return (_DAYS.index(found[1].lower()) - 3) % 7 * _DAY + clock  # 1970-01-01 was a Thursday
