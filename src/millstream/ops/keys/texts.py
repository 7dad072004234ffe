"""What the text of a key can stand for.

A key that is a string is written as it is. Any other key is written as its JSON: 42, 1.5, true,
null, a moment in quotation marks, and a list for several key columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.ops.codec import as_key

_DEEPEST = 32  # lists in lists


def meanings(text: str) -> Iterator[Any]:
    """What a text can stand for, in the order in which it is looked up."""
    yield text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        value = text
    if isinstance(value, list) and _is_deep(value):
        return
    if isinstance(value, str):
        moment = _moment(value)
        if moment is not None:
            yield moment
    elif not isinstance(value, dict):
        yield as_key(value)
        if isinstance(value, list):
            moments = [_moment(one) if isinstance(one, str) else None for one in value]
            if any(moments):
                yield as_key([a if b is None else b for a, b in zip(value, moments, strict=True)])


def _is_deep(value: list[Any]) -> bool:
    """Whether lists stand in lists further than any key goes."""
    level: list[Any] = value
    for _ in range(_DEEPEST):
        level = [one for inner in level if isinstance(inner, list) for one in inner]
    return bool(level)


def _moment(text: str) -> datetime | None:
    if len(text) < len("2026-01-01T00:00") or not text[:4].isdigit():
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # no moment, or none of the years 1 to 9999 in UTC
        return None
