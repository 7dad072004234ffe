"""The tree of an expression: columns, fields, constants, function calls and casts.

Nodes are small, frozen and pickled to the Python workers. `branches.py` has those that evaluate
some of their parts only for some rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import apply_vector
from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.conversions import require_castable
from millstream.ops.sql.decimals import literal_type
from millstream.ops.sql.frames import Frame, TypeOf, find_name, to_logical
from millstream.ops.sql.functions import FUNCTIONS
from millstream.ops.sql.types import (
    DataType,
    Datum,
    TypeMismatch,
    is_decimal,
    logical_type,
    type_name,
)


class Node(Protocol):
    """A node of an expression: its type, and its values over a batch."""

    def infer(self, type_of: TypeOf) -> DataType: ...
    def vector(self, frame: Frame) -> Datum: ...


@dataclass(frozen=True)
class Column:
    name: str

    def infer(self, type_of: TypeOf) -> DataType:
        return type_of(self.name)

    def vector(self, frame: Frame) -> Datum:
        return frame.column(self.name)


@dataclass(frozen=True)
class Field:
    """`of.name`, a field of a struct."""

    of: Node
    name: str

    def infer(self, type_of: TypeOf) -> DataType:
        struct = self.of.infer(type_of)
        return logical_type(struct.field(field_name(struct, self.name)).type)

    def vector(self, frame: Frame) -> Datum:
        struct = self.of.vector(frame)
        return to_logical(pc.struct_field(struct, [field_name(struct.type, self.name)]))


def field_name(struct: DataType, wanted: str) -> str:
    if not pa.types.is_struct(struct):
        raise TypeMismatch(f".{wanted} needs a struct, not {type_name(struct)}")
    return find_name(wanted, [field.name for field in struct], "field")


@dataclass(frozen=True)
class Literal:
    value: Any
    type: DataType
    exact: Decimal | None = None  # a number as it is written

    def infer(self, type_of: TypeOf) -> DataType:
        return self.type

    def vector(self, frame: Frame) -> Datum:
        # Without rows there is nothing to compute, so a constant that fails must not fail.
        if not len(frame):
            return pa.array([], self.type)
        return pa.scalar(self.value, self.type)


_OPERATORS = frozenset(["+", "-", "*", "/", "%", "div", "=", "<>", "<", ">", "<=", ">=", "<=>"])


def exact_numbers(
    nodes: Sequence[Node], types: Sequence[DataType], function: str = ""
) -> dict[int, Literal]:
    """Numbers of the text as decimals, where they stand beside decimals: `price * 0.9` is exact.

    A whole number counts its digits beside an operator only; else it is an int, as in Spark.
    """
    if not any(map(is_decimal, types)):
        return {}
    return {
        at: Literal(one.exact, literal_type(one.exact))
        for at, one in enumerate(nodes)
        if isinstance(one, Literal)
        and one.exact is not None
        and (function in _OPERATORS or one.type == pa.float64())
    }


@dataclass(frozen=True)
class Call:
    """A function of `functions.FUNCTIONS`; `params` are its arguments that must be constants."""

    function: str
    args: tuple[Node, ...]
    params: tuple[object, ...] = ()

    def infer(self, type_of: TypeOf) -> DataType:
        types = [arg.infer(type_of) for arg in self.args]
        for at, number in exact_numbers(self.args, types, self.function).items():
            types[at] = number.type
        return FUNCTIONS[self.function].types(tuple(types), self.params)[1]

    def vector(self, frame: Frame) -> Datum:
        args = [arg.vector(frame) for arg in self.args]
        types = [arg.type for arg in args]
        for at, number in exact_numbers(self.args, types, self.function).items():
            args[at] = number.vector(frame)
        return apply_vector(FUNCTIONS[self.function], args, self.params)


@dataclass(frozen=True)
class Cast:
    of: Node
    to: DataType
    lenient: bool = False

    def infer(self, type_of: TypeOf) -> DataType:
        require_castable(self.of.infer(type_of), self.to)
        return self.to

    def vector(self, frame: Frame) -> Datum:
        return cast_datum(self.of.vector(frame), self.to, self.lenient)
