"""FROM with several items: joins by the equalities of ON, USING or WHERE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.graph import nodes
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.nodes import Cast
from millstream.ops.sql.types import TypeMismatch, common_type, is_numeric, type_name
from millstream.sql.expressions import Made, column_of
from millstream.sql.intervals import Bounds, interval_of
from millstream.sql.relations import Column, Relation, Scope

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries

_ONE_SIDE = ("semi", "anti")
_EVERYTHING = Expression("*", "*", frozenset(), None)


def conjuncts(condition: exp.Expr) -> list[Any]:
    """The conditions that all must be true."""
    while condition.key == "paren":
        condition = condition.this
    if condition.key == "and":
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def conjunction(conditions: list[Any]) -> Any:
    """Conditions as one."""
    whole = conditions[0]
    for one in conditions[1:]:
        whole = exp.And(this=whole, expression=one)
    return whole


@dataclass(frozen=True)
class Pair:
    """What must be equal: an expression of each side."""

    left: Made
    right: Made


class Joins:
    """The items of one FROM."""

    def __init__(self, queries: Queries, env: Env) -> None:
        self.queries, self.env, self.text = queries, env, queries.text

    def relation(self, node: exp.Expr, pool: list[Any]) -> Relation:
        """All items joined; equalities of WHERE that join are taken out of the pool."""
        joins = node.args["joins"]
        items = [self._item(one.this) for one in (node.args["from_"], *joins)]
        self._push(items, [self._how(one) for one in joins], pool)
        made, *others = items
        for right, join in zip(others, joins, strict=True):
            self._check_names(made, right, join)
            made = self._join(made, right, join, pool)
        return made

    def _push(self, items: list[Relation], hows: list[str], pool: list[Any]) -> None:
        """Conditions of WHERE about one item only filter it before it is joined and remembered.

        Not if rows of the item may be missing in what WHERE sees: these are there all the same.
        """
        scopes = [self.queries.scope(one, self.env) for one in items]
        seen = [at for at in range(len(items)) if not at or hows[at - 1] not in _ONE_SIDE]
        before: dict[int, list[Any]] = {}
        for condition in list(pool):
            of = self._item_of(condition, {at: scopes[at] for at in seen})
            if of is None or (of and hows[of - 1] not in ("inner", "right")):
                continue
            if all(how in ("inner", "left", *_ONE_SIDE) for how in hows[of:]):
                before.setdefault(of, []).append(condition)
                pool[:] = [one for one in pool if one is not condition]
        for at, conditions in before.items():
            items[at] = self.queries.filtered(items[at], conditions, self.env)

    def _item_of(self, condition: Any, scopes: dict[int, Scope]) -> int | None:
        """The item that all columns of a condition are of; None if there is no such item."""
        if condition.find(exp.Query) is not None:
            return None
        found = set()
        for column in condition.find_all(exp.Column):
            mine = [at for at, one in scopes.items() if one.local(column) is not None]
            mine = [at for at in mine if scopes[at].has_table(column)] or mine
            if len(mine) != 1:
                return None
            found.update(mine)
        return found.pop() if len(found) == 1 else None

    def _item(self, item: exp.Expr) -> Relation:
        relation, specs = self.queries.item(item, self.env)
        if specs:
            raise self.text.error(
                "windows cannot be joined; group them in a query in brackets first", item
            )
        if relation.open:
            raise self.text.error(
                "the columns of this are not known; declare them with schema=", item
            )
        return relation

    def _check_names(self, left: Relation, right: Relation, join: exp.Expr) -> None:
        taken = {one.table.lower() for one in left.columns if one.table}
        mine = next((one.table for one in right.columns if one.table), "")
        if mine.lower() in taken:
            raise self.text.error(
                f"{mine} is there twice; give one another name with AS", join.this
            )

    def _how(self, join: exp.Expr) -> str:
        allowed = {"this", "side", "kind", "on", "using", "method"}
        self.queries.only(join, allowed, "JOIN")
        side, kind = str(join.args.get("side") or ""), str(join.args.get("kind") or "")
        if join.args.get("method"):
            raise self.text.error(f"{join.args['method']} JOIN is not supported", join)
        word = kind if kind in ("SEMI", "ANTI", "CROSS") else side or "INNER"
        how = {"CROSS": "inner", "INNER": "inner"}.get(word, word.lower())
        if how not in ("inner", "left", "right", "full", *_ONE_SIDE) or (
            how in _ONE_SIDE and side == "RIGHT"
        ):
            raise self.text.error(f"{side} {kind} JOIN is not supported", join)
        return how

    def _join(self, left: Relation, right: Relation, join: exp.Expr, pool: list[Any]) -> Relation:
        how = self._how(join)
        scopes = self.queries.scope(left, self.env), self.queries.scope(right, self.env)
        if join.args.get("using"):
            return self._using(left, right, how, join)
        given = conjuncts(join.args["on"]) if join.args.get("on") is not None else []
        given = [one for one in given if one.key != "boolean" or not one.this]  # sqlglot's ON TRUE
        if not given and how == "inner":  # a comma: WHERE says how
            given = [one for one in pool if self.pair(one, *scopes) is not None]
            pool[:] = [one for one in pool if not any(one is other for other in given)]
        if not given and how != "inner":
            raise self.text.error("say ON what to join", join)
        between, given = self._between(scopes, given, how, pool)
        pairs, rest = [], []
        for one in given:
            pair = self.pair(one, *scopes)
            if pair is not None:
                pairs.append(pair)
            else:
                left, right, kept = self._one_side(one, left, right, how)
                rest += [one] if kept else []
        made = self.equal(left, right, pairs, how, between=between)
        if rest:
            made = self.queries.keep(conjunction(rest), self.queries.scope(made, self.env))
        return made

    def _between(
        self, scopes: tuple[Scope, Scope], given: list[Any], how: str, pool: list[Any]
    ) -> tuple[Bounds | None, list[Any]]:
        """The bound of time of ON, or for an inner join of WHERE, and what else ON says."""
        for one in given if how != "inner" else [*given, *pool]:
            found = interval_of(one, *scopes)
            if found is not None:
                pool[:] = [other for other in pool if other is not one]
                return found, [other for other in given if other is not one]
        return None, given

    def pair(self, condition: Any, left: Scope, right: Scope) -> Pair | None:
        """An equality between the two sides; None if it is something else."""
        if condition.key != "eq" or condition.find(exp.Query) is not None:
            return None
        sides = [self._sides(one, left, right) for one in (condition.this, condition.expression)]
        if sides == [{0}, {1}]:
            mine, other = condition.this, condition.expression
        elif sides == [{1}, {0}]:
            mine, other = condition.expression, condition.this
        else:
            return None
        make = self.queries.expressions.make
        return self.comparable(Pair(make(mine, left), make(other, right)), condition)

    def comparable(self, pair: Pair, at: exp.Expr) -> Pair:
        """Both in one type."""
        types = pair.left.type, pair.right.type
        if None in types or types[0] == types[1] or all(map(is_numeric, types)):
            return pair
        try:
            kind = common_type(types)
        except TypeMismatch as error:
            raise self.text.error(str(error), at) from None
        return Pair(_cast(pair.left, kind), _cast(pair.right, kind))

    def _sides(self, node: exp.Expr, left: Scope, right: Scope) -> set[int]:
        """Which sides the columns of an expression are of."""
        found = set()
        for column in node.find_all(exp.Column):
            both = [side for side, one in enumerate((left, right)) if one.local(column) is not None]
            named = [side for side in both if (left, right)[side].has_table(column)]
            both = named or both  # `t.x` is a column of t before it is a field of a column t
            if len(both) == 2:
                raise self.text.error(f"{column.name!r} is ambiguous: both sides have it", column)
            if not both:  # of the query around this one, or of nothing
                return {2}
            found.update(both)
        return found

    def _one_side(
        self, condition: Any, left: Relation, right: Relation, how: str
    ) -> tuple[Relation, Relation, bool]:
        """What else ON asks for: of one side before the join if that is the same, or after it."""
        scopes = self.queries.scope(left, self.env), self.queries.scope(right, self.env)
        sides = self._sides(condition, *scopes)
        if sides == {1} and how in ("inner", "left", *_ONE_SIDE):
            return left, self.queries.keep(condition, scopes[1]), False
        if sides == {0} and how in ("inner", "right", "semi"):
            return self.queries.keep(condition, scopes[0]), right, False
        if how == "inner":
            return left, right, True
        raise self.text.error(
            f"ON of a {how.upper()} JOIN takes equalities of both sides, and conditions on the "
            "side that may be missing",
            condition,
        )

    def _using(self, left: Relation, right: Relation, how: str, join: exp.Expr) -> Relation:
        scopes = self.queries.scope(left, self.env), self.queries.scope(right, self.env)
        pairs, names = [], []
        for one in join.args["using"]:
            column = exp.Column(this=one.copy())
            mine, other = (scope.find(column)[0] for scope in scopes)
            names.append(mine.name.lower())
            make = self.queries.expressions.make
            pairs.append(
                self.comparable(Pair(make(column, scopes[0]), make(column, scopes[1])), one)
            )
            if how in ("right", "full") and mine.physical != other.physical:
                raise self.text.error(
                    f"USING ({mine.name}) with a {how.upper()} JOIN: its columns are called "
                    f"{mine.physical} and {other.physical}; name them alike in a query first",
                    one,
                )
        made = self.equal(left, right, pairs, how, merge=True)
        if how in _ONE_SIDE:
            return made
        table = {one.table for one in right.columns}
        columns = (
            _one_of_two(one, how, one.table in table) if one.name.lower() in names else [one]
            for one in made.columns
        )
        return replace(made, columns=tuple(each for some in columns for each in some))

    # -- the step -------------------------------------------------------------------------------

    def equal(
        self,
        left: Relation,
        right: Relation,
        pairs: list[Pair],
        how: str,
        merge: bool = False,
        between: Bounds | None = None,
    ) -> Relation:
        """Two relations joined where pairs are equal, and times are near if there are bounds."""
        bounds: dict[str, Any] = {} if between is None else {"between": between}
        pairs = _once(pairs)
        keys = [pair.left for pair in pairs], [pair.right for pair in pairs]
        mine, names = with_columns(left, keys[0])
        other, others = with_columns(right, keys[1], avoid=names)
        if how in _ONE_SIDE:
            on = list(zip(names, others, strict=True))
            stream = mine.stream.join(other.stream, on=on, how=how, **bounds)
            return replace(mine, stream=stream)
        merged = {one for one, two in zip(names, others, strict=True) if one == two}
        if how != "inner" and not merge and merged:
            other, renamed = self._renamed(mine, other, merged)
            others, merged = [renamed.get(one, one) for one in others], set()
        taken = {one.physical for one in mine.columns}
        suffix = _suffix(taken | set(names), other, merged)
        stream = mine.stream.join(
            other.stream,
            on=[one if one == two else (one, two) for one, two in zip(names, others, strict=True)],
            how=how,
            **bounds,
            **({} if suffix == "_right" else {"suffix": suffix}),
        )
        columns = tuple(
            replace(one, physical=one.physical + suffix)
            if one.physical in taken and one.physical not in merged
            else one
            for one in other.columns
        )
        exact = mine.exact and other.exact and not merged
        return Relation(stream, (*mine.columns, *columns), exact=exact)

    def _renamed(
        self, left: Relation, right: Relation, names: set[str]
    ) -> tuple[Relation, dict[str, str]]:
        """The right side with other names for its keys, so that they stay columns of their own."""
        taken = {one.physical for one in (*left.columns, *right.columns)}
        renamed: dict[str, str] = {}
        for name in names:
            number = 0
            while (called := f"{name}_right{number or ''}") in taken:
                number += 1
            renamed[name] = called
            taken.add(called)
        columns = tuple(
            replace(one, physical=renamed.get(one.physical, one.physical)) for one in right.columns
        )
        items = [
            column_of(one, new.physical) for one, new in zip(right.columns, columns, strict=True)
        ]
        made = self.queries.project(replace(right, exact=False), items)
        return replace(right, stream=made.stream, columns=columns, exact=True), renamed


def _once(pairs: list[Pair]) -> list[Pair]:
    """Pairs without those that say the same again."""
    kept: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        kept.setdefault((pair.left.expression.sql, pair.right.expression.sql), pair)
    return list(kept.values())


def _suffix(taken: set[str], right: Relation, merged: set[str]) -> str:
    """What is put behind names of the right side that the left one has."""
    mine = {one.physical for one in right.columns}
    both = (mine & taken) - merged
    suffix, number = "_right", 1
    while any(one + suffix in taken | mine for one in both):
        number += 1
        suffix = f"_right{number}"
    return suffix


def with_columns(
    relation: Relation, items: list[Made], avoid: list[str] | None = None
) -> tuple[Relation, list[str]]:
    """The relation with columns for these expressions, and what they are called."""
    names, added = [], []
    taken = {one.physical for one in relation.columns} | set(avoid or ())
    for item in items:
        if item.plain is not None:
            names.append(item.plain.physical)
            continue
        number = 1
        while f"_on{number}" in taken:
            number += 1
        taken.add(f"_on{number}")
        names.append(f"_on{number}")
        added.append(_named(item.expression, names[-1]))
    if not added:
        return relation, names
    stream = relation.stream._add(nodes.Select, "select", items=(_EVERYTHING, *added))
    return replace(relation, stream=stream, exact=False), names


def _named(expression: Expression, name: str) -> Expression:
    return replace(expression, sql=f"{expression.sql} AS {name}", name=name)


def _cast(made: Made, kind: pa.DataType) -> Made:
    if made.type == kind or made.expression.node is None:
        return made
    shown = f"CAST({made.expression.sql} AS {type_name(kind)})"
    node = Cast(made.expression.node, kind)
    return Made(Expression(shown, shown, made.expression.columns, node), kind)


def _one_of_two(column: Column, how: str, right: bool) -> list[Column]:
    """A column of USING, which both sides have; one that may be missing has none of its own."""
    missing = how == "full" or how == ("left" if right else "right")
    if right:
        return [replace(column, hidden=True, merged=missing)]
    if not missing:
        return [column]
    return [replace(column, table=""), replace(column, hidden=True, merged=True)]
