"""Records: a row with its time and its place; and when keys and values are equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}


@dataclass(frozen=True)
class Record:
    """A row with its time (microseconds) and its place: which step it is from, and where there."""

    ts: int
    source: int
    position: int
    row: Row
    due: int | None = None  # when a late record counts, which is after its time

    @property
    def late(self) -> bool:
        """Whether it was out of order by more than its source allows."""
        return self.due is not None and self.due > self.ts


def place(record: Record) -> tuple[int, int, int]:
    return record.ts, record.source, record.position


def event_time(value: Any, unit: str, zone: str | None) -> int | None:
    """Microseconds since the epoch, or None for a record without a time."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            if zone is None:
                return None
            value = value.replace(tzinfo=ZoneInfo(zone))
        since: timedelta = value - _EPOCH
        return since // timedelta(microseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value // 1000 if unit == "ns" else value * _MICROS[unit]
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return round(value / 1000 if unit == "ns" else value * _MICROS[unit])
    return None


def moment(micros: float) -> datetime:
    return _EPOCH + timedelta(microseconds=int(micros))


def filled(rows: Iterable[Row]) -> list[Row]:
    """Rows with the same columns: what a record lacks is None."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def several(result: Any) -> list[Row]:
    if result is None:
        return []
    return [dict(result)] if isinstance(result, Mapping) else [dict(row) for row in result]


def as_key(value: Any) -> Any:
    """Keys are hashable: lists are tuples."""
    return tuple(map(as_key, value)) if isinstance(value, list | tuple) else value


def as_value(value: Any) -> Any:
    """Values travel: tuples arrive as lists."""
    if isinstance(value, dict):
        return {name: as_value(one) for name, one in value.items()}
    return list(map(as_value, value)) if isinstance(value, list | tuple) else value


def identity(key: Any, *, exact: bool) -> Any:
    """A form in which equal keys are equal, with an order: numbers, texts, ..., NaN, null.

    In a column there is one type of number, so 1 is 1.0; `exact` keeps them apart, as the keys of
    MapReduce jobs are Python values. True is never 1.
    """
    if isinstance(key, list | tuple):
        return ("list", tuple(identity(one, exact=exact) for one in key))
    if isinstance(key, dict):
        return ("record", tuple((n, identity(v, exact=exact)) for n, v in key.items()))
    if key is None:
        return ("~null",)
    if isinstance(key, float) and math.isnan(key):
        return ("number~nan",)
    if isinstance(key, int | float) and not isinstance(key, bool):
        return ("number", key + 0, type(key).__name__ if exact else "")
    if isinstance(key, datetime):
        return ("datetime", key if key.tzinfo else key.replace(tzinfo=UTC))
    return (type(key).__name__, key)
