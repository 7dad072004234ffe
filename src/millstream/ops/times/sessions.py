"""Sessions: records of a key less than a gap apart, found among pieces that may overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millstream.ops.chunks import Int64


@dataclass(frozen=True)
class Sessions:
    """The session of every row, and per session (ascending by key and start) where it lies."""

    groups: Int64
    key: Int64
    start: Int64
    until: Int64  # its last record


def find_sessions(keys: Int64, start: Int64, until: Int64, gap: int) -> Sessions:
    """Join rows [start, until] of a key as long as the next begins less than `gap` later."""
    if not len(keys):
        return Sessions(keys, keys, start, until)
    order = np.lexsort((start, keys))
    key, begin, end = keys[order], start[order], until[order]
    reached = _furthest(key, end)
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (np.diff(key) != 0) | (begin[1:] - reached[:-1] >= gap)
    number = np.cumsum(fresh) - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = number
    last = np.append(np.flatnonzero(fresh)[1:], len(order)) - 1
    return Sessions(groups, key[fresh], begin[fresh], reached[last])


def _furthest(key: Int64, end: Int64) -> Int64:
    """The furthest end so far within each key: a running maximum that starts anew per key."""
    ranked, rank = np.unique(end, return_inverse=True)
    running = np.maximum.accumulate(key * np.int64(len(ranked)) + rank)
    furthest: Int64 = ranked[running - key * np.int64(len(ranked))]
    return furthest
