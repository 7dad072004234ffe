"""What a key is called: its two hashes in the store, its bytes on the way, its text for people.

Also what a record is called that an updater made of others (`derived_position`).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.ops.chunks import UInt64
from millstream.ops.codec import encode_key
from millstream.ops.keys.hashing import canonical, hash_keys, one_number

SECOND_HASH = 0x5EED
_MASK = (1 << 64) - 1


def hashes_of_values(values: list[Any]) -> tuple[UInt64, UInt64]:
    """The two hashes that name each key, as for a column of such keys."""
    hashes = np.zeros(len(values), np.uint64)
    checks = np.zeros(len(values), np.uint64)
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(_shape(value), []).append(index)
    for shape, at in groups.items():
        members = [values[index] for index in at]
        if isinstance(shape, tuple):
            columns = [_column([one[i] for one in members]) for i in range(len(shape))]
        else:
            columns = [_column(members)]
        if columns:
            hashes[at], checks[at] = both_hashes(columns)
    return hashes, checks


def both_hashes(columns: list[pa.Array]) -> tuple[UInt64, UInt64]:
    """The same for canonical key columns."""
    return hash_keys(columns), hash_keys(columns, SECOND_HASH)


def _shape(value: Any) -> Any:
    """What can be one column; a tuple is several."""
    if isinstance(value, tuple | list):
        return tuple(
            _shape(one) if not isinstance(one, tuple | list) else "nested" for one in value
        )
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "big"
    return type(value).__name__


def _column(values: list[Any]) -> pa.Array:
    if isinstance(values[0], int) and not -(2**63) <= values[0] < 2**63:
        values = [f"integer {value}" for value in values]
    return canonical(pa.array(values))


def pack_key(value: Any) -> bytes:
    """A key as bytes; a whole number is one key, whatever type its column has."""
    return encode_key(one_number(value))


def pack_published(key: Any, longest: int) -> bytes:
    """The key of an event that is published."""
    packed = pack_key(key)
    if len(packed) > longest:
        raise ValueError(
            f"ctx.publish(): the key has {len(packed):,} bytes, more than max_key={longest:,}"
        )
    return packed


def key_text(value: Any) -> tuple[str, bool]:
    """A key as people write it, and whether it is a string."""
    if isinstance(value, str):
        return value, True
    return msgspec.json.encode(_sayable(value), enc_hook=str).decode(), False


def _sayable(value: Any) -> Any:
    """A key for JSON, which says null of NaN and of infinity: as texts they stay apart."""
    if isinstance(value, tuple | list):
        return [_sayable(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def derived_position(pos: int, src: int, key_hash: int, timer: bool, by: int) -> int:
    """The position of what a call of an updater emits: it follows from the cause, not from batches.

    `by` is the number of the updater among the origins of records.
    """
    mixed = (pos * 0x9E3779B97F4A7C15 + (src + 2) * 0xBF58476D1CE4E5B9 + 2 * by + timer) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xD6E8FEB86659FD93 + key_hash) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 2
