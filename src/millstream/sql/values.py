"""Queries that give one value, as in `WHERE price > (SELECT AVG(price) FROM trades)`.

Such a query is joined to the rows it is asked for: with every one of them if it is about itself
alone, and by the equalities with them if it names columns of the query around it. A value that
changes therefore changes all rows that it is beside.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import expressions as exp

from millstream.sql.aggregates import is_aggregate
from millstream.sql.expressions import column_of
from millstream.sql.grouping import aggregates_of, is_grouped
from millstream.sql.joins import Joins, Pair, conjunction, conjuncts
from millstream.sql.relations import Relation, Scope
from millstream.sql.subqueries import Memberships

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries

_ONCE = ("having", "order", "limit")  # would be about the values of all rows together
_SEVERAL = (
    "a query that gives one value has an aggregate and no GROUP BY, like SELECT MAX(x) FROM t, "
    "or ends with ORDER BY ... LIMIT 1, or reads one that does"
)


def is_one_row(query: Any, env: Env) -> bool:
    """Whether a query gives one row at most, whatever its input has."""
    while query.key == "subquery" and not query.args.get("with_"):
        query = query.this
    limit = query.args.get("limit")
    if limit is not None and limit.key == "limit" and limit.expression.name == "1":
        return True
    if query.key != "select" or query.args.get("with_"):
        return False
    if is_grouped(query):
        return not query.args.get("group")
    given = query.args.get("from_")
    if given is None or query.args.get("joins"):
        return False
    if given.this.key == "subquery":
        return is_one_row(given.this, env)
    return given.this.key == "table" and given.this.name.lower() in env.single


@dataclass
class Values:
    """The queries in some expressions that give one value each."""

    queries: Queries
    env: Env
    asked: list[Any] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)  # what stands for each, over the joined relation

    def extract(self, tree: exp.Expr) -> exp.Expr:
        """The tree with a mark in the place of every such query."""
        of_rows = (exp.In, exp.Exists, exp.Any, exp.All)  # which are about all rows of a query

        def one(node: Any) -> Any:
            if not isinstance(node, exp.Subquery) or isinstance(node.parent, of_rows):
                return node
            mark = exp.Placeholder(this=f"value{len(self.asked)}")
            self.asked.append(node)
            return mark

        if tree.find(exp.Subquery) is None:
            return tree
        made: exp.Expr = tree.copy().transform(one, copy=False)
        return made

    def join(self, relation: Relation) -> Relation:
        """The relation with a column for every value."""
        for query in self.asked:
            relation = self._with(relation, query)
        return relation

    def fill(self, tree: exp.Expr) -> exp.Expr:
        """The tree with columns in the place of the marks."""

        def one(node: Any) -> Any:
            if isinstance(node, exp.Placeholder) and str(node.this).startswith("value"):
                return self.found[int(str(node.this)[5:])].copy()
            return node

        return tree.transform(one) if self.asked else tree

    # -- one query ------------------------------------------------------------------------------

    def _with(self, relation: Relation, query: Any) -> Relation:
        text, at = self.queries.text, query
        while query.key == "subquery" and not query.args.get("with_"):
            query = query.this
        if query.key == "select":
            self.queries.check_clauses(query)
        outer = self.queries.scope(relation, self.env)
        if relation.open:
            raise text.error("the columns of this are not known; declare them with schema=", None)
        if query.key == "select" and is_grouped(query) and not query.args.get("group"):
            about = self._about(query, outer)
            if about:
                return self._beside(relation, query, outer, about, at)
            return self._alone(relation, query, outer, "inner", at)
        if not is_one_row(query, self.env):
            raise text.error(_SEVERAL, text.of(at) or text.of(query))
        return self._alone(relation, query, outer, "left", at)

    def _alone(self, relation: Relation, query: Any, outer: Scope, how: str, at: Any) -> Relation:
        """A query about itself alone: its one row is beside all others."""
        env = replace(self.env, above=outer, bound=None)
        inner = self.queries.query(query, env)
        if inner.open or len(inner.columns) != 1:
            raise self.queries.text.error("a query that gives one value has one column", at)
        made, (column,) = self._joined(relation, inner, [], how)
        self.found.append(column)
        return made

    def _joined(
        self, relation: Relation, inner: Relation, pairs: list[Pair], how: str
    ) -> tuple[Relation, list[Any]]:
        """Both joined, and references to the columns of the inner one."""
        table = f"_value{len(self.found)}"
        while any(one.table == table for one in relation.columns):
            table = f"_{table}"
        names = [f"_v{at}" for at in range(len(inner.columns))]
        inner = inner.named(table, names)
        made = Joins(self.queries, self.env).equal(relation, inner, pairs, how)
        columns = tuple(
            replace(one, hidden=True) if one.table == table else one for one in made.columns
        )
        references = [
            exp.Column(this=exp.to_identifier(name), table=exp.to_identifier(table))
            for name in names
        ]
        return replace(made, columns=columns), references

    # -- a query about the one around it --------------------------------------------------------

    def _about(self, query: Any, outer: Scope) -> list[Any]:
        """The conditions of a query that name columns of the one around it."""
        where = query.args.get("where")
        if where is None:
            return []
        inner = self._inside(query, outer)
        members = Memberships(self.queries, self.env)
        return [one for one in conjuncts(where.this) if not members.is_own(one, inner)]

    def _inside(self, query: Any, outer: Scope) -> Scope:
        """The names of what a query is over; nothing of it stays in the flow."""
        env = replace(self.env, above=outer, bound=None)
        flow = outer.relation.stream.flow
        with flow.attempt(keep=False):
            relation, specs, _ = self.queries.from_(query, env, [])
            if specs:
                raise self.queries.text.error("windows are for GROUP BY", query)
            return self.queries.scope(relation, env)

    def _beside(
        self, relation: Relation, query: Any, outer: Scope, about: list[Any], at: Any
    ) -> Relation:
        """Groups by what is equal to columns of the rows around; those without a group get null."""
        text = self.queries.text
        if any(query.args.get(one) for one in _ONCE) or len(query.expressions) != 1:
            raise text.error(
                "a query that gives one value for each row has one column, and no HAVING, ORDER BY "
                "or LIMIT",
                at,
            )
        inner = self._inside(query, outer)
        members = Memberships(self.queries, self.env)
        sides = [members.sides(one, inner) for one in about]
        value = query.expressions[0]
        value = (value.this if value.key == "alias" else value).copy()
        calls = _different(aggregates_of(value))
        grouped = _grouped_by(query, [own for _, own in sides], calls, about)
        groups = self.queries.query(grouped, replace(self.env, above=None, bound=None))
        joins, make = Joins(self.queries, self.env), self.queries.expressions.make
        pairs = [
            joins.comparable(Pair(make(mine, outer), column_of(column, column.physical)), condition)
            for (mine, _), column, condition in zip(sides, groups.columns, about, strict=False)
        ]
        made, references = self._joined(relation, groups, pairs, "left")
        self.found.append(_over(value, calls, references[len(sides) :]))
        return made


def _different(calls: list[Any]) -> list[Any]:
    """Each of several calls once."""
    found: list[Any] = []
    for call in calls:
        if call not in found:
            found.append(call.copy())
    return found


def _grouped_by(query: Any, keys: list[Any], calls: list[Any], about: list[Any]) -> Any:
    """The query with these keys and aggregates, and without conditions about other rows."""
    made = query.copy()
    items = [
        exp.alias_(one.copy(), f"_c{nth}", quoted=True) for nth, one in enumerate([*keys, *calls])
    ]
    made.set("expressions", items)
    made.set("group", exp.Group(expressions=[one.copy() for one in keys]))
    own = [one for one in conjuncts(query.args["where"].this) if not any(one is x for x in about)]
    made.set("where", exp.Where(this=conjunction(own).copy()) if own else None)
    return made


def _over(value: Any, calls: list[Any], columns: list[Any]) -> Any:
    """The value over columns of its aggregates; where there is no group, a count is 0."""

    def one(node: Any) -> Any:
        if not is_aggregate(node):
            return node
        at = next(nth for nth, call in enumerate(calls) if call == node)
        column = columns[at].copy()
        if node.key in ("count", "approxdistinct"):
            return exp.Coalesce(this=column, expressions=[exp.Literal.number(0)])
        return column

    return exp.Paren(this=value.transform(one, copy=False))
