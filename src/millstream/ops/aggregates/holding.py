"""Aggregates in plain Python: a user's `Aggregate`, a MapReduce `combine`, and kept values.

What has a `combine` is kept as one state per pane, and slides through two stacks, so that every
result costs O(1) combines. What has none keeps its values and gets them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.chunks import Int64
from millstream.ops.codec import decode, encode, fresh
from millstream.ops.records import describe, shown

if TYPE_CHECKING:
    from millstream.ops.aggregates.totals import DecimalTotal

_SHOWN = 200  # characters of a state in a message


class StateError(RunError):
    """A state a user's function could not give, and the row it is about, whose key names it."""

    def __init__(self, message: str, at: int = -1) -> None:
        super().__init__(message)
        self.at = at


@contextmanager
def naming(operators: str, key_of: Callable[[int], Any]) -> Iterator[None]:
    """Say of which operator and key an error of a state is.

    It ends the run: a state is part of many windows, so that no single result could be set aside.
    """
    try:
        yield
    except StateError as error:
        key = shown(key_of(error.at))[:_SHOWN] if error.at >= 0 else "unknown"
        raise RunError(f"{operators}, key {key}: {error}") from error


@dataclass(frozen=True)
class ObjectKernel:
    """States of any Python type, combined by a user's function."""

    name: str
    zero: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    inverse: Callable[[Any, Any], Any] | None = None  # uncombine
    bulk: Callable[[list[pa.Array], Int64, int], pa.Array] | None = None  # lift whole columns
    typed: Callable[[list[Any]], pa.Array] | None = None  # all answers as a column of known type
    windows: Callable[[pa.Array, Int64, Int64], pa.Array] | None = (
        None  # answers of `slide`, faster
    )
    fails: Callable[[Any], str | None] | None = None  # why a state has no answer
    bare: Callable[[Any], Any] | None = None  # what a message shows of a state
    gather: Callable[[bytes, list[Any]], Any] | None = None  # of pairs: all values of a key at once
    decimals: DecimalTotal | None = None  # whose total or mean it is, if of decimals

    def lift(self, values: list[Any], groups: Int64, count: int) -> tuple[pa.Array, dict[int, str]]:
        """One state per group; values on which `add` raises are given back with the error."""
        states: list[Any] = [None] * count
        started = [False] * count
        bad: dict[int, str] = {}
        for index, (group, value) in enumerate(zip(groups.tolist(), values, strict=True)):
            if value is None:
                continue
            try:
                state = states[group] if started[group] else self.zero()
                states[group] = self.add(state, value)
                started[group] = True
            except StateError as error:  # of a combine, which is of more than this value
                raise StateError(str(error), index) from error
            except BaseException as error:  # a user's function may raise anything
                bad[index] = describe(error)
        encoded = []
        for group, (state, any_yet) in enumerate(zip(states, started, strict=True)):
            try:
                encoded.append(encode(state if any_yet else self.zero()))
            except RunError as error:
                row = int(np.flatnonzero(groups == group)[0])
                raise StateError(f"{self.name}: {error}", row) from error
        return pa.array(encoded, pa.binary()), bad

    def lift_pairs(self, keys: pa.Array, values: list[Any], groups: Int64, count: int) -> pa.Array:
        """One state per group of pairs, whose key is the same; an error is of the key."""
        assert self.gather is not None
        sizes = np.bincount(groups, minlength=count)
        ends = np.cumsum(sizes)
        order = np.argsort(groups, kind="stable")
        first = order[ends - sizes]
        values = list(map(values.__getitem__, order.tolist()))
        encoded = []
        spans = zip(
            first.tolist(),
            keys.take(pa.array(first)).to_pylist(),
            (ends - sizes).tolist(),
            ends.tolist(),
            strict=True,
        )
        for at, key, start, stop in spans:
            try:
                encoded.append(self._packed(self.gather(key, values[start:stop]), at))
            except StateError as error:
                raise StateError(str(error), at) from error
        return pa.array(encoded, pa.binary())

    def merge(self, states: pa.Array, groups: Int64, count: int) -> pa.Array:
        """States of the same group combined, in the order they stand in."""
        merged: list[bytes | None] = [None] * count
        pending: dict[int, tuple[Any, int]] = {}
        for row, (group, data) in enumerate(zip(groups.tolist(), states.to_pylist(), strict=True)):
            if merged[group] is None:
                merged[group] = data
            else:
                left = pending[group][0] if group in pending else decode(merged[group] or b"")
                pending[group] = self._combine(left, decode(data), row), row
        for group, (state, row) in pending.items():
            merged[group] = self._packed(state, row)
        return pa.array(merged, pa.binary())

    def slide(self, states: pa.Array, low: Int64, high: Int64) -> list[Any]:
        """The state of every window [low, high) over ascending rows, by two stacks."""
        rows = self.decoded(states)
        front: list[tuple[int, Any]] = []  # (row, this row and all later ones of the stack)
        back: Any = None
        back_from = back_to = 0  # rows [back_from, back_to) are in `back`
        out = []
        for start, stop in zip(low.tolist(), high.tolist(), strict=True):
            if start >= back_to:
                front, back_from, back_to = [], start, start
            while back_to < stop:
                row = fresh(rows[back_to])
                back = row if back_to == back_from else self._combine(back, row, back_to)
                back_to += 1
            while front and front[-1][0] < start:
                front.pop()
            if not front and back_from < start:
                for row_at in range(back_to - 1, start - 1, -1):
                    row = fresh(rows[row_at])
                    state = self._combine(row, fresh(front[-1][1]), row_at) if front else row
                    front.append((row_at, state))
                back_from = back_to
            if not front:
                out.append(fresh(back))
            elif back_from == back_to:
                out.append(fresh(front[-1][1]))
            else:
                out.append(self._combine(fresh(front[-1][1]), fresh(back), start))
        return out

    def decoded(self, states: pa.Array) -> list[Any]:
        """States as they come from a table."""
        return [decode(data) for data in states.to_pylist()]

    def plus(self, left: Any, right: Any, at: int = -1) -> Any:
        """Two states as one; an error says which, and of which row."""
        return self._combine(left, right, at)

    def minus(self, total: Any, expired: Any, at: int = -1) -> Any:
        """What is left of a total; an error says of which."""
        assert self.inverse is not None
        try:
            return self.inverse(total, expired)
        except BaseException as error:
            told = f"uncombine({self._told(total)}, {self._told(expired)})"
            raise StateError(f"{self.name}: {told} raised {describe(error)}", at) from error

    def _combine(self, left: Any, right: Any, at: int) -> Any:
        try:
            return self.combine(left, right)
        except StateError as error:
            raise StateError(str(error), at) from error
        except BaseException as error:
            told = f"combine({self._told(left)}, {self._told(right)})"
            raise StateError(f"{self.name}: {told} raised {describe(error)}", at) from error

    def _packed(self, state: Any, at: int) -> bytes:
        try:
            return encode(state)
        except RunError as error:
            raise StateError(f"{self.name}: {error}", at) from error

    def _told(self, state: Any) -> str:
        if self.bare is not None and state is not None:
            state = self.bare(state)
        return shown(state)[:_SHOWN]


def never(state: Any, value: Any) -> Any:
    """The `add` of states that are made from whole columns."""
    raise NotImplementedError


def gather_lists(values: pa.Array, low: Int64, high: Int64) -> pa.Array:
    """The values of every window as a list column."""
    sizes = high - low
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    nth = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], sizes)
    rows = np.repeat(low, sizes) + nth
    taken = values.take(pa.array(rows))
    if int(offsets[-1]) < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), taken)
