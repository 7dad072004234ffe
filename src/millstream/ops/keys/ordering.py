"""Sorted results from several tasks: keys in one order of all types, and ranges found by a sample.

Results are computed where the hash of their key says, in many tasks. Each tells all tasks of the
next level a sample of its keys; these part the results into ranges of about equal size, one per
task of the level after, which puts its range in order. So the parts stand in the order of keys, one
after the other, and no task holds more than its share.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import (
    OFFSET_BITS,
    Chunk,
    concat,
    decode_block,
    encode_block,
    flat,
    numbers,
)
from millstream.ops.codec import decode_key

_SAMPLE = 200  # keys a task tells of an operator
_OURS = ("__order", "__ts")

Sample = tuple[int, list[bytes]]  # rows of a task, and packed keys at equal distances in them


def order_of(key: Any) -> tuple[Any, ...]:
    """A key in one order of all: None, booleans, numbers, texts, bytes, times, lists, the rest."""
    match key:
        case None:
            return (0,)
        case bool():
            return (1, key)
        case int() | float():
            return (2, key != key, 0 if key != key else key)  # NaN after all numbers
        case str():
            return (3, key)
        case bytes():
            return (4, key)
        case datetime():
            return (5, key if key.tzinfo else key.replace(tzinfo=UTC))
        case date():
            return (6, key)
        case tuple() | list():
            return (7, tuple(order_of(one) for one in key))
    return (8, type(key).__name__, repr(key))


def as_block(chunk: Chunk) -> tuple[bytes, Sample]:
    """The results of a task on their way, each with its key, and a sample of their keys."""
    assert chunk.order is not None
    keys = chunk.order.tolist()
    ours = [pa.array(keys, pa.binary()), pa.array(chunk.ts)]
    table = chunk.table
    for name, column in zip(_OURS, ours, strict=True):
        table = table.append_column(name, column)
    ordered = sorted(keys, key=lambda data: order_of(decode_key(data)))
    step = max(1, len(ordered) // _SAMPLE)
    return encode_block(table), (len(ordered), ordered[step // 2 :: step])


def bounds_of(samples: list[Sample], parts: int) -> list[tuple[Any, ...]]:
    """The keys at which ranges begin, all but the first: the same in every task."""
    weighted = [
        (order_of(decode_key(data)), rows / len(keys)) for rows, keys in samples for data in keys
    ]
    weighted.sort(key=lambda one: one[0])
    total = sum(weight for _, weight in weighted)
    bounds: list[tuple[Any, ...]] = []
    reached = 0.0
    for order, weight in weighted:
        if len(bounds) + 1 < parts and reached >= total * (len(bounds) + 1) / parts:
            bounds.append(order)
        reached += weight
    return bounds


def ranges(block: bytes, bounds: list[tuple[Any, ...]]) -> dict[int, bytes]:
    """The rows of a block by the range their key is in."""
    table = decode_block(block)
    keys = flat(table.column(_OURS[0])).to_pylist()
    found = {data: bisect_right(bounds, order_of(decode_key(data))) for data in set(keys)}
    part = np.array([found[data] for data in keys], np.int64)
    return {
        int(number): encode_block(table.take(pa.array(np.flatnonzero(part == number))))
        for number in np.unique(part)
    }


def in_order(blocks: list[bytes], part: int, src: int) -> Chunk:
    """A range of results by time, then by key; results of one key stay as they were given."""
    table = concat([decode_block(block) for block in blocks])
    keys = flat(table.column(_OURS[0])).to_pylist()
    ts = numbers(table, _OURS[1])
    order = {data: order_of(decode_key(data)) for data in set(keys)}
    rows = sorted(range(len(keys)), key=lambda row: (ts[row], order[keys[row]]))
    at = np.array(rows, np.int64)
    place = (part << OFFSET_BITS) + np.arange(len(at))
    return Chunk(table.drop_columns(list(_OURS)).take(pa.array(at)), ts[at], place, src)
