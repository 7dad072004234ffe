"""The map side of MapReduce jobs inside a task: records of a chunk to pairs, in columns.

Keys are packed (`ops/codec.py`), as they stand in windows and state. Values that are plain and of
one type are a column of that type, all others are packed; what a window keeps of them is packed
(`ops/windows/preparing.py`), what `combine` gets is never packed at all.

A program with `close` gathers. So that what it gathered never crosses the bounds of a window, a
chunk is given to it pane by pane, each as a piece of its own, and what `close` gives has the place
of the last record of the piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.api.programs import MapSplit, Program
from millstream.errors import RunError
from millstream.graph import nodes
from millstream.ops.chunks import Chunk
from millstream.ops.codec import as_key, encode, python_rows, python_times, python_values
from millstream.ops.pairs import Packed, packed, value_column
from millstream.ops.records import DeadLetter, dead_row, describe
from millstream.ops.usage import columns_read, is_read
from millstream.ops.windows.preparing import null_keys

_KEPT = frozenset((int, float, str, bool, type(None)))  # nobody can change these afterwards


def pairs_of(node: nodes.Pairs, chunk: Chunk) -> tuple[Chunk, list[DeadLetter]]:
    """What a job's `map` makes of a chunk, and its dead letters."""
    failed = null_keys(node.keys, chunk) if node.null_keys == "dead" else {}
    pairs = _Pairs()
    for piece in _pieces(node, chunk):
        split = MapSplit(node.job) if isinstance(node.job, Program) else None
        function = node.job.map if split is None else split.map
        called = function if split is None else split.called
        good = [index for index in piece if index not in failed] if failed else piece
        given = _given(node, chunk, called, split is None, good)
        _call_map(node, chunk, function, zip(good, *given, strict=False), pairs, failed)
        for key, value in () if split is None else split.close():
            pairs.gather(key, value, _last(node, chunk, piece))
    table, origin = pairs.table(failed)
    dead = [dead_row(node.name, chunk, index, why) for index, why in sorted(failed.items())]
    return chunk.at(table, np.array(origin, np.int64)), dead


def _pair(given: Any) -> tuple[Any, Any]:
    """What a map gave as a key and a value, if it is that."""
    if isinstance(given, list | tuple) and len(given) == 2:
        return given[0], given[1]
    raise TypeError(
        f"map must yield pairs (key, value), got {type(given).__name__} {str(given)[:80]!r}; write "
        "`yield key, value`, or give a list of pairs"
    )


def _call_map(
    node: nodes.Pairs,
    chunk: Chunk,
    function: Callable[[Any, Any, Any], Iterable[Any] | None],
    records: Iterable[tuple[int, Any, Any, Any]],
    pairs: _Pairs,
    failed: dict[int, str],
) -> None:
    """Call `map` on every record; it gives all of its pairs or, if it raises, none."""
    keys, values, origin = pairs.keys, pairs.values, pairs.origin
    for index, key, value, ts in records:
        before = len(origin)
        try:
            for given in function(key, value, ts) or ():
                one, other = given if type(given) is tuple else _pair(given)
                keys.append(one if type(one) in _KEPT else Packed(encode(one)))
                values.append(other if type(other) in _KEPT else Packed(encode(other)))
                origin.append(index)
        except BaseException as error:  # a user's function may raise anything
            del keys[before:], values[before:], origin[before:]
            failed[index] = describe(error)


class _Pairs:
    """The pairs of a chunk so far, and the record each is of.

    What a function could still change once it has given it is packed at once.
    """

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.origin: list[int] = []

    def gather(self, key: Any, value: Any, index: int) -> None:
        """A pair that is of no single record: it cannot be set aside."""
        self.keys.append(Packed(encode(key)))
        self.values.append(Packed(encode(value)))
        self.origin.append(index)

    def table(self, failed: dict[int, str]) -> tuple[pa.Table, list[int]]:
        """As columns; what cannot be stored takes the pairs of its record with it."""
        try:
            return self._columns(), self.origin
        except RunError:
            for index, *pair in zip(self.origin, self.keys, self.values, strict=True):
                try:
                    packed(pair)
                except RunError as error:
                    failed[index] = describe(error)
        good = [at for at, index in enumerate(self.origin) if index not in failed]
        self.keys = [self.keys[at] for at in good]
        self.values = [self.values[at] for at in good]
        self.origin = [self.origin[at] for at in good]
        return self._columns(), self.origin

    def _columns(self) -> pa.Table:
        return pa.table({"key": packed(self.keys), "value": value_column(self.values)})


def _given(
    node: nodes.Pairs,
    chunk: Chunk,
    called: Callable[..., Any] | None,
    timed: bool,
    piece: Sequence[int],
) -> tuple[Iterable[Any], Iterable[Any], Iterable[Any]]:
    """The keys, values and times `map` gets for some records: made only if it looks at them.

    What they are follows from where the records come from. `called` is the user's function if it
    gets key and value as they are, and `timed` says that it gets a time, too.
    """
    if len(piece) != len(chunk):
        chunk = chunk.at(chunk.table.take(pa.array(piece, pa.int64())), np.array(piece, np.int64))
    table, names = chunk.table, set(chunk.table.column_names)
    times: Iterable[Any] = repeat(None)
    if called is None or (timed and is_read(called, 2)):
        times = python_times(chunk.ts)
    pairs = names >= {"key", "value"} and names <= {"key", "value", "window_start", "window_end"}
    if pairs and not node.keys:
        keys = map(as_key, python_values(table.column("key")))
        return keys, python_values(table.column("value")), times
    if names == {"value"} and not node.keys:
        return chunk.pos.tolist(), python_values(table.column("value")), times
    read = None if called is None else columns_read(called, 1)
    rows = python_rows(table, read)
    columns = [python_values(chunk.column(name)) for name in node.keys]
    if not columns:
        return repeat(None), rows, times
    return map(as_key, columns[0] if len(columns) == 1 else zip(*columns, strict=True)), rows, times


def _pieces(node: nodes.Pairs, chunk: Chunk) -> Iterator[Sequence[int]]:
    """The records of a chunk that may be gathered together, in order."""
    closes = isinstance(node.job, Program) and node.job.can("close")
    if not closes or not len(chunk):
        yield range(len(chunk))
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


def _last(node: nodes.Pairs, chunk: Chunk, piece: Sequence[int]) -> int:
    if node.span is None:
        raise RunError(
            f"{node.name}: close() gave pairs it gathered, but these windows follow from every "
            "single record; use a window over time, or give the pairs in map()"
        )
    return max(piece, key=lambda index: (chunk.ts[index], chunk.pos[index]))
