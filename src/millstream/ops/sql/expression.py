"""`Expression`: a parsed expression, checked against a schema and evaluated over tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.frames import Frame, Row, find_name, schema_types
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
        node = self._require_node()
        if isinstance(node, Column) and not self.condition:
            return schema.field(find_name(node.name, schema.names)).type
        return self._reported(lambda: self._checked(node.infer(schema_types(schema))))

    def evaluate(self, table: pa.Table) -> pa.Array:
        """The value for every row; a condition keeps a row where this is TRUE, not NULL."""
        frame = Frame(table)
        node = self._require_node()
        return self._reported(lambda: self._evaluate(node, frame))

    def evaluate_row(self, row: Mapping[str, object], schema: pa.Schema | None = None) -> object:
        """The value for one row, computed a second, slow way: the oracle for `evaluate`.

        Without a `schema` an int is a bigint, a float a double, and None of no type.
        """
        view = Row(row, schema)
        node = self._require_node()
        return self._reported(lambda: self._evaluate_row(node, view))

    def _evaluate(self, node: Node, frame: Frame) -> Datum:
        if isinstance(node, Column) and not self.condition:
            return frame.stored(node.name)  # as it is, with its storage type
        out = as_array(node.vector(frame), len(frame))
        if self._checked(out.type) != out.type:
            return cast_datum(out, pa.bool_())
        return out

    def _evaluate_row(self, node: Node, row: Row) -> object:
        self._checked(node.infer(row.type_of))
        return node.row(row)

    def _checked(self, of: DataType) -> DataType:
        if not self.condition:
            return of
        if of not in (pa.bool_(), pa.null()):
            raise TypeMismatch(f"a condition must be true or false, not {type_name(of)}")
        return pa.bool_()

    def _require_node(self) -> Node:
        if self.node is None:
            raise ConfigError("* stands for all columns: it has no value of its own")
        return self.node

    def _reported(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except ExpressionError as error:
            raise ExpressionError(f"in {self.sql!r}: {error}") from None
        except (TypeMismatch, ConfigError) as error:
            raise ConfigError(f"in {self.sql!r}: {error}") from None
