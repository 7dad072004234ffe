"""The columns of a joined row: which side each comes from, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.operators.protocol import Input, Inputs, Types
from millstream.ops.chunks import concat, own_columns
from millstream.ops.mixed import differ, exact_columns, exactly, mixed, wider

Refused = dict[int, str]  # rows, and why
_DIGITS = 15  # that every double keeps
_EXACT = Context(prec=80)  # more than any decimal has


@dataclass(frozen=True)
class Layout:
    """How joined rows are made of the rows of both sides."""

    keys: tuple[tuple[str, str], ...]  # of the left and of the right side
    one_side: bool = False  # only the left columns are given
    renamed: dict[str, str] = field(default_factory=dict)  # right column -> what it is called
    known: tuple[Types | None, Types | None] = (None, None)  # columns of both sides
    casts: tuple[pa.DataType | None, ...] = ()  # per key the type in which both are compared

    @property
    def merged(self) -> set[str]:
        """Keys with one name on both sides: one column."""
        return {left for left, right in self.keys if left == right}

    def joined(self, left: pa.Table | None, right: pa.Table | None) -> tuple[pa.Table, Refused]:
        """Rows of both sides beside each other; None: null on that side.

        Beside them, why some cannot be: both sides have a value in columns of one name, which is
        known before unless they come from functions.
        """
        count = len(left) if left is not None else len(right) if right is not None else 0
        columns, refused = self._of_side(0, left, count), Refused()
        sides = (own_columns(rows) for rows in (left, right) if rows is not None)
        exact = {name for rows in sides for name in exact_columns(rows)}
        if self.one_side:
            return exactly(columns, exact), refused
        others = self._of_side(1, right, count)
        for name in self.merged:
            if name in others:
                value = others.pop(name)
                columns[name] = value if left is None else columns.get(name, value)
        for name, value in others.items():
            called = self.renamed.get(name, name)
            if called in columns:
                value = _either(called, columns[called], value, refused)
            columns[called] = value
            if name in exact:
                exact.add(called)
        return exactly(columns, exact), refused

    def _of_side(self, side: int, rows: pa.Table | None, count: int) -> dict[str, pa.ChunkedArray]:
        if rows is None:
            return {
                name: pa.chunked_array([pa.nulls(count, kind)])
                for name, kind in (self.known[side] or {}).items()
            }
        own = own_columns(rows)
        return dict(zip(own.column_names, own.columns, strict=True))

    def comparable(self, number: int, column: pa.Array) -> pa.Array:
        """A key column in the type in which both sides are compared."""
        kind = self.casts[number] if number < len(self.casts) else None
        if kind is not None and column.type != kind:
            return pc.cast(column, kind, safe=not pa.types.is_floating(kind))
        if pa.types.is_decimal(column.type):
            return mixed(map(_number, column.to_pylist()))
        return column


def _either(
    name: str, left: pa.ChunkedArray, right: pa.ChunkedArray, refused: Refused
) -> pa.ChunkedArray:
    """A column that both sides have, of rows where one of them has a value."""
    there, other = (np.asarray(column.is_valid()) for column in (left, right))
    why = f"both sides have a value in {name!r}: rename one of them, or give it a schema="
    for row in np.flatnonzero(there & other).tolist():
        refused.setdefault(row, why)
    place = np.arange(len(there)) + np.where(there, 0, len(there))
    both = concat([pa.table({name: left}), pa.table({name: right})])
    return both.column(name).take(pa.array(place))


def lay_out(
    step: str, how: str, keys: tuple[tuple[str, str], ...], suffix: str, inputs: Inputs
) -> Layout:
    """The layout of a join, as far as columns are known; refuses what cannot be."""
    left, right = inputs
    one_side = how in ("semi", "anti")
    known = tuple(_known(one) for one in inputs)
    casts = tuple(_cast(step, left, right, *pair) for pair in keys)
    renamed: dict[str, str] = {}
    for side, shown in ((0, ("right", "full")), (1, ("left", "full", "asof"))):
        if how in shown and inputs[side].columns is None and any(one.columns for one in inputs):
            raise ConfigError(
                f"{step}: how={how!r} gives rows with null in the columns of "
                f"{inputs[side].name!r}, which are not known because they come from a function; "
                "give that step a schema="
            )
    if not one_side and left.columns is not None and right.columns is not None:
        merged = {one for one, other in keys if one == other}
        taken = set(left.columns)
        for name in right.columns:
            if name in merged or name not in left.columns:
                continue
            called = name + suffix
            if not suffix or called in taken or called in right.columns:
                told = f"and {called!r} is there, too" if suffix else "and suffix= is empty"
                raise ConfigError(
                    f"{step}: both sides have a column {name!r}, {told}; rename one of them with "
                    ".select(), or give another suffix="
                )
            renamed[name] = called
    return Layout(keys, one_side, renamed, (known[0], known[1]), casts)


def _known(one: Input) -> Types | None:
    if one.columns is None:
        return None
    return {name: one.types.get(name, pa.null()) for name in one.columns}


def _cast(step: str, left: Input, right: Input, mine: str, other: str) -> pa.DataType | None:
    """The type in which two key columns are compared, where their own ones differ."""
    kinds = left.types.get(mine), right.types.get(other)
    if kinds[0] is None or kinds[1] is None or kinds[0] == kinds[1]:
        return None
    if any(map(pa.types.is_null, kinds)):
        return None
    if differ({kinds[0], kinds[1]}):
        raise ConfigError(
            f"{step}: {mine!r} of {left.name!r} is {kinds[0]} and {other!r} of {right.name!r} is "
            f"{kinds[1]}, so that no rows would match; make them one type first, for example with "
            f".select('*', 'CAST({mine} AS ...) AS {mine}')"
        )
    if all(map(_is_number, kinds)):  # as SQL does: a double and a whole number as doubles
        return pa.float64() if any(map(pa.types.is_floating, kinds)) else None
    return wider(kinds[0], kinds[1])


def _is_number(kind: pa.DataType) -> bool:
    real = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(real or pa.types.is_integer(kind))


def _number(value: Decimal | None) -> int | float | str | None:
    """A decimal as it is compared: with whole numbers as one, with a double as a double.

    One with more digits than a double has is itself, without zeros at its end.
    """
    if value is None:
        return None
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    value = _EXACT.normalize(value)
    if len(value.as_tuple().digits) <= _DIGITS:
        return float(value)
    return str(value)
