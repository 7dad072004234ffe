"""ORDER BY with LIMIT, and ROW_NUMBER() with a bound: the first rows, of all or of each group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.sql.expressions import Made, column_of, identifier
from millstream.sql.joins import with_columns
from millstream.sql.places import Text
from millstream.sql.relations import Column, Relation, Scope

if TYPE_CHECKING:
    from millstream.sql.lowering import Queries

_MOST = 1_000_000


@dataclass(frozen=True)
class Bound:
    """How many rows of each group are wanted, by the number that a query in FROM gives them."""

    name: str  # of the column
    most: int
    shown: bool  # the number itself is wanted too


# -- ORDER BY ... LIMIT -------------------------------------------------------------------------


def limited(queries: Queries, node: exp.Expr, made: Relation) -> Relation:
    """The first rows of a query in the order of its columns."""
    text, order, limit = queries.text, node.args.get("order"), node.args.get("limit")
    if limit is None:
        raise text.error(
            "ORDER BY goes with LIMIT: rows of a stream leave in the order in which they come",
            order,
        )
    if limit.key != "limit":
        raise text.error("FETCH is not supported; write LIMIT", text.of(limit) or text.of(node))
    if order is None:
        raise text.error("LIMIT goes with ORDER BY: which rows come first?", limit)
    if limit.args.get("limit_options") or limit.expressions:
        raise text.error("LIMIT takes a number of rows, without PERCENT and BY", limit)
    for one in order.expressions:
        queries.only(one, {"this", "desc", "nulls_first"}, "ORDER BY")
    most = _number(text, limit.expression, "LIMIT")
    if made.open:
        raise text.error("the columns of this are not known; declare them with schema=", None)
    keys = [order_key(queries, one, made, node) for one in order.expressions]
    relation, names = with_columns(made, [key for key, _ in keys])
    by = _by(text, names, [way for _, way in keys], order)
    stream = relation.stream.key_by().top(most, by=by)
    return _same_columns(queries, replace(relation, stream=stream), made)


def with_order(text: Text, node: exp.Expr) -> tuple[exp.Expr, int]:
    """The query with what only ORDER BY names as further items; how many these are."""
    order = node.args.get("order")
    if order is None or node.args.get("limit") is None:
        return node, 0
    values = [item.this if item.key == "alias" else item for item in node.expressions]
    star = any(one.key == "star" or (one.key == "column" and one.is_star) for one in values)
    names = {item.alias_or_name.lower() for item in node.expressions}
    made, hidden = node.copy(), 0
    for ordered in made.args["order"].expressions:
        value = ordered.this
        given = list(value.find_all(exp.Column))
        shown = all(not one.table and (star or one.name.lower() in names) for one in given)
        if not given or shown or any(value == one for one in values):
            continue
        if star and not node.args.get("joins"):
            continue  # it has all columns there are
        if node.args.get("distinct") is not None:
            plain = not node.args.get("joins") and value.key == "column"
            if plain and any(value.name.lower() == one.name.lower() for one in node.expressions
                             if one.key == "column"):  # fmt: skip
                continue
            raise text.error("ORDER BY of SELECT DISTINCT is about what it selects", value)
        name = f"_by{hidden}"
        made.append("expressions", exp.alias_(value.copy(), name, quoted=True))
        ordered.set("this", exp.Column(this=identifier(name, value)))
        hidden += 1
    return made, hidden


def order_key(queries: Queries, one: exp.Expr, made: Relation, node: exp.Expr) -> tuple[Made, str]:
    """What rows are ordered by: a column of the answer, by its name, its place or what it is."""
    value = one.this
    if value.key == "literal" and not value.is_string:
        number = int(value.name) if value.name.isdigit() else 0
        if not 1 <= number <= len(made.columns):
            raise queries.text.error(f"there is no column {value.name} in SELECT", one)
        column = made.columns[number - 1]
        return column_of(column, column.physical), way_of(one)
    for at, item in enumerate(node.expressions if node.key == "select" else ()):
        same = item.this if item.key == "alias" else item
        if same == value and len(node.expressions) == len(made.columns):
            column = made.columns[at]
            return column_of(column, column.physical), way_of(one)
    scope = Scope(queries.text, made, ())
    plain = _without_table(value)
    return queries.expressions.make(plain, scope), way_of(one)


def _without_table(value: exp.Expr) -> exp.Expr:
    """A column of the answer has no table any more."""
    if value.key == "column" and value.args.get("table") is not None:
        made = value.copy()
        made.set("table", None)
        return made
    return value


def way_of(one: exp.Expr) -> str:
    """Spark's order: nulls are the smallest, unless the text says otherwise."""
    way = "DESC" if one.args.get("desc") else "ASC"
    return f"{way} NULLS {'FIRST' if one.args.get('nulls_first') else 'LAST'}"


def _by(text: Text, names: list[str], ways: list[str], at: exp.Expr) -> list[str]:
    found: dict[str, str] = {}
    for name, way in zip(names, ways, strict=True):
        found.setdefault(name, way)
    if not found:
        raise text.error("ORDER BY what?", at)
    return [f"{name} {way}" for name, way in found.items()]


