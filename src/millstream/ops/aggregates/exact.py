"""Exact totals: sums from which values can be taken away again without a trace.

A float is a whole number times a power of two. A total of floats is kept as such a number of any
length, so that it does not depend on the order of what was added and taken away, and is rounded
once, where it is looked at. Infinities and NaN are counted beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millstream.ops.chunks import Int64
from millstream.ops.keys.hashing import group_by

Entry = list[Any]  # of a total: [records, exponent, mantissa], and if need be [inf, -inf, NaN]
Numbers = np.ndarray[Any, Any]
_HALF = 27  # bits of a mantissa that are summed together: no sum of 2^26 rows overflows
_THIRD = 22  # bits of a third of one, whose products are summed

NOTHING: Entry = [0, 0, 0]


def summed(numbers: Numbers, group: Int64, count: int) -> list[Entry]:
    """The exact total of every group: mantissas of one exponent are added as whole numbers."""
    mantissas, exponents, finite = _parts(numbers)
    return _entries(numbers, group, count, _add_up(mantissas, exponents, group[finite], count))


def squared(numbers: Numbers, group: Int64, count: int) -> list[Entry]:
    """The same of the squares of numbers, which no float could hold."""
    mantissas, exponents, finite = _parts(numbers)
    mask = (1 << _THIRD) - 1
    a, b, c = mantissas >> 2 * _THIRD, (mantissas >> _THIRD) & mask, mantissas & mask
    products = (c * c, 2 * b * c, 2 * a * c + b * b, 2 * a * b, a * a)
    powers = [2 * exponents + _THIRD * nth for nth in range(len(products))]
    several = np.tile(group[finite], len(products))
    sums = _add_up(np.concatenate(products), np.concatenate(powers), several, count)
    return _entries(numbers, group, count, sums)


def moved(one: Entry, other: Entry, sign: int) -> Entry:
    """A total with another added to it, or taken away."""
    mine, its = mantissa_of(one), mantissa_of(other)
    low = min(one[1], other[1])
    total = (mine << (one[1] - low)) + sign * (its << (other[1] - low))
    entry = _entry(one[0] + sign * other[0], low, total)
    if len(one) > 3 or len(other) > 3:
        odd = [a + sign * b for a, b in zip(_odd(one), _odd(other), strict=True)]
        if any(odd):
            entry.append(odd)
    return entry


def number(entry: Entry, whole: bool) -> int | float:
    """A total, rounded once."""
    plus, minus, nan = _odd(entry)
    if nan or (plus and minus):
        return float("nan")
    if plus or minus:
        return float("inf") if plus else float("-inf")
    return rounded(mantissa_of(entry), int(entry[1]), whole)


def variance(total: Entry, squares: Entry) -> float:
    """The sample variance of at least two numbers, rounded once."""
    if len(total) > 3:
        return float("nan")
    records, power = total[0], 2 * total[1]
    low = min(power, squares[1])
    spread = records * (mantissa_of(squares) << (squares[1] - low))
    spread -= mantissa_of(total) ** 2 << (power - low)
    return divided(spread, low, records * (records - 1))


def rounded(mantissa: int, exponent: int, whole: bool) -> int | float:
    """A mantissa times a power of two as a number."""
    if whole:
        return mantissa << max(exponent, 0)
    return divided(mantissa, exponent, 1)


def divided(mantissa: int, exponent: int, by: int) -> float:
    """A mantissa times a power of two, divided and rounded once."""
    try:
        return (mantissa << exponent) / by if exponent >= 0 else mantissa / (by << -exponent)
    except OverflowError:
        return float("inf") if mantissa > 0 else float("-inf")


def mantissa_of(entry: Entry) -> int:
    """The whole number of a total; it is bytes where MessagePack has no such number."""
    mantissa = entry[2]
    return mantissa if isinstance(mantissa, int) else int.from_bytes(mantissa, "big", signed=True)


def _parts(numbers: Numbers) -> tuple[Int64, Int64, Any]:
    """Mantissas and exponents of the finite ones, and which these are."""
    if numbers.dtype != np.float64:
        return numbers, np.zeros(len(numbers), np.int64), slice(None)
    finite = np.isfinite(numbers)
    share, power = np.frexp(numbers[finite])
    return np.ldexp(share, 53).astype(np.int64), power.astype(np.int64) - 53, finite


def _add_up(mantissas: Int64, exponents: Int64, group: Int64, count: int) -> list[tuple[int, int]]:
    """Per group the exponent and mantissa of a sum."""
    groups, at_group, exponent = group_by(group, exponents)
    high = np.zeros(len(at_group), np.int64)
    low = np.zeros(len(at_group), np.int64)
    np.add.at(high, groups, mantissas >> _HALF)
    np.add.at(low, groups, mantissas & ((1 << _HALF) - 1))
    sums: list[tuple[int, int]] = [(0, 0)] * count
    parts = zip(at_group.tolist(), exponent.tolist(), high.tolist(), low.tolist(), strict=True)
    for at, power, upper, lower in parts:
        base, total = sums[at]
        least = min(base, power) if total else power
        more = ((upper << _HALF) + lower) << (power - least)
        sums[at] = (least, (total << (base - least) if total else 0) + more)
    return sums


def _entries(
    numbers: Numbers, group: Int64, count: int, sums: list[tuple[int, int]]
) -> list[Entry]:
    records = np.bincount(group, minlength=count).tolist()
    entries = [_entry(n, *one) for n, one in zip(records, sums, strict=True)]
    if numbers.dtype == np.float64:
        strange = ~np.isfinite(numbers)
        odd: dict[int, list[int]] = {}
        for at, one in zip(group[strange].tolist(), numbers[strange].tolist(), strict=True):
            odd.setdefault(at, [0, 0, 0])[2 if one != one else int(one < 0)] += 1
        for at, counts in odd.items():
            entries[at].append(counts)
    return entries


def _entry(records: int, exponent: int, mantissa: int) -> Entry:
    if not mantissa:
        return [records, 0, 0]
    zeros = (mantissa & -mantissa).bit_length() - 1
    mantissa >>= zeros
    size = mantissa.bit_length()
    if size < 64:
        return [records, exponent + zeros, mantissa]
    return [records, exponent + zeros, mantissa.to_bytes(size // 8 + 1, "big", signed=True)]


def _odd(entry: Entry) -> list[int]:
    return entry[3] if len(entry) > 3 else [0, 0, 0]
