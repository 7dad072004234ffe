"""Expressions of a query over a relation: names resolved, functions found, types checked."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.errors import ConfigError
from millstream.ops.sql.calling import UserFunction
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.frames import suggestion
from millstream.ops.sql.lowering import UnsupportedFunction, lower
from millstream.ops.sql.nodes import Column as Leaf
from millstream.ops.sql.types import ExpressionError, TypeMismatch
from millstream.ops.sql.vocabulary import SUPPORTED
from millstream.sql.aggregates import NAMES, is_aggregate
from millstream.sql.places import Text
from millstream.sql.relations import Column, Scope

_PLAIN = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Made:
    """An expression over a stream, and the type of its values if it is known."""

    expression: Expression
    type: pa.DataType | None
    plain: Column | None = None  # it is just this column


class Expressions:
    """Makes expressions with the functions that were registered."""

    def __init__(self, functions: dict[str, UserFunction]) -> None:
        self.functions = functions

    def make(
        self, node: exp.Expr, scope: Scope, name: str | None = None, condition: bool = False
    ) -> Made:
        """An expression of the text as one over the stream of the scope."""
        text = scope.text
        _refuse_queries(node, scope, self.functions)
        used: list[Column] = []
        resolved = self._resolved(node, scope, used)
        try:
            lowered = lower(resolved)
        except UnsupportedFunction as error:
            raise text.error(self._unknown(error, node, text), node) from None
        except (ConfigError, ExpressionError, TypeMismatch) as error:
            told = str(error).replace("; use .map(fn) for anything else", "")
            raise text.error(told, node) from None
        plain = used[0] if isinstance(resolved, exp.Column) and len(used) == 1 else None
        shown = sql_of(resolved)
        name = shown if name is None else name
        if not condition and name != shown:
            shown = f"{shown} AS {quoted(name)}"
        columns = frozenset(one.physical for one in used)
        expression = Expression(shown, name, columns, lowered, condition)
        return Made(expression, self._type(expression, node, scope, used), plain)

    def canonical(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """The same with the stream's names, so that two ways to write one thing are equal."""
        return self._resolved(node, scope, [])

    def _resolved(self, node: exp.Expr, scope: Scope, used: list[Column]) -> exp.Expr:
        def one(each: Any) -> Any:
            if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
                column, fields = scope.find(each)
                used.append(column)
                made: Any = exp.Column(this=identifier(column.physical, each))
                for part in fields:
                    made = exp.Dot(this=made, expression=identifier(part))
                return made
            if isinstance(each, exp.Anonymous):
                function = self.functions.get(each.name.lower())
                if function is not None:
                    each.meta["function"] = function
            return each

        made: exp.Expr = node.copy().transform(one, copy=False)
        return made

    def _unknown(self, error: UnsupportedFunction, node: exp.Expr, text: Text) -> str:
        names = [each.name.lower() for each in node.walk() if each.key == "anonymous"]
        for each in node.walk():  # as it was written: sqlglot has other names for some
            known = [one.lower() for one in getattr(each, "sql_names", list)()]
            if known == error.names and "start" in each.meta:
                return self._told(text.sql[each.meta["start"] : each.meta["end"] + 1].lower())
        return self._told(next((one for one in names if one in error.names), error.names[0]))

    def refuse_strangers(self, column: exp.Expr, text: Text) -> None:
        """Raise if a column stands in a call of no function there is: it may mean an aggregate."""
        call: Any = column.find_ancestor(exp.Anonymous)
        known = {*SUPPORTED, *self.functions}
        if call is not None and call.name.lower() not in known:
            raise text.error(self._told(call.name.lower()), call)

    def _told(self, name: str) -> str:
        near = suggestion(name, [*SUPPORTED, *NAMES.split(", "), *self.functions])
        return f"unsupported function {name!r}{near}; register one with flow.function({name!r}, fn)"

    def _type(
        self, expression: Expression, node: exp.Expr, scope: Scope, used: list[Column]
    ) -> pa.DataType | None:
        types = {one.physical: one.type for one in used}
        if any(one is None for one in types.values()):
            return None
        schema = pa.schema([pa.field(name, type_) for name, type_ in types.items()])
        try:
            return expression.type(schema)
        except (ConfigError, ExpressionError, TypeMismatch) as error:
            told = re.sub(r"^in '.*?': ", "", str(error), flags=re.DOTALL)
            raise scope.text.error(told, node) from None


def _is_own(node: Any, functions: Collection[str]) -> bool:
    """Whether this is a call of a user's function, or not known as an aggregate here."""
    return node.key == "anonymous" and node.name.lower() in functions


def _refuse_queries(node: exp.Expr, scope: Scope, own: Collection[str]) -> None:
    """What stands in an expression and is no expression."""
    for each in node.walk():
        told = _REFUSED.get(each.key)
        if told is None and is_aggregate(each) and not _is_own(each, own):
            told = f"{each.key.upper()} is an aggregate: it stands in SELECT and HAVING only"
        if each.key == "in" and each.args.get("query") is not None:
            told = "IN (SELECT ...) stands by itself or within AND in WHERE, and nowhere else"
        if told is not None:
            raise scope.text.error(told, scope.text.of(each) or scope.text.of(node))


_REFUSED = {
    "exists": "EXISTS stands by itself or within AND in WHERE, and nowhere else",
    "subquery": "a query that gives one value stands in SELECT, WHERE and HAVING only",
    "select": "a query that gives one value stands in SELECT, WHERE and HAVING only",
    "window": "functions OVER rows stand in SELECT only; put a query around this one",
    "filter": "FILTER goes with an aggregate",
    "any": "ANY (...) is not supported; use IN",
    "all": "ALL (...) is not supported",
    "star": "* stands alone in a select list, or in COUNT(*)",
}


def identifier(name: str, at: exp.Expr | None = None) -> Any:
    """A name for sqlglot, in quotes if it needs them; it stands where another node did."""
    made = exp.Identifier(this=name, quoted=_PLAIN.fullmatch(name) is None)
    found = [one.meta for one in at.walk() if "start" in one.meta] if at is not None else []
    if found:
        start, end = min(one["start"] for one in found), max(one["end"] for one in found)
        made.meta.update(found[0] | {"start": start, "end": end})
    return made


def quoted(name: str) -> str:
    """A name as it is written in SQL."""
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def column_of(column: Column, name: str | None = None) -> Made:
    """A column as an item of a projection."""
    name = column.name if name is None else name
    shown = quoted(column.physical)
    if name != column.physical:
        shown += f" AS {quoted(name)}"
    expression = Expression(shown, name, frozenset({column.physical}), Leaf(column.physical))
    return Made(expression, column.type, column)


def sql_of(node: exp.Expr) -> str:
    """An expression as a text, for the plan and for names of columns without one."""
    try:
        return str(node.sql("spark", comments=False, normalize_functions=False))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return node.key
