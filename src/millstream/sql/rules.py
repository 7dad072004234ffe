"""Rewrites of a query's tree into one with fewer kinds of things, before it becomes streams.

Each rule is a function from a tree to a tree, and needs to know no columns. What needs them is in
`lowering.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import expressions as exp

from millstream.sql.aggregates import is_aggregate
from millstream.sql.ordering import numbered_item
from millstream.sql.places import Text

Rule = Callable[[Text, exp.Expr], exp.Expr]


def filters_to_cases(text: Text, tree: exp.Expr) -> exp.Expr:
    """`sum(x) FILTER (WHERE c)` is `sum(CASE WHEN c THEN x END)`: aggregates leave out nulls."""
    for each in list(tree.find_all(exp.Filter)):
        call, condition = each.this, each.expression.this
        if not is_aggregate(call) or call.key in ("first", "last"):
            raise text.error("FILTER is not supported here", each)
        given = call.this
        inner = given if isinstance(given, exp.Distinct) else call
        if isinstance(given, exp.Distinct):
            values = [_case(condition, one) for one in given.expressions]
            inner.set("expressions", values)
        elif call.key == "anonymous":
            call.set("expressions", [_case(condition, one) for one in call.expressions])
        else:
            value = exp.Literal.number(1) if given is None or given.key == "star" else given
            call.set("this", _case(condition, value))
        each.replace(call)
    return tree


def _case(condition: exp.Expr, value: exp.Expr) -> Any:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


def row_numbers_inline(text: Text, tree: exp.Expr) -> exp.Expr:
    """A query of WITH that has row numbers stands where it is used, beside the bound they need."""
    for cte in list(tree.find_all(exp.CTE)):
        if numbered_item(cte.this) is None:
            continue
        holder: Any = cte.parent and cte.parent.parent
        name = cte.alias.lower()
        named = [one for one in holder.find_all(exp.Table) if one.name.lower() == name]
        for table in [one for one in named if _means(one, cte, holder)]:
            alias = exp.TableAlias(this=exp.to_identifier(table.alias or cte.alias))
            if cte.args["alias"].args.get("columns"):
                alias.set("columns", [one.copy() for one in cte.args["alias"].args["columns"]])
            table.replace(exp.Subquery(this=cte.this.copy(), alias=alias))
        if any(one.name.lower() == name for one in holder.find_all(exp.Table)):
            continue  # where other names of WITH are between, it is found by its own
        cte.pop()
        if not holder.args["with_"].expressions:
            holder.set("with_", None)
    return tree


def _means(table: Any, cte: Any, holder: Any) -> bool:
    """Whether a name means a query of WITH: it stands behind it, and no other WITH is between."""
    inside, before = table, [id(one) for one in cte.parent.expressions]
    before = before[: before.index(id(cte)) + 1]
    while inside is not holder:
        if id(inside) in before or inside.args.get("with_") is not None:
            return False
        inside = inside.parent
    return True


RULES: tuple[Rule, ...] = (filters_to_cases, row_numbers_inline)


def rewrite(text: Text, tree: exp.Expr) -> exp.Expr:
    """All rules, one after the other."""
    for rule in RULES:
        tree = rule(text, tree)
    return tree
