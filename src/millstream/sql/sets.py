"""UNION, INTERSECT and EXCEPT: columns by their place, with the names of the first query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.ops.sql.expression import Expression
from millstream.ops.sql.nodes import Cast
from millstream.ops.sql.nodes import Column as Leaf
from millstream.ops.sql.types import TypeMismatch, common_type, type_name
from millstream.sql.expressions import Made, column_of, quoted
from millstream.sql.ordering import limited
from millstream.sql.relations import Column, Relation

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries

_ALLOWED = {"this", "expression", "distinct", "with_", "order", "limit"}


_PLAIN = {"this", "expression", "distinct"}


class Sets:
    """One operation on queries."""

    def __init__(self, queries: Queries, env: Env) -> None:
        self.queries, self.env, self.text = queries, env, queries.text

    def relation(self, node: exp.Expr) -> Relation:
        """What the operation gives; the first rows of it if it has a LIMIT."""
        made = self._relation(node)
        if node.args.get("order") is not None or node.args.get("limit") is not None:
            made = limited(self.queries, node, made)
        return made

    def _relation(self, node: exp.Expr) -> Relation:
        self.queries.only(node, _ALLOWED, node.key.upper())
        if node.key == "union":
            parts = [self.queries.query(one, self.env) for one in self._arms(node)]
            made = self.united(parts, node)
            return replace(made, stream=made.stream.distinct()) if self._distinct(node) else made
        parts = [self.queries.query(one, self.env) for one in (node.this, node.expression)]
        left, right = self._fitted(parts, node)
        several = not self._distinct(node)
        if node.key == "intersect":
            return replace(left, stream=left.stream.intersect(right.stream, all=several))
        return replace(left, stream=left.stream.difference(right.stream, all=several))

    def _distinct(self, node: exp.Expr) -> bool:
        return bool(node.args.get("distinct"))

    def _arms(self, node: exp.Expr) -> list[Any]:
        """The queries of a union, those of unions on its left side among them."""
        arms: list[Any] = [node.expression]
        left = node.this
        while (
            left.key == "union"
            and self._distinct(left) == self._distinct(node)
            and not any(value for key, value in left.args.items() if key not in _PLAIN)
        ):
            arms.append(left.expression)
            left = left.this
        return [left, *reversed(arms)]

    def united(self, parts: list[Relation], at: exp.Expr) -> Relation:
        """All rows of several relations."""
        parts = self._fitted(parts, at)
        first, *others = parts
        stream = first.stream.union(*(one.stream for one in others)) if others else first.stream
        time = first.time if all(one.time == first.time for one in parts) else None
        return replace(first, stream=stream, time=time)

    # -- columns by their place -----------------------------------------------------------------

    def _fitted(self, parts: list[Relation], at: exp.Expr) -> list[Relation]:
        """All sides with the names of the first, and with common types."""
        first, *_ = parts
        word = at.key.upper()
        if any(one.open for one in parts):
            raise self.text.error(
                "the columns of one side are not known; declare them with schema=", at
            )
        if any(len(one.columns) != len(first.columns) for one in parts):
            counts = " and ".join(str(len(one.columns)) for one in parts)
            raise self.text.error(
                f"both sides of {word} need the same number of columns, not {counts}", at
            )
        types = [
            self._common(column, at) for column in zip(*(one.columns for one in parts), strict=True)
        ]
        return [self._side(one, first, types) for one in parts]

    def _common(self, columns: tuple[Column, ...], at: exp.Expr) -> pa.DataType | None:
        types = [one.type for one in columns]
        if any(one is None for one in types):
            return None
        try:
            return common_type(types, promote_strings=False)
        except TypeMismatch as error:
            raise self.text.error(
                f"column {columns[0].name!r} of {at.key.upper()}: {error}", at
            ) from None

    def _side(self, part: Relation, first: Relation, types: list[pa.DataType | None]) -> Relation:
        items = []
        for column, target, kind in zip(part.columns, first.columns, types, strict=True):
            made = column_of(column, target.name)
            if kind is not None and column.type not in (kind, pa.null()):
                made = _cast(column, target.name, kind)
            items.append(made)
        made_relation = self.queries.project(part, items)
        columns = tuple(
            replace(one, type=kind) for one, kind in zip(made_relation.columns, types, strict=True)
        )
        return replace(made_relation, columns=columns)


def _cast(column: Column, name: str, kind: pa.DataType) -> Made:
    shown = f"CAST({quoted(column.physical)} AS {type_name(kind)}) AS {quoted(name)}"
    node = Cast(Leaf(column.physical), kind)
    return Made(Expression(shown, name, frozenset({column.physical}), node), kind)
