"""Rewrites of a query's tree into one with fewer kinds of things, before it becomes streams.

Each rule is a function from a tree to a tree, and needs to know no columns. What needs them is in
`lowering.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from millstream.sql.aggregates import is_aggregate
from millstream.sql.ordering import numbered_item
from millstream.sql.places import Text

if TYPE_CHECKING:
    from sqlglot import expressions as exp

Rule = Callable[[Text, "exp.Expr"], "exp.Expr"]


def filters_to_cases(text: Text, tree: exp.Expr) -> exp.Expr:
    """`sum(x) FILTER (WHERE c)` is `sum(CASE WHEN c THEN x END)`: aggregates leave out nulls."""
    from sqlglot import expressions as exp

    for each in list(tree.find_all(exp.Filter)):
        call, condition = each.this, each.expression.this
        if not is_aggregate(call) or call.key in ("first", "last"):
            raise text.error("FILTER is not supported here", text.of(each))
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
    from sqlglot import expressions as exp

    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


def grouping_sets_to_unions(text: Text, tree: exp.Expr) -> exp.Expr:
    """GROUP BY GROUPING SETS, ROLLUP and CUBE are a UNION ALL with one GROUP BY each."""
    from sqlglot import expressions as exp

    for select in [one for one in tree.find_all(exp.Select) if _sets(text, one) is not None]:
        sets = _sets(text, select)
        assert sets is not None
        every = list(dict.fromkeys(chain.from_iterable(sets)))
        for one in ("order", "limit", "distinct"):
            if select.args.get(one) is not None:
                raise text.error(
                    f"{one.upper()} beside GROUPING SETS is not supported; put a query around it",
                    text.of(select.args[one]) or text.of(select),
                )
        parts = [_grouped(select, one, every) for one in sets]
        whole: Any = parts[0]
        for part in parts[1:]:
            whole = exp.Union(this=whole, expression=part, distinct=False)
        if len(parts) == 1:
            whole = parts[0]
        if select.args.get("with_") is not None:
            whole.set("with_", select.args["with_"].copy())
            for part in parts:
                part.set("with_", None)
        if select is tree:
            return whole  # type: ignore[no-any-return]
        select.replace(whole)
    return tree


_Set = tuple["exp.Expr", ...]


def _sets(text: Text, select: exp.Expr) -> list[_Set] | None:
    """The sets a query groups by; None if it has a plain GROUP BY, or none."""
    group = select.args.get("group")
    if group is None:
        return None
    kinds = ("grouping_sets", "rollup", "cube")
    special = [one for one in group.expressions if one.key in ("groupingsets", "rollup", "cube")]
    special += [one for kind in kinds for one in group.args.get(kind) or []]
    plain = tuple(one for one in group.expressions if one not in special)
    if not special:
        return None
    if len(special) > 1:
        raise text.error("one of GROUPING SETS, ROLLUP and CUBE at a time", text.of(group))
    members = [_members(one) for one in special[0].expressions]
    key = special[0].key
    if key == "groupingsets":
        found = members
    elif key == "rollup":
        found = [tuple(chain.from_iterable(members[:n])) for n in range(len(members), -1, -1)]
    else:
        found = [tuple(chain.from_iterable(some)) for some in _subsets(members)]
    return [(*plain, *one) for one in found]


def _members(one: exp.Expr) -> _Set:
    if one.key == "tuple":
        return tuple(one.expressions)
    return (one.this,) if one.key == "paren" else (one,)


def _subsets(members: list[_Set]) -> Iterator[tuple[_Set, ...]]:
    if len(members) > 6:
        return iter([tuple(members)])
    sizes = range(len(members), -1, -1)
    return chain.from_iterable(combinations(members, size) for size in sizes)


def _grouped(select: exp.Expr, keys: _Set, every: list[Any]) -> Any:
    """One query of the union: what it does not group by is null."""
    from sqlglot import expressions as exp

    part = select.copy()
    group = exp.Group(expressions=[one.copy() for one in keys]) if keys else None
    part.set("group", group)
    missing = [one for one in every if one not in keys]

    def nulled(node: Any) -> Any:
        return exp.Null() if any(node == one for one in missing) else node

    items = []
    for item in part.expressions:
        name = item.alias_or_name
        value = item.this if isinstance(item, exp.Alias) else item
        changed = _outside_aggregates(value, nulled)
        items.append(exp.alias_(changed, name, quoted=True) if name else changed)
    part.set("expressions", items)
    having = part.args.get("having")
    if having is not None:
        having.set("this", _outside_aggregates(having.this, nulled))
    return part


def _outside_aggregates(node: Any, change: Callable[[Any], Any]) -> Any:
    if is_aggregate(node):
        return node
    changed = change(node)
    if changed is not node:
        return changed
    for key, value in list(node.args.items()):
        several = value if isinstance(value, list) else [value]
        made = [
            _outside_aggregates(one, change) if hasattr(one, "args") else one for one in several
        ]
        node.set(key, made if isinstance(value, list) else made[0])
    return node


def row_numbers_inline(text: Text, tree: exp.Expr) -> exp.Expr:
    """A query of WITH that has row numbers stands where it is used, beside the bound they need."""
    from sqlglot import expressions as exp

    for cte in list(tree.find_all(exp.CTE)):
        if numbered_item(cte.this) is None:
            continue
        holder: Any = cte.parent and cte.parent.parent
        name = cte.alias.lower()
        for table in [one for one in holder.find_all(exp.Table) if one.name.lower() == name]:
            alias = exp.TableAlias(this=exp.to_identifier(table.alias or cte.alias))
            if cte.args["alias"].args.get("columns"):
                alias.set("columns", [one.copy() for one in cte.args["alias"].args["columns"]])
            table.replace(exp.Subquery(this=cte.this.copy(), alias=alias))
        cte.pop()
        if not holder.args["with_"].expressions:
            holder.set("with_", None)
    return tree


RULES: tuple[Rule, ...] = (filters_to_cases, grouping_sets_to_unions, row_numbers_inline)


def rewrite(text: Text, tree: exp.Expr) -> exp.Expr:
    """All rules, one after the other."""
    for rule in RULES:
        tree = rule(text, tree)
    return tree
