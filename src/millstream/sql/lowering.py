"""Queries to streams: each clause becomes the step that Python's API has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import expressions as exp

from millstream.graph import nodes
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.frames import suggestion
from millstream.sql.expressions import Expressions, Made, column_of, sql_of
from millstream.sql.grouping import Grouping, is_grouped
from millstream.sql.intervals import is_moment, recent_of
from millstream.sql.joins import Joins, conjunction, conjuncts
from millstream.sql.ordering import (
    Bound,
    bound_of,
    limited,
    numbered,
    numbered_item,
    with_number,
    with_order,
)
from millstream.sql.over import overlooked, windows_of
from millstream.sql.places import Text
from millstream.sql.relations import Column, Relation, Scope
from millstream.sql.sets import Sets
from millstream.sql.several import sets_of
from millstream.sql.subqueries import Memberships, is_membership
from millstream.sql.values import Values, is_one_row
from millstream.sql.windows import FUNCTIONS, Specs, assigned, windowed

Lookup = Callable[[str], Relation | None]

# What a SELECT may have; anything else is refused by name.
_CLAUSES = {
    "expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", "kind",
    "order", "limit",
}  # fmt: skip
_INSTEAD = {
    "qualify": "; put the query in FROM: SELECT ... FROM (SELECT ..., ROW_NUMBER() OVER (...) AS n "
    "FROM t) WHERE n = 1"
}
_WORDS = {"laterals": "LATERAL VIEW", "windows": "WINDOW", "sort": "SORT BY", "offset": "OFFSET"}


@dataclass(frozen=True)
class Env:
    """What a query finds around it: named queries of WITH, and the query it stands in."""

    named: dict[str, Relation] = field(default_factory=dict)
    above: Scope | None = None
    bound: Bound | None = None  # of the row numbers it gives
    single: frozenset[str] = frozenset()  # of the named ones, those that have one row at most


class Queries:
    """Turns the queries of one text into streams."""

    def __init__(
        self, text: Text, find: Lookup, known: Callable[[], list[str]], expressions: Expressions,
        emission: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.text, self._find, self._known = text, find, known
        self.expressions = expressions
        self.emission = emission or {}  # how windows give their results

    # -- queries --------------------------------------------------------------------------------

    def query(self, node: exp.Expr, env: Env | None = None) -> Relation:
        """The stream of a query."""
        env = self._with(node, env or Env())
        match node.key:
            case "select":
                return self._select(node, env)
            case "union" | "intersect" | "except":
                return Sets(self, env).relation(node)
            case "subquery":
                self.only(node, {"this", "alias", "with_"}, "brackets")
                return self.query(node.this, env)
        raise self.text.error(f"{node.key.upper()} is not supported", node)

    def _with(self, node: exp.Expr, env: Env) -> Env:
        found = node.args.get("with_")
        if found is None:
            return env
        if found.args.get("recursive"):
            raise self.text.error("WITH RECURSIVE is not supported", found)
        names = [one.alias.lower() for one in found.expressions]
        for each in found.expressions:
            name = each.alias
            if names.count(name.lower()) > 1:
                raise self.text.error(f"{name} is named twice", each)
            made = self.query(each.this, replace(env, bound=None))
            alias = each.args.get("alias")
            columns = [one.name for one in alias.args.get("columns") or []] if alias else []
            self._check_names(columns, made, each)
            env = replace(
                env,
                named={**env.named, name.lower(): made.named(name, columns)},
                single=env.single | ({name.lower()} if is_one_row(each.this, env) else set()),
            )
        return env

    def _check_names(self, names: list[str], made: Relation, at: exp.Expr) -> None:
        if names and (made.open or len(names) != len(made.columns)):
            raise self.text.error(f"{len(names)} names for {len(made.columns)} columns", at)

    def only(self, node: exp.Expr, allowed: set[str], what: str) -> None:
        """Refuse clauses that would be ignored."""
        for key, value in node.args.items():
            if value and key not in allowed:
                one = value[0] if isinstance(value, list) else value
                place = self.text.of(one) if hasattr(one, "walk") else None
                word = _WORDS.get(key, key.strip("_").upper().replace("_", " "))
                instead = _INSTEAD.get(key, "")
                raise self.text.error(
                    f"{word} is not supported in {what}{instead}",
                    self.text.after(word, place) or self.text.of(node),
                )

    def check_clauses(self, node: exp.Expr) -> None:
        """Refuse what a SELECT has that is not supported."""
        self.only(node, _CLAUSES, "a query")
        if node.args.get("kind"):
            raise self.text.error("SELECT AS is not supported", node)
        if node.args.get("from_") is None:
            raise self.text.error("a query needs FROM: what is it about?", node)
        if not node.expressions:
            raise self.text.error("a query needs columns: SELECT what?", node)

    def _select(self, node: exp.Expr, env: Env) -> Relation:
        """The clauses in the order in which they are computed."""
        self.check_clauses(node)
        node, hidden = with_order(self.text, node)
        relation, specs = self._input(node, env)
        made = self._list(node, relation, specs, env)
        distinct = node.args.get("distinct")
        if distinct is not None:
            if distinct.args.get("on"):
                raise self.text.error("DISTINCT ON is not supported", distinct)
            made = replace(made, stream=made.stream.distinct())
        if node.args.get("order") is not None or node.args.get("limit") is not None:
            made = limited(self, node, made)
        if hidden:
            kept = made.columns[: len(made.columns) - hidden]
            made = self.project(replace(made, exact=False), [column_of(one) for one in kept])
        return made

    def _input(self, node: exp.Expr, env: Env) -> tuple[Relation, Specs]:
        """The rows of FROM for which WHERE is true, and the windows they are to be put into."""
        where = node.args.get("where")
        pool = conjuncts(where.this) if where is not None else []
        relation, specs, rest = self.from_(node, env, pool)
        if specs and not is_grouped(node):
            relation, specs = assigned(self.text, relation, specs, node.args["from_"]), ()
        if specs:
            self._check_bounds(rest)
        if where is not None:
            given = [one.alias for one in node.expressions if one.key == "alias"]
            self.scope(relation, env).check_where(where, given)
        special = any(is_membership(one) or _has_now(one) for one in rest)
        if where is not None and len(rest) == len(pool) and not special:
            rest = [where.this]
        return self.filtered(relation, rest, env), specs

    def _list(self, node: exp.Expr, relation: Relation, specs: Specs, env: Env) -> Relation:
        """What the select list makes of these rows: of groups of them, or of each."""
        scope, over = self.scope(relation, env), windows_of(node)
        if over and (specs or is_grouped(node)):
            raise self.text.error(
                "functions OVER rows go with a query around the groups: SELECT ..., RANK() OVER "
                "(ORDER BY n) FROM (SELECT ... GROUP BY ...)",
                over[0],
            )
        if env.bound is not None and numbered_item(node) is not None:
            return self._numbered(node, scope, env)
        if over:
            relation, listed = overlooked(self, node, relation, env)
            return self._plain(listed, relation, env)
        if is_grouped(node):
            return self._grouped(node, scope, env, specs)
        return self._plain(node, relation, env)

    def _plain(self, node: exp.Expr, relation: Relation, env: Env) -> Relation:
        """The items of a select list over rows as they are."""
        values, listed = Values(self, env), node.copy()
        items = [_with_name(one) for one in listed.expressions]
        listed.set("expressions", [values.extract(one) for one in items])
        relation = values.join(relation)
        listed.set("expressions", [values.fill(one) for one in listed.expressions])
        return self.project(relation, self.items(listed, self.scope(relation, env)), at=node)

    def _grouped(self, node: exp.Expr, scope: Scope, env: Env, specs: Specs) -> Relation:
        """The groups of a query; of several sets of keys one after the other."""
        several = sets_of(self.text, node)
        if several is None:
            return self.project(*Grouping(self, node, scope, env, specs).answer(), at=node)
        sets, every = several
        parts = []
        for keys in sets:
            one = node.copy()
            one.set("group", exp.Group(expressions=[key.copy() for key in keys]))
            grouping = Grouping(self, one, scope, env, specs, every)
            parts.append(self.project(*grouping.answer(), at=node))
        return Sets(self, env).united(parts, node)

    def _numbered(self, node: exp.Expr, scope: Scope, env: Env) -> Relation:
        """The first rows of groups, by ROW_NUMBER()."""
        relation = numbered(self, node, scope, env.bound)
        assert env.bound is not None
        listed = with_number(node, relation, env.bound)
        rank = (1,) if env.bound.shown else ()
        before = replace(relation, columns=relation.columns[: len(relation.columns) - len(rank)])
        items: list[Made] = []
        for item in listed.expressions:
            star = item.key == "star" or (item.key == "column" and item.this.key == "star")
            inside = self.scope(before if star else relation, env)
            one = node.copy()
            one.set("expressions", [item])
            items.extend(self.items(one, inside))
        return self.project(replace(relation, exact=False), items)

    def scope(self, relation: Relation, env: Env) -> Scope:
        """The names of a relation."""
        tables = dict.fromkeys(one.table for one in relation.columns if one.table)
        return Scope(self.text, relation, tuple(tables), env.above)

    # -- FROM -----------------------------------------------------------------------------------

    def from_(self, node: exp.Expr, env: Env, pool: list[Any]) -> tuple[Relation, Specs, list[Any]]:
        """What FROM gives, its windows, and the conditions of WHERE that it did not use."""
        inside, rest = replace(env, bound=None), list(pool)
        item = node.args["from_"].this
        if not node.args.get("joins"):
            if item.key == "subquery":
                inside = replace(inside, bound=bound_of(item, node, rest))
            return *self.item(item, inside), rest
        return Joins(self, inside).relation(node, rest), (), rest

    def item(self, item: exp.Expr, env: Env) -> tuple[Relation, Specs]:
        """One item of FROM, and its windows."""
        alias = item.args.get("alias")
        names = [one.name for one in alias.args.get("columns") or []] if alias else []
        specs: Specs = ()
        kind = item.this.key if item.key == "table" and item.this is not None else item.key
        if kind == "subquery":
            self.only(item, {"this", "alias", "with_"}, "FROM")
            made = self.query(item, env)
            name = item.alias
        elif kind == "anonymous":
            made, specs = self._function(item.this, env)
            name = item.alias or (item.this.expressions[0].name if item.this.expressions else "")
        elif kind == "identifier":
            self.only(item, {"this", "alias", "db", "catalog"}, "FROM")
            made = self.table(item, env)
            name = item.alias or item.name
        else:
            raise self.text.error("expected a stream, a view or a query in FROM", item)
        self._check_names(names, made, item)
        return made.named(name, names), specs

    def _function(self, call: exp.Expr, env: Env) -> tuple[Relation, Specs]:
        if call.name.lower() not in FUNCTIONS:
            known = [one.upper() for one in FUNCTIONS]
            near = suggestion(call.name, known) or f"; there are {', '.join(known)}"
            raise self.text.error(f"there is no table function {call.name!r}{near}", call)
        return windowed(self.text, call, lambda data: self.table(data, env))

    def table(self, item: exp.Expr, env: Env) -> Relation:
        """A stream, a view, or a query of WITH, by its name."""
        if item.args.get("db") is not None or item.args.get("catalog") is not None:
            raise self.text.error("names of tables have no dots here", item)
        name = item.name
        found = env.named.get(name.lower()) or self._find(name)
        if found is None:
            known = [*env.named, *self._known()]
            near = suggestion(name, known) or f"; there are {', '.join(known) or 'none'}"
            raise self.text.error(f"there is no stream or view {name!r}{near}", item)
        return found

    # -- WHERE ----------------------------------------------------------------------------------

    def _check_bounds(self, conditions: list[Any]) -> None:
        for condition in conditions:
            for each in condition.find_all(exp.Column):
                if each.name.lower() in ("window_start", "window_end"):
                    raise self.text.error(f"{each.name} is known after grouping; use HAVING", each)

    def filtered(self, relation: Relation, conditions: list[Any], env: Env) -> Relation:
        """The rows for which all conditions are true, those about other queries last."""
        scope = self.scope(relation, env)
        recent = [size for one in conditions if (size := recent_of(one, scope)) is not None]
        conditions = [one for one in conditions if recent_of(one, scope) is None]
        plain = [one for one in conditions if not is_membership(one)]
        if plain:
            values = Values(self, env)
            plain = [values.extract(one) for one in plain]
            relation = values.join(relation)
            scope = self.scope(relation, env)
            relation = self.keep(conjunction([values.fill(one) for one in plain]), scope)
        for size in recent:
            relation = replace(relation, stream=relation.stream.last(size))
        for one in conditions:
            if is_membership(one):
                relation = Memberships(self, env).apply(relation, one)
        return relation

    def keep(self, condition: exp.Expr, scope: Scope) -> Relation:
        """The rows for which a condition is true."""
        made = self.expressions.make(condition, scope, condition=True)
        stream = scope.relation.stream._add(nodes.Where, "where", condition=made.expression)
        return replace(scope.relation, stream=stream)

    # -- SELECT ---------------------------------------------------------------------------------

    def items(self, node: exp.Expr, scope: Scope) -> list[Made]:
        """The columns of a select list."""
        made: list[Made] = []
        for item in node.expressions:
            if item.key == "star" or (item.key == "column" and item.this.key == "star"):
                made.extend(self._star(item, scope))
            elif item.key == "alias":
                made.append(self.expressions.make(item.this, scope, item.alias))
            elif item.key == "aliases":
                raise self.text.error("one name for one column", item)
            else:
                name = item.name if item.key in ("column", "dot") else sql_of(item)
                made.append(self.expressions.make(item, scope, name or None))
        return made

    def _star(self, item: exp.Expr, scope: Scope) -> list[Made]:
        star = item if item.key == "star" else item.this
        self.only(star, {"except_"}, "*")
        relation = scope.relation
        table = item.args.get("table") if item.key == "column" else None
        if table is not None and table.name.lower() not in [t.lower() for t in scope.tables]:
            raise self.text.error(f"there is no table {table.name!r} in FROM", item)
        left_out = star.args.get("except_") or []
        if relation.open:
            if left_out:
                raise self.text.error(
                    "the columns of this are not known, so none can be left out", star
                )
            return [Made(Expression("*", "*", frozenset(), None), None)]
        columns = [
            one
            for one in relation.columns
            if (table is None and not one.hidden)
            or (table is not None and one.table.lower() == table.name.lower())
        ]
        gone = [self._left_out(name, columns) for name in left_out]
        kept = [one for one in columns if not any(one in some for some in gone)]
        if not kept:
            raise self.text.error("EXCEPT leaves no column", star)
        return [column_of(scope.own(one, item)) for one in kept]

    def _left_out(self, name: exp.Expr, columns: list[Column]) -> list[Column]:
        """The columns that a name of EXCEPT means, with its table if it says one."""
        parts = [part.name.lower() for part in getattr(name, "parts", [name])]
        found = [
            one
            for one in columns
            if one.name.lower() == parts[-1] and parts[:-1] in ([], [one.table.lower()])
        ]
        if not found:
            shown = ".".join(parts)
            raise self.text.error(f"there is no column {shown!r} to leave out", name)
        return found

    def project(
        self, relation: Relation, items: list[Made], at: exp.Expr | None = None
    ) -> Relation:
        """The relation with these columns and no others."""
        if len(items) == 1 and items[0].expression.name == "*":
            return relation
        names = [one.expression.name for one in items]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise self.text.error(
                f"two columns are called {twice[0]!r}; give one another name with AS", at
            )
        time = next(
            (
                one.expression.name
                for one in items
                if one.plain is not None and one.plain.physical == relation.time
            ),
            None,
        )
        columns = tuple(Column(one.expression.name, one.expression.name, one.type) for one in items)
        same = [one.plain.physical if one.plain else None for one in items]
        natural = [one.physical for one in relation.columns]
        if relation.exact and not relation.open and same == names == natural:
            return Relation(relation.stream, columns, time=time)
        expressions = tuple(one.expression for one in items)
        stream = relation.stream._add(nodes.Select, "select", items=expressions)
        return Relation(stream, columns, open="*" in names, time=time)


def _with_name(item: Any) -> Any:
    """An item with a query in it keeps the name that its text gives it."""
    if item.key == "alias" or item.find(exp.Subquery) is None:
        return item
    return exp.alias_(item, sql_of(item), quoted=True)


def _has_now(condition: Any) -> bool:
    return any(map(is_moment, condition.walk()))
