"""The map side of MapReduce jobs inside a task: records of a chunk to packed pairs.

A program with `close` gathers. So that what it gathered never crosses the bounds of a window, a
chunk is given to it pane by pane, each as a piece of its own, and what `close` gives has the place
of the last record of the piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.api.mapreduce import pack_pairs
from millstream.api.programs import MapSplit, Program
from millstream.errors import RunError
from millstream.graph import nodes
from millstream.ops.chunks import Chunk
from millstream.ops.codec import as_key
from millstream.ops.jobs import timestamp
from millstream.ops.records import DeadLetter, dead_row, describe, to_table

_PACKED = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def pairs_of(node: nodes.Pairs, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """What a job's `map` makes of a chunk, and its dead letters."""
    out: list[dict[str, bytes]] = []
    origin: list[int] = []
    dead: list[DeadLetter] = []
    rows = chunk.table.to_pylist()
    names = set(chunk.table.column_names)
    for piece in _pieces(node, chunk):
        split = MapSplit(node.job) if isinstance(node.job, Program) else None
        function = node.job.map if split is None else split.map
        for index in piece:
            try:
                key, value = _key_and_value(node, chunk, names, rows[index], index)
                made = pack_pairs(function(key, value, timestamp(int(chunk.ts[index]))))
            except _NullKey as error:
                dead.append(dead_row(node.name, chunk, index, str(error)))
                continue
            except BaseException as error:  # a user's function may raise anything
                dead.append(dead_row(node.name, chunk, index, describe(error)))
                continue
            out.extend(made)
            origin.extend([index] * len(made))
        gathered = [] if split is None else pack_pairs(split.close())
        if gathered:
            out.extend(gathered)
            origin.extend([_last(node, chunk, piece)] * len(gathered))
    table, _ = to_table(out, _PACKED)
    return chunk.at(table, np.array(origin, np.int64)), dead


class _NullKey(Exception):
    """A record without a key."""


def _key_and_value(
    node: nodes.Pairs, chunk: Chunk, names: set[str], row: dict[str, Any], index: int
) -> tuple[Any, Any]:
    """What `map` gets follows from where the records come from."""
    if node.keys:
        keys = [row.get(name) for name in node.keys]
        if None in keys and node.null_keys == "dead":
            raise _NullKey(f"key column {node.keys[keys.index(None)]!r} is null")
        return as_key(keys[0] if len(keys) == 1 else tuple(keys)), row
    if names >= {"key", "value"} and names <= {"key", "value", "window_start", "window_end"}:
        return as_key(row["key"]), row["value"]
    if names == {"value"}:
        return int(chunk.pos[index]), row["value"]
    return None, row


def _pieces(node: nodes.Pairs, chunk: Chunk) -> Iterator[list[int]]:
    """The records of a chunk that may be gathered together, in order."""
    closes = isinstance(node.job, Program) and node.job.can("close")
    if not closes or not len(chunk):
        yield list(range(len(chunk)))
        return
    marks = [np.zeros(len(chunk), np.int64) if one is None else one for one in _marks(node, chunk)]
    found: dict[tuple[int, ...], list[int]] = {}
    for index, mark in enumerate(zip(*(one.tolist() for one in marks), strict=True)):
        found.setdefault(mark, []).append(index)
    yield from found.values()


def _marks(node: nodes.Pairs, chunk: Chunk) -> list[Any]:
    """What records of one piece have in common: pane, weight, emission, lateness."""
    pane = None if node.span is None else node.span.pane_of(chunk.ts)
    return [pane, chunk.weight, chunk.revision, None if chunk.due is None else chunk.late()]


def _last(node: nodes.Pairs, chunk: Chunk, piece: list[int]) -> int:
    if node.span is None:
        raise RunError(
            f"{node.name}: close() gave pairs it gathered, but these windows follow from every "
            "single record; use a window over time, or give the pairs in map()"
        )
    return max(piece, key=lambda index: (chunk.ts[index], chunk.pos[index]))
