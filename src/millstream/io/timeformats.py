"""Times as other programs write them: texts like "12/31/2024 08:15" by a format, in columns.

Stands beside `timestamps.py`, which knows ISO-8601: `time_format=` of a source comes here. A format
is written as for `datetime.strptime`; every text it accepts has one meaning, whatever the locale.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.io.timestamps import Bools, Ints, nulls_of, out_of_range
from millstream.ops.zones import localize

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def _names(words: Sequence[str], letters: int | None = None) -> str:
    return "(?i:" + "|".join(sorted({w[:letters] for w in words}, key=len, reverse=True)) + ")"


_DIRECTIVES = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"1[0-2]|0?[1-9]",
    "d": r"3[01]|[12]\d|0?[1-9]",
    "H": r"2[0-3]|[01]?\d",
    "I": r"1[0-2]|0?[1-9]",
    "M": r"[0-5]?\d",
    "S": r"[0-5]?\d",
    "f": r"\d{1,9}",
    "p": r"[AaPp][Mm]",
    "b": _names(_MONTHS, 3),
    "B": _names(_MONTHS),
    "a": _names(_DAYS, 3),
    "A": _names(_DAYS),
    "z": r"Z|[+-]\d{2}:?\d{2}",
}
_SHORT = {"T": "%H:%M:%S", "R": "%H:%M", "F": "%Y-%m-%d", "D": "%m/%d/%y"}
_KNOWN = ", ".join(f"%{name}" for name in (*_DIRECTIVES, *_SHORT, "%"))


@dataclass(frozen=True)
class TimeFormat:
    """A format that was checked: the form of its texts, and what each part of them means."""

    text: str
    form: str
    parts: tuple[str, ...]

    @property
    def zoned(self) -> bool:
        """Its texts say their offset themselves."""
        return "z" in self.parts

    def micros(self, texts: pa.Array, zone: str | None) -> tuple[Ints, Bools]:
        """Microseconds UTC, and which texts do not have the form (nulls are not marked)."""
        nulls = nulls_of(texts)
        found = pc.extract_regex(texts, self.form)
        fits = ~nulls_of(found)
        part = {name: pc.struct_field(found, name) for name in self.parts}
        days, real = _days(part)
        wall = days * 86_400_000_000 + _clock(part, len(texts))
        if self.zoned:
            wall = wall - _offset(part["z"])
        elif zone is not None:
            wall = localize(np.where(fits & real, wall, 0), zone)
        wall = np.where(nulls, 0, wall)
        return wall, (~(fits & real) | out_of_range(wall)) & ~nulls


@lru_cache(maxsize=64)
def time_format(text: str) -> TimeFormat:
    """A format as users write it, checked."""
    whole = re.sub("%([TRFD])", lambda found: _SHORT[found[1]], text)
    form, parts = "", []
    for piece in re.findall(r"%.|\s+|[^%\s]+|%$", whole):
        name = piece[1:]
        if piece.isspace():
            form += r"\s+"
        elif not piece.startswith("%"):
            form += re.escape(piece)
        elif name == "%":
            form += "%"
        elif name not in _DIRECTIVES:
            raise ConfigError(
                f"time_format= is {text!r}: {piece!r} is not known; known are {_KNOWN}"
            )
        elif name in parts:
            raise ConfigError(f"time_format= is {text!r}: {piece!r} is there twice")
        else:
            form += f"(?P<{name}>{_DIRECTIVES[name]})"
            parts.append(name)
    _check_parts(text, parts)
    return TimeFormat(text, rf"^\s*{form}\s*$", tuple(parts))


def _check_parts(text: str, parts: list[str]) -> None:
    """A format must say which day it is, and the time in one way."""
    one_of = (("Y", "y"), ("m", "b", "B"), ("d",))
    if any(sum(name in parts for name in names) != 1 for names in one_of):
        raise ConfigError(
            f"time_format= is {text!r}: it must say the year, the month and the day once each, "
            'as "%m/%d/%Y %H:%M"'
        )
    if ("I" in parts) != ("p" in parts) or ("I" in parts and "H" in parts):
        raise ConfigError(
            f"time_format= is {text!r}: use %H for hours from 0 to 23, or %I with %p for those "
            "from 1 to 12"
        )


def _numbers(texts: pa.Array) -> Ints:
    filled = pc.fill_null(pc.if_else(pc.equal(pc.binary_length(texts), 0), "0", texts), "0")
    return np.asarray(filled.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _days(part: dict[str, pa.Array]) -> tuple[Ints, Bools]:
    """Days since the epoch, and whether there is such a day."""
    if "Y" in part:
        year = _numbers(part["Y"])
    else:
        short = _numbers(part["y"])
        year = np.where(short < 69, 2000, 1900) + short  # as POSIX and Python have it
    if "m" in part:
        month = _numbers(part["m"])
    else:
        words = pc.utf8_lower(pc.fill_null(part["b" if "b" in part else "B"], ""))
        starts = pa.array([name[:3] for name in _MONTHS])
        index = pc.fill_null(pc.index_in(pc.utf8_slice_codeunits(words, 0, 3), starts), 0)
        month = np.asarray(index.to_numpy(zero_copy_only=False), np.int64) + 1
    day = _numbers(part["d"])
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[D]").astype(np.int64)
    real = (year >= 1) & (month >= 1) & (first + day <= after)
    return first + day - 1, real


def _clock(part: dict[str, pa.Array], count: int) -> Ints:
    """Microseconds since midnight."""
    zero = np.zeros(count, np.int64)
    hour = _numbers(part["H"]) if "H" in part else zero
    if "I" in part:
        letter = pc.utf8_lower(pc.utf8_slice_codeunits(pc.fill_null(part["p"], ""), 0, 1))
        after = np.asarray(pc.equal(letter, "p").to_numpy(zero_copy_only=False), bool)
        hour = _numbers(part["I"]) % 12 + 12 * after
    minute = _numbers(part["M"]) if "M" in part else zero
    second = _numbers(part["S"]) if "S" in part else zero
    parts = ((hour * 60 + minute) * 60 + second) * 1_000_000
    if "f" in part:
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(part["f"], ""), 9, "0"), 0, 6)
        parts = parts + _numbers(digits)
    return np.asarray(parts, np.int64)


def _offset(texts: pa.Array) -> Ints:
    """Microseconds east of UTC."""
    plain = pc.replace_substring_regex(pc.fill_null(texts, "Z"), "^Z?$", "+0000")
    digits = pc.replace_substring_regex(plain, "[+:-]", "")
    hours = _numbers(pc.utf8_slice_codeunits(digits, 0, 2))
    minutes = _numbers(pc.utf8_slice_codeunits(digits, 2, 4))
    west = np.asarray(pc.starts_with(plain, "-").to_numpy(zero_copy_only=False), bool)
    return np.asarray(np.where(west, -1, 1) * (hours * 60 + minutes) * 60_000_000, np.int64)


# ---------------------------------------------------------------- what a sample may be

_DATES = (
    *("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d"),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y"),
    *("%B %d, %Y", "%d/%b/%Y"),
)
_CLOCKS = (
    *("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p"),
    *(":%H:%M:%S %z", " %H:%M:%S %z"),
)


def formats_of(texts: Sequence[str]) -> list[str]:
    """Formats that all of these texts have; several if they do not tell day from month."""
    array = pa.array(list(texts), pa.string())
    candidates = [date + clock for date, clock in product(_DATES, _CLOCKS)]
    return [one for one in candidates if not time_format(one).micros(array, None)[1].any()]
