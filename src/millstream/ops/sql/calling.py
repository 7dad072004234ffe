"""A Python function in an expression: `flow.function(name, fn)`, called once per row.

What it raises is an error of that row, as a division by zero is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.ops.records import describe
from millstream.ops.sql.frames import Frame, TypeOf
from millstream.ops.sql.nodes import Node
from millstream.ops.sql.types import DataType, Datum, ExpressionError, as_array


@dataclass(frozen=True)
class UserFunction:
    """A function under a name, and the type of what it gives."""

    name: str
    fn: Callable[..., Any]
    type: DataType


@dataclass(frozen=True)
class UserCall:
    """A call of one."""

    function: UserFunction
    args: tuple[Node, ...]

    def infer(self, type_of: TypeOf) -> DataType:
        for one in self.args:
            one.infer(type_of)
        return self.function.type

    def vector(self, frame: Frame) -> Datum:
        columns = [as_array(one.vector(frame), len(frame)).to_pylist() for one in self.args]
        rows = zip(*columns, strict=True) if columns else ((),) * len(frame)
        values = [self.call(row) for row in rows]
        try:
            return pa.array(values, self.function.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ExpressionError(
                f"{self.function.name}() gave no {self.function.type}: {error}"
            ) from None

    def call(self, args: Sequence[Any]) -> Any:
        try:
            return self.function.fn(*args)
        except BaseException as error:  # a user's function may raise anything
            raise ExpressionError(f"{self.function.name}() failed: {describe(error)}") from error
