"""From sqlglot's tree to ours, for what is about times: intervals, zones, units and patterns.

`lowering.py` hands these nodes over, with itself for what is inside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ops.sql.calendar import LENGTHS, MONTHS
from millstream.ops.sql.conversions import zone_of
from millstream.ops.sql.nodes import Call, Cast, Literal, Node
from millstream.ops.sql.timeformats import parts_of
from millstream.ops.sql.times import TRUNC_UNITS
from millstream.ops.sql.types import DATE, TIMESTAMP

Lower = Callable[[Any], Node]

_AMOUNT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_CLOCK = re.compile(r"([+-])?(?:(\d+) )?(?:(\d+):)?(\d+):(\d+(?:\.\d{1,6})?)")
_YEARS = re.compile(r"([+-])?(\d+)-(\d+)")
_DEFAULT = "yyyy-MM-dd HH:mm:ss"


# -- intervals ----------------------------------------------------------------------------------


def interval_of(node: Any) -> tuple[int, int]:
    """The months and microseconds of an INTERVAL."""
    text = str(node.this.name).strip() if node.this is not None else ""
    if node.this is None or node.this.key not in ("literal", "neg"):
        raise ConfigError(
            "INTERVAL takes a constant, like INTERVAL '5' MINUTE; "
            "timestampadd(MINUTE, count, time) takes a column"
        )
    unit = node.args.get("unit")
    if unit is None:
        return _several(text)
    if unit.key == "intervalspan":
        return _spanned(text, str(unit.this.name).upper(), str(unit.expression.name).upper())
    sign = "-" if node.this.key == "neg" else ""
    return _amount(f"{sign}{text}", str(unit.name))


def _amount(number: str, unit: str) -> tuple[int, int]:
    name = unit.lower().removesuffix("s")
    if not re.fullmatch(r"[+-]?\d+(\.\d+)?", number) or name not in LENGTHS | MONTHS:
        known = ", ".join([*MONTHS, *LENGTHS])
        raise ConfigError(f"INTERVAL {number!r} {unit} is no interval; the units are {known}")
    if "." in number and name != "second":
        raise ConfigError(f"INTERVAL {number!r} {unit}: a fraction goes with seconds only")
    if name in MONTHS:
        return int(number) * MONTHS[name], 0
    whole, _, part = number.partition(".")
    micros = int(whole) * LENGTHS[name]
    rest = int(part.ljust(6, "0")[:6]) if part else 0
    return 0, micros + (-rest if number.startswith("-") else rest)


def _several(text: str) -> tuple[int, int]:
    """`INTERVAL '1 day 2 hours'`."""
    found = _AMOUNT.findall(text)
    if not found or _AMOUNT.sub("", text):
        raise ConfigError(f"INTERVAL {text!r} is no interval, like INTERVAL '1 day 2 hours'")
    parts = [_amount(number, unit) for number, unit in found]
    return sum(one for one, _ in parts), sum(one for _, one in parts)


def _spanned(text: str, first: str, last: str) -> tuple[int, int]:
    """`INTERVAL '1-2' YEAR TO MONTH`, `INTERVAL '1 02:03:04' DAY TO SECOND`."""
    years, clock = _YEARS.fullmatch(text), _CLOCK.fullmatch(text)
    if (first, last) == ("YEAR", "MONTH") and years is not None:
        months = int(years[2]) * 12 + int(years[3])
        return -months if years[1] == "-" else months, 0
    if (first, last) == ("DAY", "SECOND") and clock is not None and clock[2] and clock[3]:
        parts = zip(("day", "hour", "minute", "second"), clock.groups()[1:], strict=True)
        micros = sum(_amount(number, unit)[1] for unit, number in parts)
        return 0, -micros if clock[1] == "-" else micros
    raise ConfigError(
        f"INTERVAL {text!r} {first} TO {last} is not supported; write it as '1 day 2 hours'"
    )


def moved(node: Any, lower: Lower) -> Node | None:
    """`time + INTERVAL ...`, or minus; None if no interval is in it."""
    left, right = node.this, node.expression
    if node.key == "add" and left.key == "interval" and right.key != "interval":
        left, right = right, left
    if right.key != "interval":
        return None
    if left.key == "interval":
        raise ConfigError("an INTERVAL is added to a time; write two of them as one")
    months, micros = interval_of(right)
    sign = -1 if node.key == "sub" else 1
    return Call("+interval", (lower(left),), (sign * months, sign * micros))


_TURNED = {"gt": "lt", "gte": "lte", "lt": "gt", "lte": "gte", "eq": "eq", "neq": "neq"}
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "eq": "=", "neq": "<>"}


def distance(node: Any, lower: Lower) -> Node | None:
    """`a - b > INTERVAL ...`: how far two times lie apart; None if it is no such comparison."""
    key, left, right = node.key, node.this, node.expression
    if left.key == "interval":
        key, left, right = _TURNED[key], right, left
    while left.key == "paren":
        left = left.this
    if right.key != "interval" or left.key != "sub":
        return None
    months, micros = interval_of(right)
    if months:
        raise ConfigError("two times lie days and seconds apart, not months; they differ in length")
    between = Call("timestampdiff", (lower(left.expression), lower(left.this)), ("microsecond",))
    return Call(_SIGNS[key], (between, Literal(micros, pa.int64())))


# -- zones --------------------------------------------------------------------------------------


def zoned(function: str, of: Node, zone: Any) -> Node:
    """The clock of a zone, or what it shows as an instant."""
    if zone is None or zone.key != "literal" or not zone.is_string:
        raise ConfigError("the time zone must be a constant like 'Europe/Paris'")
    try:
        zone_of(zone.name)
    except ValueError:
        raise ConfigError(
            f"there is no time zone {zone.name!r}; write one like 'Europe/Paris' or '+02:00'"
        ) from None
    return Call(function, (of,), (zone.name,))


# -- units --------------------------------------------------------------------------------------


def unit_of(node: Any, what: str) -> str:
    """A unit of timestampadd and timestampdiff."""
    name = str(node.name).lower().removesuffix("s") if node is not None else ""
    if name not in LENGTHS | MONTHS:
        raise ConfigError(f"{what} cannot count {name!r}; the units are {', '.join(MONTHS)}, "
                          f"{', '.join(LENGTHS)}")  # fmt: skip
    return name


_EXTRACTED = {
    **{one: one for one in ("year", "quarter", "month", "day", "hour", "minute")},
    **dict.fromkeys(("week", "weeks", "w"), "weekofyear"),
    **dict.fromkeys(("dow", "dayofweek"), "dayofweek"),
    **dict.fromkeys(("doy",), "dayofyear"),
    **dict.fromkeys(("second", "seconds", "s"), "second.fraction"),
}


def extracted(part: str, of: Node) -> Node:
    """EXTRACT(part FROM time), or date_part."""
    function = _EXTRACTED.get(part.lower())
    if function is None:
        known = ", ".join(one.upper() for one in _EXTRACTED)
        raise ConfigError(f"EXTRACT({part.upper()} ...) is not supported; there are {known}")
    return Call(function, (of,))


# -- functions with patterns and defaults, as they are written ----------------------------------


def _pattern(name: str, given: list[Any]) -> str:
    if len(given) < 2:
        return _DEFAULT
    if given[1].key != "literal" or not given[1].is_string:
        raise ConfigError(f"the pattern of {name} must be a constant like 'yyyy-MM-dd'")
    parts_of(given[1].name)
    return str(given[1].name)


def _read(name: str, given: list[Any], lower: Lower) -> Node:
    """to_timestamp, to_date and unix_timestamp: of a text by a pattern, else a cast."""
    if len(given) == 1:
        if name == "unix_timestamp":
            return Call(name, (lower(given[0]),))
        return Cast(lower(given[0]), TIMESTAMP if name == "to_timestamp" else DATE)
    return Call(f"{name} by", (lower(given[0]),), (_pattern(name, given),))


def _write(name: str, given: list[Any], lower: Lower) -> Node:
    return Call(name, (lower(given[0]),), (_pattern(name, given),))


def _trunc(name: str, given: list[Any], lower: Lower) -> Node:
    unit = TRUNC_UNITS.get(str(given[1].name).upper())
    if unit not in ("year", "quarter", "month", "week"):
        raise ConfigError("TRUNC cuts a date to 'year', 'quarter', 'month' or 'week'")
    return Call("trunc", (lower(given[0]),), (unit,))


def _zone(name: str, given: list[Any], lower: Lower) -> Node:
    return zoned(name, lower(given[0]), given[1])


# name -> how many arguments it takes, and what it becomes
NAMED: dict[str, tuple[tuple[int, ...], Callable[[str, list[Any], Lower], Node]]] = {
    "to_timestamp": ((1, 2), _read),
    "to_date": ((1, 2), _read),
    "unix_timestamp": ((1, 2), _read),
    "to_unix_timestamp": ((1, 2), lambda _, given, lower: _read("unix_timestamp", given, lower)),
    "date_format": ((2,), _write),
    "from_unixtime": ((1, 2), _write),
    "trunc": ((2,), _trunc),
    "from_utc_timestamp": ((2,), _zone),
    "to_utc_timestamp": ((2,), _zone),
    "date_part": ((2,), lambda _, given, lower: extracted(given[0].name, lower(given[1]))),
}
