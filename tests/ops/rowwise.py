"""Expressions a second, slow way: row by row on plain Python values.

It shares with the kernels only the tree, the rules of types and, where both go value by value, the
function itself; so a slip in one shows as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from millstream.ops.expressions import Expression
from millstream.ops.sql.branches import Case, Coalesce, Logic
from millstream.ops.sql.calling import UserCall
from millstream.ops.sql.conversions import cast_value, to_float32
from millstream.ops.sql.decimals import fit
from millstream.ops.sql.frames import find_name, schema_types
from millstream.ops.sql.functions import FUNCTIONS
from millstream.ops.sql.nodes import (
    Call,
    Cast,
    Column,
    Field,
    Literal,
    Node,
    exact_numbers,
    field_name,
)
from millstream.ops.sql.types import (
    INTEGERS,
    TIMESTAMP,
    DataType,
    ExpressionError,
    bounds,
    is_decimal,
    logical_type,
)
from tests.ops import meanings


def evaluate_row(
    expression: Expression, row: Mapping[str, object], schema: pa.Schema | None = None
) -> object:
    """The value of an expression for one row.

    Without a `schema` an int is a bigint, a float a double, and None of no type.
    """
    values = _Row(row, schema)
    expression.infer(values.type_of)
    return expression.reported(lambda: values.of(expression.root))


class _Row:
    """One row of plain Python values, typed by a schema or by the values themselves."""

    def __init__(self, values: Mapping[str, object], schema: pa.Schema | None) -> None:
        self.values, self.schema = values, schema

    def type_of(self, name: str) -> DataType:
        if self.schema is not None:
            return schema_types(self.schema)(name)
        return _type_of_value(self.values[find_name(name, list(self.values))])

    def of(self, node: Node) -> Any:
        """What a node of an expression comes to."""
        match node:
            case Column():
                value = self.values[find_name(node.name, list(self.values))]
                return _plain(value, self.type_of(node.name))
            case Field():
                struct, value = node.of.infer(self.type_of), self.of(node.of)
                if value is None:
                    return None
                return _plain(value[field_name(struct, node.name)], node.infer(self.type_of))
            case Literal():
                return node.value
            case Call():
                return self._call(node)
            case UserCall():
                value = node.call([self.of(one) for one in node.args])
                return pa.scalar(value, node.function.type).as_py()
            case Cast():
                return self._cast(node)
            case Logic():
                return self._logic(node)
            case Case():
                taken = (value for condition, value in node.branches if self._truth(condition))
                return self._as(next(taken, node.default), node.infer(self.type_of))
            case Coalesce():
                found = (one for one in node.args if self.of(one) is not None)
                first = next(found, None)
                return None if first is None else self._as(first, node.infer(self.type_of))
        raise NotImplementedError(type(node).__name__)

    def _call(self, node: Call) -> Any:
        function = FUNCTIONS[node.function]
        types = [one.infer(self.type_of) for one in node.args]
        values = [self.of(one) for one in node.args]
        for at, number in exact_numbers(node.args, types, node.function).items():
            types[at], values[at] = number.type, number.value
        wanted, result = function.types(tuple(types), node.params)
        values = [cast_value(*each) for each in zip(values, types, wanted, strict=True)]
        if node.function not in meanings.TAKES_NULL and any(value is None for value in values):
            return None
        out = meanings.FUNCTIONS[node.function](*values, *node.params)
        if out is not None and is_decimal(result):
            return fit(out, result)
        if out is not None and result in INTEGERS:
            low, high = bounds(result)
            if not low <= out <= high:
                raise ExpressionError("overflow")
        return to_float32(out) if out is not None and result == pa.float32() else out

    def _cast(self, node: Cast) -> Any:
        value = self.of(node.of)  # what fails here is no cast that fails
        try:
            return cast_value(value, node.of.infer(self.type_of), node.to)
        except ExpressionError:
            if node.lenient:
                return None
            raise

    def _logic(self, node: Logic) -> bool | None:
        left = self._truth(node.left)
        if left is node.disjunction:
            return left
        right = self._truth(node.right)
        return right if left is not None or right is node.disjunction else None

    def _truth(self, node: Node) -> bool | None:
        source = node.infer(self.type_of)
        (wanted,), _ = FUNCTIONS["not"].coerce((source,))
        truth: bool | None = cast_value(self.of(node), source, wanted)
        return truth

    def _as(self, node: Node, wanted: DataType) -> Any:
        """The value of one branch of several, as the type of all of them."""
        if is_decimal(wanted) and isinstance(node, Literal) and node.type == pa.float64():
            assert node.exact is not None
            return fit(node.exact, wanted)
        return cast_value(self.of(node), node.infer(self.type_of), wanted)


def _type_of_value(value: object) -> DataType:
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.int64()
    if isinstance(value, datetime):
        return TIMESTAMP
    return logical_type(pa.scalar(value).type)


def _plain(value: Any, of: DataType) -> Any:
    """A value as the oracle computes with it."""
    if value is None:
        return None
    if of == TIMESTAMP:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if pa.types.is_floating(of):
        return float(value)
    return dict(value) if pa.types.is_map(of) else value
