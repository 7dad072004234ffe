"""`Expression`: a parsed expression, checked against a schema and evaluated over tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.frames import Frame, TypeOf, find_name, schema_types
from millstream.ops.sql.nodes import Column, Node
from millstream.ops.sql.types import (
    DataType,
    Datum,
    ExpressionError,
    TypeMismatch,
    as_array,
    type_name,
)


@dataclass(frozen=True)
class Expression:
    """A parsed expression. `name` is "*" for all columns, which has no value of its own."""

    sql: str
    name: str
    columns: frozenset[str]
    node: Node | None
    condition: bool = False

    def check(self, schema: pa.Schema | Sequence[str]) -> None:
        """Raise a ConfigError for unknown columns and, given a schema, for types that clash."""
        names = schema.names if isinstance(schema, pa.Schema) else list(schema)
        try:
            for column in sorted(self.columns):
                find_name(column, names)
        except ConfigError as error:
            raise ConfigError(f"in {self.sql!r}: {error}") from None
        if isinstance(schema, pa.Schema) and self.node is not None:
            self.type(schema)

    def type(self, schema: pa.Schema) -> DataType:
        """The type of the values that `evaluate` gives for tables of `schema`."""
        node = self.root
        if isinstance(node, Column) and not self.condition:
            return schema.field(find_name(node.name, schema.names)).type
        return self.infer(schema_types(schema))

    def infer(self, type_of: TypeOf) -> DataType:
        """The same, given the type of every column."""
        return self.reported(lambda: self._checked(self.root.infer(type_of)))

    def evaluate(self, table: pa.Table) -> pa.Array:
        """The value for every row; a condition keeps a row where this is TRUE, not NULL."""
        frame = Frame(table)
        node = self.root
        return self.reported(lambda: self._evaluate(node, frame))

    def _evaluate(self, node: Node, frame: Frame) -> Datum:
        if isinstance(node, Column) and not self.condition:
            return frame.stored(node.name)  # as it is, with its storage type
        out = as_array(node.vector(frame), len(frame))
        if self._checked(out.type) != out.type:
            return cast_datum(out, pa.bool_())
        return out

    def _checked(self, of: DataType) -> DataType:
        if not self.condition:
            return of
        if of not in (pa.bool_(), pa.null()):
            raise TypeMismatch(f"a condition must be true or false, not {type_name(of)}")
        return pa.bool_()

    @property
    def root(self) -> Node:
        """The tree of the expression."""
        if self.node is None:
            raise ConfigError("* stands for all columns: it has no value of its own")
        return self.node

    def reported(self, compute: Callable[[], Any]) -> Any:
        """What is computed; an error says in which expression."""
        try:
            return compute()
        except (ValueError, ArithmeticError) as error:  # also what Arrow and Python say of values
            raise ExpressionError(f"in {self.sql!r}: {error}") from None
        except (TypeMismatch, ConfigError) as error:
            raise ConfigError(f"in {self.sql!r}: {error}") from None
