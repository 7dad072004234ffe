"""Durations as people write them: "500ms", "1s", "5m", "2h", "1d", or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from millstream.errors import ConfigError

Duration = str | timedelta
_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
_LONGEST = 900 * 365 * _UNITS["d"]  # so that no bound of a window leaves the years 1 to 9999
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def micros(duration: Duration, what: str, *, zero: bool = False) -> int:
    """A duration in microseconds; `what` names it in the error."""
    if isinstance(duration, timedelta):
        value = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        match = _PATTERN.fullmatch(duration)
        if match is None or match[2] not in _UNITS:
            raise ConfigError(
                f'{what}: {duration!r} is not a duration; write a number and a unit like "500ms", '
                f'"1s", "5m", "2h" or "1d", or give a datetime.timedelta{_meant(duration)}'
            )
        value = round(min(float(match[1]) * _UNITS[match[2]], 2 * _LONGEST))
    else:
        raise ConfigError(
            f'{what}: expected a duration like "5m" or a datetime.timedelta, '
            f"got {type(duration).__name__} {duration!r}"
        )
    if value > _LONGEST:
        raise ConfigError(f"{what}: {duration!r} is longer than 900 years")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{what}: {duration!r} must be longer than zero")
    return value


def _meant(duration: str) -> str:
    """What others write, in our units."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+)\s*", duration, re.IGNORECASE)
    if found is None:
        return ""
    unit = found[2].lower().removesuffix("s")
    if found[2] == "M" or unit in ("month", "mo", "quarter", "year", "y"):
        return '; months and years are for windows: ms.tumbling("1mo"), "3mo" or "1y"'
    unit = {"day": "d", "hour": "h", "hr": "h", "minute": "m", "second": "s", "sec": "s"}.get(
        unit, {"week": "w", "milli": "ms", "millisecond": "ms"}.get(unit, unit)
    )
    return f'; did you mean "{found[1]}{unit}"?' if unit in _UNITS else ""


def rounded(value: int) -> str:
    """Microseconds in about two digits of the unit that suits them, for what was measured."""
    for unit in ("d", "h", "m", "s", "ms"):
        if value >= _UNITS[unit]:
            return f"{value / _UNITS[unit]:.2g}{unit}"
    return f"{value}us"


def text(value: int) -> str:
    """Microseconds in the shortest exact form, for plans and messages."""
    for unit in ("d", "h", "m", "s", "ms"):
        if value % _UNITS[unit] == 0 and value:
            return f"{value // _UNITS[unit]}{unit}"
    return f"{value}us" if value else "0s"
