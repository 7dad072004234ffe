"""EXISTS and IN over queries, in WHERE: rows with a match, or without one.

A query in them may name columns of the one around it, as one side of an equality.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import expressions as exp

from millstream.graph import nodes
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.nodes import Call
from millstream.sql.expressions import column_of
from millstream.sql.grouping import is_grouped
from millstream.sql.joins import Joins, Pair, conjuncts
from millstream.sql.relations import Relation, Scope

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries


def is_membership(condition: Any) -> bool:
    """Whether a condition is EXISTS or IN over a query, or the opposite."""
    while condition.key in ("not", "paren"):
        condition = condition.this
    return condition.key == "exists" or (
        condition.key == "in" and condition.args.get("query") is not None
    )


class Memberships:
    """Conditions of one WHERE that are about other queries."""

    def __init__(self, queries: Queries, env: Env) -> None:
        self.queries, self.env, self.text = queries, env, queries.text

    def apply(self, relation: Relation, condition: Any) -> Relation:
        """The rows for which it is true."""
        positive = not condition.args.get("negate")
        while condition.key in ("not", "paren"):
            positive ^= condition.key == "not"
            condition = condition.this
            positive ^= bool(condition.args.get("negate"))
        scope = self.queries.scope(relation, self.env)
        if condition.key == "exists":
            other, pairs, _ = self._inside(condition.this, scope, value=False)
            return self._match(relation, other, pairs, "semi" if positive else "anti")
        query = condition.args["query"]
        other, pairs, value = self._inside(query, scope, value=True)
        mine = self.queries.expressions.make(condition.this, scope)
        pair = Joins(self.queries, self.env).comparable(Pair(mine, value), condition)
        if positive:
            return self._match(relation, other, [*pairs, pair], "semi")
        return self._none(relation, condition, other, pairs, pair)

    def _match(self, left: Relation, right: Relation, pairs: list[Pair], how: str) -> Relation:
        return Joins(self.queries, self.env).equal(left, right, pairs, how)

    def _none(
        self, relation: Relation, condition: Any, other: Relation, pairs: list[Pair], pair: Pair
    ) -> Relation:
        """NOT IN: not true either if a value of the query is null, or the own one is and there is
        any value."""
        scope = self.queries.scope(relation, self.env)
        null = exp.Is(this=condition.this.copy(), expression=exp.Null())
        known = self.queries.keep(exp.Not(this=null.copy()), scope)
        known = self._match(known, other, [*pairs, pair], "anti")
        known = self._match(known, self._nulls(other, pair), pairs, "anti")
        unknown = self.queries.keep(null, scope)
        unknown = self._match(unknown, other, pairs, "anti")
        return replace(
            known, stream=known.stream.union(unknown.stream), exact=known.exact and unknown.exact
        )

    def _nulls(self, other: Relation, pair: Pair) -> Relation:
        """The rows of a query whose value is null."""
        value = pair.right.expression
        assert value.node is not None
        node = Call("isnull", (value.node,))
        condition = Expression(f"{value.sql} IS NULL", "", value.columns, node, condition=True)
        return replace(other, stream=other.stream._add(nodes.Where, "where", condition=condition))

    # -- the query inside -----------------------------------------------------------------------

    def _inside(
        self, query: exp.Expr, outer: Scope, value: bool
    ) -> tuple[Relation, list[Pair], Any]:
        """What a query gives, what of it must equal what of the rows around, and its one column."""
        while query.key == "subquery" and not query.args.get("with_"):
            query = query.this
        if query.key == "select" and not query.args.get("with_") and self._simple(query):
            return self._rows(query, outer, value)
        env = replace(self.env, above=outer, bound=None)
        relation = self.queries.query(query, env)
        if not value:
            return relation, [], None
        if relation.open or len(relation.columns) != 1:
            raise self.text.error("IN needs a query with one column", query)
        return relation, [], column_of(relation.columns[0], relation.columns[0].physical)

    def _simple(self, query: exp.Expr) -> bool:
        """Whether its rows are those of FROM and WHERE: these may be about the query around."""
        return not is_grouped(query) and not any(
            query.args.get(one) for one in ("limit", "order", "distinct")
        )

    def _rows(self, query: exp.Expr, outer: Scope, value: bool) -> tuple[Relation, list[Pair], Any]:
        env = replace(self.env, above=outer, bound=None)
        self.queries.check_clauses(query)
        where = query.args.get("where")
        pool = conjuncts(where.this) if where is not None else []
        relation, specs, pool = self.queries.from_(query, env, pool)
        if specs:
            raise self.text.error("windows are for GROUP BY", query)
        scope = self.queries.scope(relation, env)
        own = [one for one in pool if self.is_own(one, scope)]
        about = [one for one in pool if not any(one is other for other in own)]
        relation = self.queries.filtered(relation, own, env)
        scope = self.queries.scope(relation, env)
        pairs = [self._pair(one, outer, scope) for one in about]
        if not value:
            return relation, pairs, None
        items = self.queries.items(query, scope)
        if len(items) != 1 or items[0].expression.name == "*":
            raise self.text.error("IN needs a query with one column", query)
        return relation, pairs, items[0]

    def is_own(self, condition: Any, scope: Scope) -> bool:
        """Whether a condition is about this query alone, as far as its columns are known."""
        if is_membership(condition):
            return True
        outer = scope.above
        for column in condition.find_all(exp.Column):
            if (
                scope.local(column) is None
                and outer is not None
                and outer.local(column) is not None
            ):
                return False
        return True

    def _pair(self, condition: Any, outer: Scope, inner: Scope) -> Pair:
        plain_inner = replace(inner, above=None)
        joins, make = Joins(self.queries, self.env), self.queries.expressions.make
        mine, other = self.sides(condition, inner)
        return joins.comparable(Pair(make(mine, outer), make(other, plain_inner)), condition)

    def sides(self, condition: Any, inner: Scope) -> tuple[Any, Any]:
        """The sides of an equality: the one of the rows around, and the one of this query."""
        if condition.key == "eq":
            sides = [self._side(one, inner) for one in (condition.this, condition.expression)]
            if sides == ["outer", "inner"]:
                return condition.this, condition.expression
            if sides == ["inner", "outer"]:
                return condition.expression, condition.this
        raise self._refused(condition)

    def _side(self, node: exp.Expr, inner: Scope) -> str:
        found = {inner.local(one) is not None for one in node.find_all(exp.Column)}
        return {frozenset({True}): "inner", frozenset({False}): "outer"}.get(frozenset(found), "")

    def _refused(self, condition: Any) -> Exception:
        return self.text.error(
            "a column of the query around this one may stand in an equality with one of this query "
            "only",
            condition,
        )
