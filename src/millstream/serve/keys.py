"""Keys as text, and back: what a request or the command line names.

A key that is a string is written as it is. Any other key is written as its JSON: 42, 1.5, true,
null, a moment in quotation marks, and a list for several key columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from millstream.ops.codec import as_key
from millstream.ops.keys import hash_one
from millstream.ops.updates import SECOND_HASH, hashes_of_values

LONGEST_TEXT = 8192  # a key has at most 1 KiB packed; its JSON can be longer
_DEEPEST = 32  # lists in lists
_REMEMBERED = 4096
_SALTS = (0, SECOND_HASH)


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


def value_of(text: str, plain: bool) -> Any:
    """A stored key as a value that JSON can say; several columns are a list."""
    return text if plain else msgspec.json.decode(text)


def hashes_of(value: Any) -> tuple[np.uint64, np.uint64] | None:
    """The two hashes that name a key; None for what cannot be one."""
    if type(value) is str or (type(value) is int and -(2**63) <= value < 2**63):
        return _of_one(value)
    return _of_value(value)


@lru_cache(maxsize=_REMEMBERED)
def _of_one(value: str | int) -> tuple[np.uint64, np.uint64] | None:
    try:
        first, second = hash_one(value, _SALTS)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return np.uint64(first), np.uint64(second)


def _of_value(value: Any) -> tuple[np.uint64, np.uint64] | None:
    try:
        hashes, checks = hashes_of_values([value])
    except (TypeError, ValueError, OverflowError):  # Arrow's errors are ValueErrors
        return None
    return hashes[0], checks[0]


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
