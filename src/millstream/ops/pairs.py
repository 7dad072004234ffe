"""Pairs of a MapReduce job between `map` and its windows: two columns.

Keys are packed. Values are packed, too, or a column of one of Python's plain types, which a packed
value (a binary column) cannot be taken for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream.ops.codec import decode, encode, pack
from millstream.ops.mixed import REFUSED

_NOTHING = type(None)
_COLUMNS = (int, float, str, bool)  # each has a type of Arrow's that gives it back


class Packed(bytes):
    """A packed value among others that are not."""


def packed(values: Sequence[Any]) -> pa.Array:
    """Values of plain types, and such that are packed already, as a packed column."""
    kinds = set(map(type, values))
    if kinds == {Packed}:
        return pa.array(values, pa.binary())
    try:
        if Packed not in kinds:
            return pa.array(list(map(pack, values)), pa.binary())
    except (OverflowError, ValueError):  # whole numbers of more than 64 bits, text that is none
        pass
    return pa.array([v if type(v) is Packed else encode(v) for v in values], pa.binary())


def value_column(values: list[Any]) -> pa.Array:
    """Values of one plain type as a column of that type, all others packed."""
    kinds = set(map(type, values)) - {_NOTHING}
    if len(kinds) == 1 and kinds.issubset(_COLUMNS):
        try:
            return pa.array(values)
        except REFUSED:  # whole numbers of more than 64 bits, text that is none
            pass
    return packed(values)


def unpacked(column: pa.Array) -> list[Any]:
    """The values of a column of either kind."""
    values: list[Any] = column.to_pylist()
    return list(map(decode, values)) if pa.types.is_binary(column.type) else values


def as_packed(column: pa.Array) -> pa.Array:
    """A column of either kind as a packed one."""
    return column if pa.types.is_binary(column.type) else packed(column.to_pylist())
