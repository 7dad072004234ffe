"""Where a user's partition puts what is stored of updaters, by the stored rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.operators.filing import sure
from millstream.ops.chunks import flat
from millstream.ops.keys.names import hashes_of_values
from millstream.ops.keys.partitioning import Partition, Shards, shards_of, shards_of_packed
from millstream.ops.keys.texts import meanings


def parted_events(partition: Partition, rows: pa.Table, shards: int) -> Shards:
    """Events and timers: they have their key as it was packed."""
    return sure(*shards_of_packed(partition, flat(rows.column("key")).to_pylist(), shards))


def parted_slates(partition: Partition, rows: pa.Table, shards: int) -> Shards:
    """Slates: they have their key as text, and hashes that tell which of its meanings it is."""
    names = ("key", "plain", "hash", "check")
    columns = (flat(rows.column(name)).to_pylist() for name in names)
    keys = [
        text if plain else _meant(text, (hashed, check))
        for text, plain, hashed, check in zip(*columns, strict=True)
    ]
    return sure(*shards_of(partition, keys, shards))


def _meant(text: str, hashes: tuple[int, int]) -> Any:
    """The key that was stored as a text."""
    for key in meanings(text):
        try:
            found = hashes_of_values([key])
        except (TypeError, ValueError, OverflowError):  # Arrow's errors are ValueErrors
            continue
        if not isinstance(key, str) and tuple(map(int, np.concatenate(found))) == hashes:
            return key
    raise CheckpointError(
        f"the slate of key {text} lies where partition= said, and its text does not tell what "
        "value the key was; the number of shards cannot be changed with such keys"
    )
