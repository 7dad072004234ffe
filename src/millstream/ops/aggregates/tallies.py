"""Tallies: how often each value of a column occurs, or how much of another column it has.

A state is a list [type of values, type of totals, {value: count or total}]. Totals are exact, so
that no answer depends on how the input was cut, and panes can be taken away without a trace.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.aggregates.exact import Entry, mantissa_of, moved, number, rounded, summed
from millstream.ops.aggregates.holding import ObjectKernel, never
from millstream.ops.aggregates.kernels import as_numbers
from millstream.ops.chunks import Int64
from millstream.ops.codec import decode, encode, pack
from millstream.ops.keys.hashing import factorize, group_by, one_number
from millstream.ops.keys.wires import column_of, type_of, wider, wires_of

State = list[Any]


def distinct(name: str) -> ObjectKernel:
    """The number of different values."""

    def answers(states: list[State]) -> pa.Array:
        return pa.array([len(state[2]) for state in states], pa.int64())

    def windows(states: pa.Array, low: Int64, high: Int64) -> pa.Array:
        return pa.array([len(tally) for tally in _slide_counts(_decoded(states), low, high)])

    kernel = ObjectKernel(name, zero, never, plus_counts, len, minus_counts, _counts, answers)
    return replace(kernel, windows=windows)


def top_k(name: str, k: int, by: bool) -> ObjectKernel:
    """The k most frequent values, or those with the largest totals."""
    top = _Top(k, by)
    moves = (plus_totals, minus_totals, _totals) if by else (plus_counts, minus_counts, _counts)
    plus, minus, bulk = moves
    return ObjectKernel(name, zero, never, plus, len, minus, bulk, top.answers, windows=top.windows)


def zero() -> State:
    """Nothing counted."""
    return ["null", "null", {}]


# -- counts --------------------------------------------------------------------------------------


def plus_counts(left: State, right: State) -> State:
    """Both together, in the left one."""
    _widen(left, right)
    counts = left[2]
    for value, count in right[2].items():
        counts[value] = counts.get(value, 0) + count
    return left


def minus_counts(total: State, expired: State) -> State:
    """What is left, in the total."""
    _repack(expired, total[0])
    counts = total[2]
    for value, count in expired[2].items():
        rest = counts[value] - count
        if rest:
            counts[value] = rest
        else:
            del counts[value]
    return total


def _counts(columns: list[pa.Array], groups: Int64, count: int) -> pa.Array:
    (values,) = columns
    there = np.asarray(pc.is_valid(values))
    if not there.all():
        values, groups = values.filter(pa.array(there)), groups[there]
    pairs = _Pairs.of(values, groups)
    return pairs.states(np.bincount(pairs.of_row, minlength=len(pairs.group)), "null", count)


@dataclass(frozen=True)
class _Pairs:
    """The pairs of group and value that occur, ascending; and the pair of every row."""

    of_row: Int64
    group: Int64
    value: Int64
    values: pa.Array

    @classmethod
    def of(cls, values: pa.Array, groups: Int64) -> _Pairs:
        codes, (uniques,) = factorize([values])
        return cls(*group_by(groups, codes), uniques)

    def states(self, entries: Any, by: str, count: int) -> pa.Array:
        """One state per group, from one entry per pair."""
        kind, wires = wires_of(self.values)
        keys = [wires[code] for code in self.value.tolist()]
        entries = entries.tolist() if isinstance(entries, np.ndarray) else entries
        cuts = np.searchsorted(self.group, np.arange(count + 1)).tolist()
        spans = itertools.pairwise(cuts)
        return pa.array(
            [pack([kind, by, dict(zip(keys[a:b], entries[a:b], strict=True))]) for a, b in spans],
            pa.binary(),
        )


# -- totals --------------------------------------------------------------------------------------


def plus_totals(left: State, right: State) -> State:
    """Both together, in the left one."""
    _widen(left, right)
    totals = left[2]
    for value, entry in right[2].items():
        mine = totals.get(value)
        totals[value] = entry if mine is None else moved(mine, entry, 1)
    return left


def minus_totals(total: State, expired: State) -> State:
    """What is left, in the total."""
    _repack(expired, total[0])
    totals = total[2]
    for value, entry in expired[2].items():
        rest = moved(totals[value], entry, -1)
        if rest[0]:
            totals[value] = rest
        else:
            del totals[value]
    return total


def _totals(columns: list[pa.Array], groups: Int64, count: int) -> pa.Array:
    values, by = columns
    numbers, there = as_numbers(by, "top_k(by=)")
    there &= np.asarray(pc.is_valid(values))
    values, groups, numbers = values.filter(pa.array(there)), groups[there], numbers[there]
    pairs = _Pairs.of(values, groups)
    kind = "null"
    if not pa.types.is_null(by.type):
        kind = "double" if numbers.dtype == np.float64 else "int64"
    return pairs.states(summed(numbers, pairs.of_row, len(pairs.group)), kind, count)


# -- windows: a pane is added when it enters and taken away when it leaves -------------------------


def _decoded(states: pa.Array) -> list[State]:
    found = [decode(data) for data in states.to_pylist()]
    kind, _ = _kinds(found)
    for state in found:
        _repack(state, kind)
    return found


def _entering_and_leaving(low: Int64, high: Int64) -> Iterator[tuple[bool, range, range]]:
    """Per window whether it begins anew, the rows that enter, and those that leave."""
    start = stop = 0
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        anew = first >= stop
        if anew:
            start = stop = first
        yield anew, range(stop, last), range(start, first)
        start, stop = first, last


def _slide_counts(rows: list[State], low: Int64, high: Int64) -> Iterator[dict[Any, int]]:
    """The counts of every window, one after the other in the same dict."""
    tally: dict[Any, int] = {}
    for anew, enter, leave in _entering_and_leaving(low, high):
        if anew:
            tally.clear()
        for row in enter:
            for value, count in rows[row][2].items():
                tally[value] = tally.get(value, 0) + count
        for row in leave:
            for value, count in rows[row][2].items():
                rest = tally[value] - count
                if rest:
                    tally[value] = rest
                else:
                    del tally[value]
        yield tally


def _slide_totals(
    rows: list[State], base: int, low: Int64, high: Int64
) -> Iterator[dict[Any, int]]:
    """The totals of every window in units of 2^base, in the same dict; all must be finite."""
    shifted = [
        [(value, e[0], mantissa_of(e) << (e[1] - base)) for value, e in row[2].items()]
        for row in rows
    ]
    totals: dict[Any, int] = {}
    records: dict[Any, int] = {}
    for anew, enter, leave in _entering_and_leaving(low, high):
        if anew:
            totals.clear()
            records.clear()
        for row in enter:
            for value, count, total in shifted[row]:
                totals[value] = totals.get(value, 0) + total
                records[value] = records.get(value, 0) + count
        for row in leave:
            for value, count, total in shifted[row]:
                records[value] -= count
                if records[value]:
                    totals[value] -= total
                else:
                    del records[value], totals[value]
        yield totals


# -- the largest ---------------------------------------------------------------------------------

Best = list[tuple[Any, Any]]


@dataclass(frozen=True)
class _Top:
    k: int
    by: bool

    def answers(self, states: list[State]) -> pa.Array:
        """Lists of (value, count) or (value, total), the largest first."""
        kind, total_kind = _kinds(states)
        for state in states:
            _repack(state, kind)
        whole = total_kind == "int64"
        if self.by:
            found = [self._best_total(state[2], whole) for state in states]
        else:
            found = [self._best_count(state[2]) for state in states]
        return self._column(found, kind, total_kind)

    def windows(self, states: pa.Array, low: Int64, high: Int64) -> pa.Array:
        """The answers of windows [low, high) over the states of ascending panes."""
        rows = _decoded(states)
        kind, total_kind = _kinds(
            [row for row, held in zip(rows, _held(low, high, len(rows)), strict=True) if held]
        )
        whole = total_kind == "int64"
        if not self.by:
            found = [self._best_count(tally) for tally in _slide_counts(rows, low, high)]
            return self._column(found, kind, total_kind)
        entries = [entry for row in rows for entry in row[2].values()]
        if all(len(entry) == 3 for entry in entries):
            base = min((entry[1] for entry in entries), default=0)
            slid = _slide_totals(rows, base, low, high)
            found = [self._largest(totals, base, whole) for totals in slid]
        else:  # infinities and NaN are counted beside the total
            found = [self._best_total(state[2], whole) for state in _slide_entries(rows, low, high)]
        return self._column(found, kind, total_kind)

    def _column(self, found: list[Best], kind: str, total_kind: str) -> pa.Array:
        offsets = np.cumsum([0, *map(len, found)])
        values = column_of([value for one in found for value, _ in one], kind)
        sizes = [size for one in found for _, size in one]
        if self.by and total_kind == "int64":  # their order is known, whatever can be stored
            sizes = [one if -(2**63) <= one < 2**63 else None for one in sizes]
        numbers = pa.array(sizes, type_of(total_kind) if self.by else pa.int64())
        fields = ["value", "total" if self.by else "count"]
        structs = pa.StructArray.from_arrays([values, numbers], fields)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)

    def _best_count(self, tally: dict[Any, int]) -> Best:
        items: Iterable[tuple[Any, int]] = tally.items()
        if len(tally) > self.k:
            least = heapq.nlargest(self.k, tally.values())[-1]
            items = [item for item in items if item[1] >= least]
        return sorted(items, key=lambda item: (-item[1], item[0] is None, item[0]))[: self.k]

    def _best_total(self, tally: dict[Any, Entry], whole: bool) -> Best:
        if any(len(entry) > 3 for entry in tally.values()):
            totals = [(value, number(entry, whole)) for value, entry in tally.items()]
            return sorted(totals, key=_by_total)[: self.k]
        base = min((entry[1] for entry in tally.values()), default=0)
        exact = {value: mantissa_of(e) << (e[1] - base) for value, e in tally.items()}
        return self._largest(exact, base, whole)

    def _largest(self, totals: dict[Any, int], base: int, whole: bool) -> Best:
        """By totals in units of 2^base: only those that can be among the first are rounded."""
        items: Iterable[tuple[Any, int]] = totals.items()
        if len(totals) > self.k:
            least = heapq.nlargest(self.k, totals.values())[-1]
            if math.isfinite(rounded(least, base, whole)):
                least -= (abs(least) >> 52) + 1  # as near as this, it may be the same when rounded
                items = [item for item in items if item[1] >= least]
        once = [(value, rounded(total, base, whole)) for value, total in items]
        return sorted(once, key=_by_total)[: self.k]


def _kinds(states: list[State]) -> tuple[str, str]:
    """The types of all values, and of all totals."""
    kinds = {(state[0], state[1]) for state in states}
    ordered = sorted(kinds)
    return (
        reduce(wider, (kind for kind, _ in ordered), "null"),
        reduce(wider, (kind for _, kind in ordered), "null"),
    )


def _held(low: Int64, high: Int64, count: int) -> list[bool]:
    """Which rows are in any window."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, low, 1)
    np.add.at(change, high, -1)
    held: list[bool] = (np.cumsum(change[:-1]) > 0).tolist()
    return held


