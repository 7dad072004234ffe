"""A user's partition of keys: which shard a key belongs to, instead of what its hash says.

Used where records go into an exchange. It must give the same number for a key for as long as a
checkpoint lives, because it says where the state of the key lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.codec import as_key, decode_key

Shards = np.ndarray[Any, np.dtype[np.int32]]
Partition = Callable[[Any], int]


def shards_of(partition: Partition, keys: list[Any], shards: int) -> tuple[Shards, dict[int, str]]:
    """The shard of each key, and why some have none."""
    found = np.zeros(len(keys), np.int32)
    bad: dict[int, str] = {}
    for index, key in enumerate(keys):
        try:
            number = partition(key)
            if isinstance(number, bool) or not isinstance(number, int | np.integer):
                raise TypeError(f"expected a whole number, got {number!r}")
            found[index] = int(number) % shards
        except BaseException as error:  # a user's function may raise anything
            bad[index] = f"partition of key {key!r}: {type(error).__name__}: {error}"
    return found, bad


def shards_of_columns(
    partition: Partition, uniques: list[pa.Array], shards: int, packed: bool
) -> tuple[Shards, dict[int, str]]:
    """The same for key columns; pairs of MapReduce jobs have packed keys."""
    if packed:
        return shards_of(partition, [decode_key(data) for data in uniques[0].to_pylist()], shards)
    columns = [unique.to_pylist() for unique in uniques]
    keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return shards_of(partition, [as_key(key) for key in keys], shards)


def shards_of_packed(
    partition: Partition, packed: list[bytes], shards: int
) -> tuple[Shards, dict[int, str]]:
    """The same for the packed keys of events, each distinct key asked once."""
    distinct = {data: index for index, data in enumerate(dict.fromkeys(packed))}
    found, bad = shards_of(partition, [decode_key(data) for data in distinct], shards)
    at = np.array([distinct[data] for data in packed], np.int64)
    return found[at], {i: bad[one] for i, one in enumerate(at.tolist()) if one in bad}
