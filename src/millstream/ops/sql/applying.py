"""What a SQL function is, how it is applied to a batch, and ways to build its kernel.

The rules are Spark's in ANSI mode. What every function means on one row of plain Python values is
written a second time beside its tests (`tests/ops/rowwise.py`); the two share only the rules of
types (`coerce`), so that a slip in one shows as a difference. Two kinds of function are computed
per value here too: those on regular expressions, because Python's `re` is closer to Java's than RE2
is, and those that read or write numbers and times as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.coercion import Coerce, fixed
from millstream.ops.sql.types import DataType, Datum, ExpressionError, Types, as_array

_FEW = 100  # rows of which it does not matter how many are equal


@dataclass(frozen=True)
class Function:
    """One SQL function: its type rule, and its kernel.

    `vector(args, *params)` gets at least one array, of what `coerce` asks for.
    """

    coerce: Coerce
    vector: Callable[..., Datum]
    shape: Callable[..., tuple[Types, DataType]] | None = None  # its types follow from params too

    def types(self, given: Types, params: tuple[object, ...]) -> tuple[Types, DataType]:
        """The types it wants for these, and the one it gives."""
        return self.coerce(given) if self.shape is None else self.shape(given, *params)


def apply_vector(function: Function, args: Sequence[Datum], params: tuple[object, ...]) -> Datum:
    wanted, result = function.types(tuple(arg.type for arg in args), params)
    args = [cast_datum(arg, to) for arg, to in zip(args, wanted, strict=True)]
    constant = all(isinstance(arg, pa.Scalar) for arg in args)
    if constant:
        args = [as_array(arg, 1) for arg in args]
    try:
        out = function.vector(args, *params)
    except pa.ArrowInvalid as error:
        raise ExpressionError(str(error)) from None
    if out.type != result:
        out = out.cast(result)
    return out[0] if constant else out


def elementwise(scalar: Callable[..., Any], result: DataType) -> Callable[..., Datum]:
    """A kernel that calls `scalar` for every row without a null; of one column, for every value."""

    def each(args: Sequence[Datum], *params: object) -> Datum:
        columns = [
            repeat(arg.as_py()) if isinstance(arg, pa.Scalar) else arg.to_pylist() for arg in args
        ]
        rows = zip(*columns, strict=False)  # a constant repeats for ever
        return pa.array(
            (None if any(v is None for v in row) else scalar(*row, *params) for row in rows), result
        )

    def vector(args: Sequence[Datum], *params: object) -> Datum:
        columns = [arg for arg in args if not isinstance(arg, pa.Scalar)]
        if len(columns) != 1 or len(columns[0]) < _FEW or pa.types.is_nested(columns[0].type):
            return each(args, *params)
        known = columns[0].dictionary_encode()
        if 2 * len(known.dictionary) > len(known):
            return each(args, *params)
        different = [arg if isinstance(arg, pa.Scalar) else known.dictionary for arg in args]
        return each(different, *params).take(known.indices)

    return vector


def by_row(scalar: Callable[..., Any], *wanted: DataType, result: DataType) -> Function:
    """A function of one row of plain values."""
    return Function(fixed(*wanted, result=result), elementwise(scalar, result))


def constants(args: Sequence[Datum]) -> list[Any] | None:
    """The values of `args` if all are constant and not null, which kernels with options need."""
    if all(isinstance(arg, pa.Scalar) and arg.is_valid for arg in args):
        return [arg.as_py() for arg in args]
    return None


def with_options(
    kernel: Callable[..., Datum | None], scalar: Callable[..., Any], result: DataType
) -> Callable[..., Datum]:
    """`kernel(array, *constants)` where it can do it (does not give None), else row by row."""
    slow = elementwise(scalar, result)

    def vector(args: Sequence[Datum], *params: object) -> Datum:
        options = None if isinstance(args[0], pa.Scalar) else constants(args[1:])
        fast = None if options is None else kernel(args[0], *options, *params)
        return slow(args, *params) if fast is None else fast

    return vector


def kernel(name: str) -> Callable[..., Datum]:
    return lambda args: pc.call_function(name, list(args))
