"""Reduce functions: called per window and key, and what they gave as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import ProgramError
from millstream.ops.chunks import Chunk, Int64, flat
from millstream.ops.codec import Keys, as_key, decode_key, python_rows, python_values, shared_values
from millstream.ops.mixed import exactly
from millstream.ops.records import DeadLetter, any_column, as_json, describe, several, to_table
from millstream.ops.windows.jobs import Window, WindowJob

_BOUNDS = ("window_start", "window_end")


def call_reducer(
    job: WindowJob, heads: Chunk, values: Sequence[list[Any]], order: Int64, dead: list[DeadLetter]
) -> Chunk:
    """The user's reduce per (window, key); a failure costs that one result and is reported."""
    assert job.reducer is not None
    reducer, made = job.reducer, (_Pairs if job.packed else _Rows)(heads)
    failed: dict[int, str] = {}
    given = zip(order.tolist(), _user_keys(job, heads), _windows(heads), strict=True)
    for index, (place, key, window) in enumerate(given):
        before, records = len(made.origin), values[place]
        try:
            made.add(index, reducer(key, records, window))
        except ProgramError:
            raise
        except BaseException as error:  # a user's function may raise anything
            made.keep(range(before))
            failed[index] = describe(error)
    table, bad = made.table()
    while bad:  # what cannot be stored takes the result it is part of with it
        failed.update({made.origin[at]: why for at, why in bad.items()})
        made.keep([at for at, index in enumerate(made.origin) if index not in failed])
        table, bad = made.table()
    dead.extend(failed_result(job, heads, index, why) for index, why in sorted(failed.items()))
    return heads.at(table, np.array(made.origin, np.int64))


def failed_result(job: WindowJob, heads: Chunk, index: int, error: str) -> DeadLetter:
    """A dead letter for one result: its key and its window."""
    rows = heads.table.slice(index, 1).to_pylist()
    head = rows[0] if rows else {}
    keys = [head[name] for name in job.keys]
    key = as_key(keys[0] if len(keys) == 1 else tuple(keys))
    if job.packed:
        key = decode_key(keys[0])
    bounds = {"window_start": head.get("window_start"), "window_end": head.get("window_end")}
    raw = as_json({"key": key, **bounds})
    return DeadLetter(job.name, -1, int(heads.pos[index]), raw, error)


def _user_keys(job: WindowJob, heads: Chunk) -> Iterable[Any]:
    """The key of every result."""
    columns = [heads.column(name) for name in job.keys]
    if job.packed:
        return map(Keys().__getitem__, columns[0].to_pylist())
    if not columns:
        return [()] * len(heads)
    keys = list(map(python_values, columns))
    return map(as_key, keys[0] if len(keys) == 1 else zip(*keys, strict=True))


def _windows(heads: Chunk) -> Iterator[Window]:
    """The window of every result, made once for those that follow each other."""
    start, end = (shared_values(heads.column(name)) for name in _BOUNDS)
    window = Window(None, None)
    for one, other in zip(start, end, strict=True):
        if one is not window.start or other is not window.end:
            window = Window(one, other)
        yield window


class _Pairs:
    """What the reduce of a MapReduce job gave: keys, values, and the result each is of."""

    def __init__(self, heads: Chunk) -> None:
        self.heads = heads.table
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.origin: list[int] = []

    def add(self, index: int, result: Any) -> None:
        """All pairs of one result."""
        for key, value in () if result is None else result:
            self.keys.append(as_key(key))
            self.values.append(value)
            self.origin.append(index)

    def keep(self, at: Sequence[int]) -> None:
        """These and no others."""
        self.keys = [self.keys[one] for one in at]
        self.values = [self.values[one] for one in at]
        self.origin = [self.origin[one] for one in at]

    def table(self) -> tuple[pa.Table, dict[int, str]]:
        """As columns, with the bounds of their windows; and those that cannot be stored."""
        if not self.origin:
            return to_table([], None, any_type=True)
        bad: dict[int, str] = {}
        columns = {
            "key": any_column("key", self.keys, bad),
            "value": any_column("value", self.values, bad),
        }
        if bad:
            return pa.table({}), bad
        rows = pa.array(self.origin)
        for name in _BOUNDS:
            if name in self.heads.column_names:
                bound = flat(self.heads.column(name)).take(rows)
                nothing = bound.null_count == len(bound)
                columns[name] = pa.nulls(len(bound)) if nothing else bound
        return exactly(columns), bad


class _Rows:
    """What a reduce function gave: rows with key and window, and the result each is of."""

    def __init__(self, heads: Chunk) -> None:
        # Without keys and bounds a table has no columns, and so forgets its number of rows.
        self.heads = python_rows(heads.table) or [{} for _ in range(len(heads))]
        self.rows: list[dict[str, Any]] = []
        self.origin: list[int] = []

    def add(self, index: int, result: Any) -> None:
        """All rows of one result."""
        if not isinstance(result, dict | list | tuple) and not hasattr(result, "__next__"):
            result = None if result is None else {"value": result}
        for row in several(result):
            self.rows.append(self.heads[index] | row)
            self.origin.append(index)

    def keep(self, at: Sequence[int]) -> None:
        """These and no others."""
        self.rows = [self.rows[one] for one in at]
        self.origin = [self.origin[one] for one in at]

    def table(self) -> tuple[pa.Table, dict[int, str]]:
        """As columns; and those that cannot be stored."""
        return to_table(self.rows, None, any_type=True)
