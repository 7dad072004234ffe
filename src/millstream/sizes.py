"""Sizes as people write them: "500MB", "2GB", or a number of bytes."""

from __future__ import annotations

from millstream.errors import ConfigError

_UNITS = {"KB": 10, "MB": 20, "GB": 30, "TB": 40}


def bytes_of(size: int | str, what: str = "") -> int:
    """A size in bytes; `what` names it in the error."""
    begin = f"{what}: " if what else ""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if not isinstance(size, str):
        raise ConfigError(f"{begin}{size!r}: expected a size like 500MB or 2GB")
    number, unit = size[:-2].strip(), size[-2:].upper()
    if unit not in _UNITS or not (number.isascii() and number.isdigit()) or not int(number):
        raise ConfigError(f"{begin}{size!r}: expected a size like 500MB or 2GB")
    return int(number) << _UNITS[unit]


def shown(size: int) -> str:
    """A size in the largest unit that says it exactly."""
    for unit in reversed(_UNITS):
        if size and size % (1 << _UNITS[unit]) == 0:
            return f"{size >> _UNITS[unit]}{unit}"
    return f"{size}B"
