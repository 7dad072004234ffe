"""Times as text by a pattern like `yyyy-MM-dd HH:mm`.

`date_format` writes them, `to_timestamp` reads them. Patterns are those of Spark (Java's
`DateTimeFormatter`), as far as they do not depend on a language. A text must have just the form of
its pattern, and its parts must exist in the calendar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.ops.sql.applying import Function, by_row, elementwise
from millstream.ops.sql.coercion import fixed
from millstream.ops.sql.types import DATE, TIMESTAMP, Datum, ExpressionError, to_micros

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_PIECE = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|([^A-Za-z'])", re.DOTALL)


@dataclass(frozen=True)
class _Part:
    """What a run of letters stands for: how it is written, and the form in which it is read."""

    write: Callable[[datetime], str]
    form: str
    field: str  # what it says when it is read; "" if nothing that matters


def _number(width: int, field: str, of: Callable[[datetime], int], form: str = "") -> _Part:
    return _Part(lambda at: f"{of(at):0{width}d}", form or rf"\d{{{width}}}", field)


def _names(words: list[str], letters: int | None, field: str, at: Callable[..., int]) -> _Part:
    cut = [word[:letters] for word in words]
    return _Part(lambda moment: cut[at(moment)], "(?i:" + "|".join(cut) + ")", field)


def _fraction(digits: int) -> _Part:
    return _Part(
        lambda at: f"{at.microsecond:06d}".ljust(digits, "0")[:digits],
        rf"\d{{1,{digits}}}",
        "fraction",
    )


def _half(at: datetime) -> str:
    return "AM" if at.hour < 12 else "PM"


_PARTS: dict[str, _Part] = {
    "yyyy": _number(4, "year", lambda at: at.year),
    "y": _number(1, "year", lambda at: at.year, r"\d{1,4}"),
    "yy": _number(2, "short", lambda at: at.year % 100),
    "M": _number(1, "month", lambda at: at.month, r"\d{1,2}"),
    "MM": _number(2, "month", lambda at: at.month),
    "MMM": _names(_MONTHS, 3, "name", lambda at: at.month - 1),
    "MMMM": _names(_MONTHS, None, "name", lambda at: at.month - 1),
    "d": _number(1, "day", lambda at: at.day, r"\d{1,2}"),
    "dd": _number(2, "day", lambda at: at.day),
    "D": _number(1, "yearday", lambda at: at.timetuple().tm_yday, r"\d{1,3}"),
    "DDD": _number(3, "yearday", lambda at: at.timetuple().tm_yday),
    "E": _names(_DAYS, 3, "weekday", lambda at: at.weekday()),
    "EE": _names(_DAYS, 3, "weekday", lambda at: at.weekday()),
    "EEE": _names(_DAYS, 3, "weekday", lambda at: at.weekday()),
    "EEEE": _names(_DAYS, None, "weekday", lambda at: at.weekday()),
    "H": _number(1, "hour", lambda at: at.hour, r"\d{1,2}"),
    "HH": _number(2, "hour", lambda at: at.hour),
    "h": _number(1, "half", lambda at: (at.hour + 11) % 12 + 1, r"\d{1,2}"),
    "hh": _number(2, "half", lambda at: (at.hour + 11) % 12 + 1),
    "m": _number(1, "minute", lambda at: at.minute, r"\d{1,2}"),
    "mm": _number(2, "minute", lambda at: at.minute),
    "s": _number(1, "second", lambda at: at.second, r"\d{1,2}"),
    "ss": _number(2, "second", lambda at: at.second),
    "a": _Part(_half, "(?i:AM|PM)", "noon"),
    "X": _Part(lambda at: "Z", "Z|[+-]\\d{2}(?:\\d{2})?", "offset"),
    "XXX": _Part(lambda at: "Z", r"Z|[+-]\d{2}:\d{2}", "offset"),
    "xxx": _Part(lambda at: "+00:00", r"[+-]\d{2}:\d{2}", "offset"),
    "Z": _Part(lambda at: "+0000", r"[+-]\d{4}", "offset"),
    **{"S" * digits: _fraction(digits) for digits in range(1, 7)},
}


@lru_cache(maxsize=256)
def parts_of(pattern: str) -> tuple[str | _Part, ...]:
    """The texts and parts of a pattern; a ConfigError names the letters that mean nothing here."""
    found: list[str | _Part] = []
    at = 0
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None or pattern[at] in "[]{}#":
            raise ConfigError(f"the pattern {pattern!r} has {pattern[at:]!r}, which is not known")
        if piece[2] is not None:
            if piece[0] not in _PARTS:
                known = ", ".join(_PARTS)
                raise ConfigError(
                    f"the pattern {pattern!r} has {piece[0]!r}; there are {known}, and 'text'"
                )
            found.append(_PARTS[piece[0]])
        elif piece[1] is not None:
            found.append(piece[1].replace("''", "'") or "'")
        else:
            found.append(piece[3])
        at = piece.end()
    return tuple(found)


def written(moment: datetime, pattern: str) -> str:
    """A moment as text."""
    return "".join(one if isinstance(one, str) else one.write(moment) for one in parts_of(pattern))


@lru_cache(maxsize=256)
def _reader(pattern: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    parts = parts_of(pattern)
    form = "".join(re.escape(one) if isinstance(one, str) else f"({one.form})" for one in parts)
    return re.compile(form), tuple(one.field for one in parts if not isinstance(one, str))


def read(text: str, pattern: str) -> datetime:
    """The moment that a text tells; what it does not tell is as in 1970-01-01 00:00:00."""
    form, fields = _reader(pattern)
    match = form.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        return _moment(dict(zip(fields, match.groups(), strict=True)))
    except (ValueError, OverflowError):
        raise ExpressionError(f"{text!r} is not a time of the form {pattern!r}") from None


def _moment(said: dict[str, str]) -> datetime:
    year = int(said["year"]) if "year" in said else 2000 + int(said.get("short", -30))
    month = int(said.get("month", 1))
    if "name" in said:
        month = 1 + [word[:3].lower() for word in _MONTHS].index(said["name"][:3].lower())
    made = datetime(
        year,
        month,
        int(said.get("day", 1)),
        _hour(said),
        int(said.get("minute", 0)),
        int(said.get("second", 0)),
        int(said.get("fraction", "").ljust(6, "0")[:6]),
        tzinfo=_zone(said.get("offset", "Z")),
    )
    if "yearday" in said:
        made = made.replace(month=1, day=1) + timedelta(days=int(said["yearday"]) - 1)
        if made.year != year:
            raise ValueError(said["yearday"])
    if "weekday" in said and _DAYS[made.weekday()][:3].lower() != said["weekday"][:3].lower():
        raise ValueError(said["weekday"])
    return made.astimezone(UTC)


def _hour(said: dict[str, str]) -> int:
    if "half" not in said:
        return int(said.get("hour", 0))
    hour = int(said["half"])
    if not 1 <= hour <= 12:
        raise ValueError(hour)
    return hour % 12 + (12 if said.get("noon", "AM").upper() == "PM" else 0)


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    plain = text[1:].replace(":", "").ljust(4, "0")
    length = timedelta(hours=int(plain[:2]), minutes=int(plain[2:]))
    return timezone(-length if text[0] == "-" else length)


def _seconds(text: str, pattern: str) -> int:
    return to_micros(read(text, pattern)) // 1_000_000


def _from_seconds(count: int, pattern: str) -> str:
    try:
        return written(datetime.fromtimestamp(count, UTC), pattern)
    except (OverflowError, OSError, ValueError):
        raise ExpressionError("a time outside the years 1 to 9999") from None


def _write_all(args: Sequence[Datum], pattern: str) -> Datum:
    """Texts of many moments, of which most are equal as far as the pattern tells them apart."""
    fields = {one.field for one in parts_of(pattern) if not isinstance(one, str)}
    (moments,) = args
    if "fraction" not in fields and not isinstance(moments, pa.Scalar):
        moments = pc.floor_temporal(moments, unit="second" if "second" in fields else "minute")
    return elementwise(written, pa.string())([moments], pattern)


FUNCTIONS: dict[str, Function] = {
    "date_format": Function(fixed(TIMESTAMP, result=pa.string()), _write_all),
    "to_timestamp by": by_row(read, pa.string(), result=TIMESTAMP),
    "to_date by": by_row(lambda *given: read(*given).date(), pa.string(), result=DATE),
    "unix_timestamp by": by_row(_seconds, pa.string(), result=pa.int64()),
    "from_unixtime": by_row(_from_seconds, pa.int64(), result=pa.string()),
}
