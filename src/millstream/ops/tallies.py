"""Tallies: how often each value of a column occurs, or how much of another column it has.

A state is a list [type of values, type of totals, {value: count or total}]. Totals are exact, so
that no answer depends on how the input was cut, and panes can be taken away without a trace.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import Int64
from millstream.ops.codec import decode, encode
from millstream.ops.holding import ObjectKernel, never
from millstream.ops.kernels import as_numbers
from millstream.ops.keys import canonical, factorize, group_by

State = list[Any]
Entry = list[Any]  # of a total: [records, exponent, mantissa], and if need be [inf, -inf, NaN]
_PLAIN = ("int64", "double", "string", "binary", "bool")
_HALF = 27  # bits of a mantissa that are summed together: no sum of 2^26 rows overflows


def distinct(name: str) -> ObjectKernel:
    """The number of different values."""

    def answers(states: list[State]) -> pa.Array:
        return pa.array([len(state[2]) for state in states], pa.int64())

    return ObjectKernel(name, zero, never, plus_counts, len, minus_counts, _counts, answers)


def top_k(name: str, k: int, by: bool) -> ObjectKernel:
    """The k most frequent values, or those with the largest totals."""
    top = _Top(k, by)
    if by:
        return ObjectKernel(name, zero, never, plus_totals, len, minus_totals, _totals, top.answers)
    return ObjectKernel(name, zero, never, plus_counts, len, minus_counts, _counts, top.answers)


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
        kind, wires = _wires(self.values)
        keys = [wires[code] for code in self.value.tolist()]
        entries = entries.tolist() if isinstance(entries, np.ndarray) else entries
        cuts = np.searchsorted(self.group, np.arange(count + 1)).tolist()
        spans = itertools.pairwise(cuts)
        return pa.array(
            [encode([kind, by, dict(zip(keys[a:b], entries[a:b], strict=True))]) for a, b in spans],
            pa.binary(),
        )


# -- totals --------------------------------------------------------------------------------------


def plus_totals(left: State, right: State) -> State:
    """Both together, in the left one."""
    _widen(left, right)
    totals = left[2]
    for value, entry in right[2].items():
        mine = totals.get(value)
        totals[value] = entry if mine is None else _moved(mine, entry, 1)
    return left


def minus_totals(total: State, expired: State) -> State:
    """What is left, in the total."""
    totals = total[2]
    for value, entry in expired[2].items():
        rest = _moved(totals[value], entry, -1)
        if rest[0]:
            totals[value] = rest
        else:
            del totals[value]
    return total


def _moved(one: Entry, other: Entry, sign: int) -> Entry:
    mine, its = _mantissa(one), _mantissa(other)
    low = min(one[1], other[1])
    total = (mine << (one[1] - low)) + sign * (its << (other[1] - low))
    entry = _entry(one[0] + sign * other[0], low, total)
    if len(one) > 3 or len(other) > 3:
        odd = [a + sign * b for a, b in zip(_odd(one), _odd(other), strict=True)]
        if any(odd):
            entry.append(odd)
    return entry


def _entry(records: int, exponent: int, mantissa: int) -> Entry:
    if not mantissa:
        return [records, 0, 0]
    zeros = (mantissa & -mantissa).bit_length() - 1
    mantissa >>= zeros
    size = mantissa.bit_length()
    if size < 64:
        return [records, exponent + zeros, mantissa]
    return [records, exponent + zeros, mantissa.to_bytes(size // 8 + 1, "big", signed=True)]


def _mantissa(entry: Entry) -> int:
    mantissa = entry[2]  # as bytes where MessagePack has no such number
    return mantissa if isinstance(mantissa, int) else int.from_bytes(mantissa, "big", signed=True)


def _odd(entry: Entry) -> list[int]:
    return entry[3] if len(entry) > 3 else [0, 0, 0]


def _number(entry: Entry, whole: bool) -> int | float:
    """A total, rounded once."""
    plus, minus, nan = _odd(entry)
    if nan or (plus and minus):
        return float("nan")
    if plus or minus:
        return float("inf") if plus else float("-inf")
    mantissa, exponent = _mantissa(entry), int(entry[1])
    if exponent >= 0:
        mantissa <<= exponent
        exponent = 0
    if whole:
        return mantissa
    try:
        return float(mantissa / (1 << -exponent))
    except OverflowError:
        return float("inf") if mantissa > 0 else float("-inf")


def _totals(columns: list[pa.Array], groups: Int64, count: int) -> pa.Array:
    values, by = columns
    numbers, there = as_numbers(by, "top_k(by=)")
    there &= np.asarray(pc.is_valid(values))
    values, groups, numbers = values.filter(pa.array(there)), groups[there], numbers[there]
    pairs = _Pairs.of(values, groups)
    kind = "null"
    if not pa.types.is_null(by.type):
        kind = "double" if numbers.dtype == np.float64 else "int64"
    return pairs.states(_summed(numbers, pairs.of_row, len(pairs.group)), kind, count)


def _summed(numbers: np.ndarray[Any, Any], pair: Int64, count: int) -> list[Entry]:
    """The exact total of every pair: mantissas of the same exponent are added as whole numbers."""
    records = np.bincount(pair, minlength=count).tolist()
    odd: dict[int, list[int]] = {}
    if numbers.dtype == np.float64:
        finite = np.isfinite(numbers)
        strange = zip(pair[~finite].tolist(), numbers[~finite].tolist(), strict=True)
        for at, number in strange:
            odd.setdefault(at, [0, 0, 0])[2 if number != number else int(number < 0)] += 1
        share, power = np.frexp(numbers[finite])
        mantissas = np.ldexp(share, 53).astype(np.int64)
        exponents, pair = power.astype(np.int64) - 53, pair[finite]
    else:
        mantissas, exponents = numbers, np.zeros(len(numbers), np.int64)
    groups, at_pair, exponent = group_by(pair, exponents)
    high = np.zeros(len(at_pair), np.int64)
    low = np.zeros(len(at_pair), np.int64)
    np.add.at(high, groups, mantissas >> _HALF)
    np.add.at(low, groups, mantissas & ((1 << _HALF) - 1))
    sums: list[tuple[int, int]] = [(0, 0)] * count  # exponent, mantissa
    parts = zip(at_pair.tolist(), exponent.tolist(), high.tolist(), low.tolist(), strict=True)
    for at, power_of, upper, lower in parts:
        base, total = sums[at]
        least = min(base, power_of) if total else power_of
        more = ((upper << _HALF) + lower) << (power_of - least)
        sums[at] = (least, (total << (base - least) if total else 0) + more)
    entries = [_entry(n, *one) for n, one in zip(records, sums, strict=True)]
    for at, counts in odd.items():
        entries[at].append(counts)
    return entries


# -- the largest ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Top:
    k: int
    by: bool

    def answers(self, states: list[State]) -> pa.Array:
        """Lists of (value, count) or (value, total), the largest first."""
        kinds = reduce(_wider, (state[0] for state in states), "null")
        total_kind = reduce(_wider, (state[1] for state in states), "null")
        found = [self._best(state[2], total_kind == "int64") for state in states]
        offsets = np.cumsum([0, *map(len, found)])
        values = _column([value for one in found for value, _ in one], kinds)
        kind = _type(total_kind) if self.by else pa.int64()
        sizes = [size for one in found for _, size in one]
        try:
            numbers = pa.array(sizes, kind)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise RunError("top_k(by=) overflows 64 bits; cast the column to DOUBLE first") from (
                error
            )
        fields = ["value", "total" if self.by else "count"]
        structs = pa.StructArray.from_arrays([values, numbers], fields)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)

    def _best(self, tally: dict[Any, Any], whole: bool) -> list[tuple[Any, Any]]:
        items = tally.items()
        if not self.by:
            if len(tally) > self.k:
                least = sorted(tally.values(), reverse=True)[self.k - 1]
                items = [item for item in items if item[1] >= least]  # type: ignore[assignment]
            return sorted(items, key=lambda item: (-item[1], item[0] is None, item[0]))[: self.k]
        totals = [(value, _number(entry, whole)) for value, entry in items]
        return sorted(totals, key=_by_total)[: self.k]


def _by_total(item: tuple[Any, float]) -> tuple[Any, ...]:
    """Descending totals, NaN first as it is the largest; then ascending values, NaN last."""
    value, total = item
    nan = total != total
    return (not nan, 0 if nan else -total, value is None, value)


# -- values as dict keys: what msgpack can hold, and the type to make them of again ---------------


def _wires(values: pa.Array) -> tuple[str, list[Any]]:
    """Plain Python values and their type. NaN is None, as there are no nulls; times are numbers."""
    values = canonical(values)
    kind = values.type
    if pa.types.is_null(kind):
        return "null", []
    if pa.types.is_floating(kind):
        return "double", [None if v != v else v for v in values.to_pylist()]
    if str(kind) in _PLAIN:
        return str(kind), values.to_pylist()
    if pa.types.is_temporal(kind):
        if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
            values = values.cast(pa.timestamp("us", kind.tz))
        number = pa.int32() if values.type.bit_width == 32 else pa.int64()
        return str(values.type), values.view(number).to_pylist()
    return "packed", [encode(value) for value in values.to_pylist()]


def _type(kind: str) -> pa.DataType:
    if kind.startswith("timestamp[") and ", tz=" in kind:
        unit, zone = kind.removeprefix("timestamp[").removesuffix("]").split(", tz=")
        return pa.timestamp(unit, zone)
    return pa.type_for_alias(kind)


def _column(wires: list[Any], kind: str) -> pa.Array:
    if kind == "packed":
        return pa.array([decode(wire) for wire in wires])
    if kind == "double":
        return pa.array([float("nan") if wire is None else float(wire) for wire in wires], kind)
    if kind in _PLAIN or kind == "null":
        return pa.array(wires, kind)
    made = _type(kind)
    return pa.array(wires, pa.int32() if made.bit_width == 32 else pa.int64()).view(made)


def _widen(left: State, right: State) -> None:
    for place in (0, 1):
        if left[place] != right[place]:
            left[place] = _wider(left[place], right[place])


def _wider(one: str, other: str) -> str:
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if {one, other} == {"int64", "double"}:
        return "double"
    raise RunError(
        f"a column is {one} in some records and {other} in others; give map() a schema or cast "
        "the column first"
    )
