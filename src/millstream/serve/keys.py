"""Keys as text, and back: what a request or the command line names.

What a text can mean is in `ops/keys/texts.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from millstream.ops.keys.hashing import hash_one
from millstream.ops.keys.names import SECOND_HASH, hashes_of_values

LONGEST_TEXT = 8192  # a key has at most 1 KiB packed; its JSON can be longer
_REMEMBERED = 4096
_SALTS = (0, SECOND_HASH)


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
