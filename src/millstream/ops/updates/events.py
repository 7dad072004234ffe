"""Events on their way to an updater: one row each, with the hashes of its key and packed values.

All blocks of events have the same columns, whatever the records are like, so that they can be kept
together until the watermark has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import Chunk, Int64, Mask, UInt64
from millstream.ops.codec import encode, encode_rows, pack
from millstream.ops.keys.hashing import canonical, factorize
from millstream.ops.keys.names import both_hashes, hashes_of_values, pack_key
from millstream.ops.keys.partitioning import Partition, Shards, shards_of_packed
from millstream.ops.packing import pack_rows

SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("time", pa.int64()),  # when it is applied: the time of the event, unless it is late
        ("to", pa.int8()),  # which updater of the group
        ("hash", pa.uint64()),
        ("check", pa.uint64()),
        ("key", pa.binary()),
        ("src", pa.int64()),
        ("pos", pa.int64()),
        ("value", pa.binary()),
        ("hops", pa.int32()),  # how often what led to it went round; of a partial slate, its events
        ("behind", pa.int64()),  # of late events: how much earlier their own time is
    ]
)
_PLAIN = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_floating,
    pa.types.is_timestamp,
)


class Keys:
    """The keys of some records: hashes and packed bytes per record."""

    def __init__(
        self,
        hashes: UInt64,
        checks: UInt64,
        packed: pa.Array,
        shards: Shards | None = None,
        unstorable: dict[int, str] | None = None,
    ) -> None:
        self.hashes, self.checks, self.packed = hashes, checks, packed
        self.shards = shards  # where a user's partition puts them
        self.unstorable = unstorable or {}  # records with keys that no slate can have, and why

    def take(self, mask: Mask) -> Keys:
        """Those of some of the records."""
        shards = None if self.shards is None else self.shards[mask]
        return Keys(
            self.hashes[mask], self.checks[mask], self.packed.filter(pa.array(mask)), shards
        )

    def place(self, partition: Partition | None, shards: int) -> dict[int, str]:
        """Let a user's partition say where they belong; gives those it says nothing of."""
        if partition is None:
            return {}
        self.shards, bad = shards_of_packed(partition, self.packed.to_pylist(), shards)
        return bad

    def refused(self, limit: int) -> dict[int, str]:
        """The records whose key cannot be kept, and why."""
        sizes = np.asarray(pc.binary_length(self.packed))
        return {
            index: f"the key has {sizes[index]:,} bytes, more than max_key={limit:,}"
            for index in np.flatnonzero(sizes > limit).tolist()
        } | self.unstorable


def keys_of(chunk: Chunk, names: tuple[str, ...]) -> Keys:
    """The keys of a chunk, worked out once per distinct key."""
    if not names:
        zeros = np.zeros(len(chunk), np.uint64)
        return Keys(zeros, zeros, pa.array([pack_key(())] * len(chunk), pa.binary()))
    columns = [canonical(chunk.column(name)) for name in names]
    codes, uniques = factorize(columns)
    values = _values(uniques)
    texts = len(uniques) == 1 and pa.types.is_string(uniques[0].type)
    packed, bad = _packed(values, pack if texts else pack_key)
    if all(pa.types.is_null(u.type) or any(ok(u.type) for ok in _PLAIN) for u in uniques):
        hashes, checks = both_hashes(uniques)
    else:
        values = [None if at in bad else value for at, value in enumerate(values)]
        hashes, checks = hashes_of_values(values)
    unstorable = {at: bad[c] for at, c in enumerate(codes.tolist()) if c in bad} if bad else {}
    return Keys(hashes[codes], checks[codes], packed.take(pa.array(codes)), unstorable=unstorable)


def _packed(values: list[Any], packed: Callable[[Any], bytes]) -> tuple[pa.Array, dict[int, str]]:
    """Keys as bytes; those that cannot be, as whole numbers of more than 64 bits, with the reason.

    These stand as nothing, and their records are set aside.
    """
    try:
        return pa.array(list(map(packed, values)), pa.binary()), {}
    except RunError:
        pass
    found: list[bytes] = []
    bad: dict[int, str] = {}
    for at, value in enumerate(values):
        try:
            found.append(packed(value))
        except RunError as error:
            found.append(pack_key(()))
            bad[at] = str(error)
    return pa.array(found, pa.binary()), bad


def _values(uniques: list[pa.Array]) -> list[Any]:
    if len(uniques) == 1:
        return list(uniques[0].to_pylist())
    return list(zip(*(unique.to_pylist() for unique in uniques), strict=True))


def keys_of_values(values: list[Any]) -> Keys:
    """The same for keys that were published."""
    hashes, checks = hashes_of_values(values)
    return Keys(hashes, checks, pa.array([pack_key(value) for value in values], pa.binary()))


def packed_values(chunk: Chunk, keys: tuple[str, ...]) -> pa.Array:
    """What `event.value` is: the record, or the value of a pair of key and value."""
    if keys == ("key",) and set(chunk.table.column_names) == {"key", "value"}:
        return pa.array([encode(value) for value in chunk.column("value").to_pylist()], pa.binary())
    packed = pack_rows(chunk.table)
    return pa.array(encode_rows(chunk.table), pa.binary()) if packed is None else packed


def event_rows(
    keys: Keys,
    ts: Int64 | Sequence[int],
    src: int,
    pos: Int64 | Sequence[int],
    values: pa.Array,
    to: int,
    shards: int | None,
    hops: Sequence[int] | None = None,
    behind: Int64 | None = None,
) -> pa.Table:
    """Rows for the exchange; without a number of shards all keys are in the first."""
    count = len(keys.hashes)
    shard: Shards = np.zeros(count, np.int32)
    if shards is not None and keys.shards is not None:
        shard = keys.shards
    elif shards is not None:
        shard = ((keys.hashes >> np.uint64(1)) % np.uint64(shards)).astype(np.int32)
    return pa.Table.from_arrays(
        [
            pa.array(shard),
            pa.array(ts, pa.int64()),
            pa.array(np.full(count, to, np.int8)),
            pa.array(keys.hashes),
            pa.array(keys.checks),
            keys.packed,
            pa.array(np.full(count, src, np.int64)),
            pa.array(pos, pa.int64()),
            values,
            pa.array(np.zeros(count, np.int32) if hops is None else hops, pa.int32()),
            pa.array(np.zeros(count, np.int64) if behind is None else behind),
        ],
        schema=SCHEMA,
    )