def _slide_entries(rows: list[State], low: Int64, high: Int64) -> Iterator[State]:
    """The entries of every window, in the same state."""
    state = zero()
    for anew, enter, leave in _entering_and_leaving(low, high):
        if anew:
            state = zero()
        for row in enter:
            state = plus_totals(state, ["null", "null", dict(rows[row][2])])
        for row in leave:
            state = minus_totals(state, rows[row])
        yield state


def _by_total(item: tuple[Any, float]) -> tuple[Any, ...]:
    """Descending totals, NaN first as it is the largest; then ascending values, NaN last."""
    value, total = item
    nan = total != total
    return (not nan, 0 if nan else -total, value is None, value)


def _widen(left: State, right: State) -> None:
    if left[0] != right[0]:
        kind = wider(left[0], right[0])
        for state in (left, right):
            _repack(state, kind)
        left[0] = kind
    if left[1] != right[1]:
        left[1] = wider(left[1], right[1])


def _repack(state: State, kind: str) -> None:
    """Pack the values of a state if those of others have types that do not go with theirs."""
    if kind == "packed" != state[0]:
        values = map(one_number, column_of(list(state[2]), state[0]).to_pylist())
        state[2] = dict(zip(map(encode, values), state[2].values(), strict=True))
        state[0] = kind