def _number(text: Text, given: Any, what: str) -> int:
    value = given.name if given is not None and given.key == "literal" else ""
    if not value.isdigit() or given.is_string or not 1 <= int(value) <= _MOST:
        raise text.error(f"{what} takes a whole number from 1 to {_MOST}", given)
    return int(value)


def _same_columns(queries: Queries, relation: Relation, made: Relation) -> Relation:
    """Without the columns that were there for the order only."""
    if relation.exact:
        return relation
    items = [column_of(one, one.physical) for one in made.columns]
    return replace(queries.project(relation, items), time=None)


# -- ROW_NUMBER() -------------------------------------------------------------------------------


def numbered_item(node: exp.Expr) -> Any:
    """The item of a select list that is ROW_NUMBER() OVER (...), and its name; None if none is."""
    for item in node.expressions if node.key == "select" else ():
        value = item.this if item.key == "alias" else item
        if value.key == "window" and value.this.key == "rownumber" and item.key == "alias":
            return item
    return None


def bound_of(item: exp.Expr, outer: exp.Expr, pool: list[Any]) -> Bound | None:
    """The bound that WHERE sets to the row numbers of a query in FROM; it is taken out."""
    query = item
    while query.key == "subquery":
        query = query.this
    number = numbered_item(query)
    if number is None or len(list(query.find_all(exp.Window))) > 1:
        return None
    if any(query.args.get(one) for one in ("distinct", "order", "limit")):
        return None  # these are about all numbers
    if item.args.get("alias") is not None and item.args["alias"].args.get("columns"):
        return None  # its columns have other names outside
    name = number.alias.lower()
    for condition in pool:
        most = _most(condition, name, item.alias)
        if most is not None:
            pool[:] = [one for one in pool if one is not condition]
            exact = condition.key == "eq" and most > 1
            if exact:
                pool.append(condition)
            return Bound(name, most, exact or _is_used(outer, name, condition))
    return None


def _most(condition: Any, name: str, table: str) -> int | None:
    """The largest number that a condition lets through; None if it sets no bound."""
    key = condition.key
    if key not in ("lte", "lt", "gte", "gt", "eq"):
        return None
    column, value = condition.this, condition.expression
    if column.key == "literal":
        column, value = value, column
        key = {"gte": "lte", "gt": "lt", "lte": "gte", "lt": "gt"}.get(key, key)
    if column.key != "column" or column.name.lower() != name or value.key != "literal":
        return None
    if column.table.lower() not in ("", table.lower()):
        return None
    if value.is_string or not value.name.isdigit() or key not in ("lte", "lt", "eq"):
        return None
    most = int(value.name) - (key == "lt")
    return most if 1 <= most <= _MOST else None


def _is_used(outer: exp.Expr, name: str, condition: Any) -> bool:
    """Whether the number is wanted beside its bound."""
    own = {id(one) for one in condition.walk()}
    from_ = outer.args.get("from_")
    inside = {id(one) for one in from_.walk()} if from_ is not None else set()
    for each in outer.walk():
        if id(each) in own or id(each) in inside:
            continue
        if isinstance(each, exp.Star) and not isinstance(each.parent, exp.Count):
            return True
        if isinstance(each, exp.Column) and each.name.lower() == name:
            return True
    return False


def numbered(queries: Queries, node: exp.Expr, scope: Scope, bound: Bound | None) -> Relation:
    """The first rows of every group, with their number if it is wanted."""
    text, item = queries.text, numbered_item(node)
    window = item.this
    if bound is None or bound.name != item.alias.lower():
        raise text.error(
            f"ROW_NUMBER() needs a bound: put a query around this one, WHERE {item.alias} <= 10",
            item,
        )
    queries.only(window, {"this", "partition_by", "order", "over"}, "OVER")
    order = window.args.get("order")
    if order is None:
        raise text.error("ROW_NUMBER() needs ORDER BY in OVER", item)
    make = queries.expressions.make
    parts = [make(one, scope) for one in window.args.get("partition_by") or []]
    keys = [make(one.this, scope) for one in order.expressions]
    relation, names = with_columns(scope.relation, [*parts, *keys])
    groups = list(dict.fromkeys(names[: len(parts)]))
    by = _by(text, names[len(parts) :], [way_of(one) for one in order.expressions], order)
    rank = None
    if bound.shown:
        rank = _free(relation, item.alias)
    stream = relation.stream.key_by(*groups, nulls="keep").top(bound.most, by=by, rank=rank)
    columns = relation.columns
    if rank is not None:
        columns = (*columns, Column(rank, rank, pa.int64()))
    return replace(relation, stream=stream, columns=columns)


def _free(relation: Relation, wanted: str) -> str:
    taken = {one.physical.lower() for one in relation.columns}
    while wanted.lower() in taken:
        wanted = f"_{wanted}"
    return wanted


def with_number(node: exp.Expr, relation: Relation, bound: Bound) -> exp.Expr:
    """The select list with a column in the place of ROW_NUMBER(), or without it."""
    made = node.copy()
    item = numbered_item(made)
    if not bound.shown:
        made.set("expressions", [one for one in made.expressions if one is not item])
        return made
    rank = relation.columns[-1].physical
    made.set(
        "expressions",
        [
            exp.alias_(exp.Column(this=identifier(rank, item)), item.alias, quoted=True)
            if one is item
            else one
            for one in made.expressions
        ],
    )
    return made
