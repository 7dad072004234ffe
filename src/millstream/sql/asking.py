"""A query that is asked once, of tables as they are now: its rows have an order, and end.

The query itself is the same as a continuous one. Only its outermost ORDER BY, LIMIT and OFFSET are
left to whoever has all rows of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import expressions as exp

from millstream.api.stream import Stream
from millstream.errors import ConfigError
from millstream.sql import statements as ask
from millstream.sql.expressions import Expressions
from millstream.sql.grammar import place_of, statements_of
from millstream.sql.joins import with_columns
from millstream.sql.lowering import Queries
from millstream.sql.ordering import order_key
from millstream.sql.places import Text
from millstream.sql.relations import Relation
from millstream.sql.rules import rewrite


@dataclass(frozen=True)
class Asked:
    """A query over a flow: its stream, and what is to be done with all its rows."""

    stream: Stream
    columns: tuple[str, ...]
    order: tuple[tuple[str, str], ...] = ()  # columns, with ASC or DESC and NULLS FIRST or LAST
    offset: int = 0
    limit: int | None = None

    def arranged(self, rows: pa.Table) -> pa.Table:
        """All rows of the answer, in the order that was asked for."""
        rows = self.completed(rows)
        if self.order:
            keys = [_sortable(rows.column(name), way) for name, way in self.order]
            order = np.lexsort(tuple(part for key in reversed(keys) for part in reversed(key)))
            rows = rows.take(pa.array(order))
        return rows.slice(self.offset, self.limit).select(list(self.columns))

    def completed(self, rows: pa.Table) -> pa.Table:
        """Rows with all columns there are: one that no row has is not in a table of records."""
        wanted = dict.fromkeys((*self.columns, *(name for name, _ in self.order)))
        for name in wanted:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(len(rows)))
        return rows


def read_query(
    sql: str, find: Callable[[str], Relation | None], names: Callable[[], list[str]]
) -> Asked:
    """What a query asks for; `find` gives its tables, `names` has those there are."""
    text = Text(sql)
    found = statements_of(text)
    if len(found) != 1:
        raise text.error("expected one query", None)
    (tokens,) = found
    statement = ask.read_statement(text, tokens, there=("SELECT",))
    if not isinstance(statement, ask.Query):
        raise text.error("here are only queries: views are read, not made", place_of(tokens[:1]))
    try:
        return _lowered(text, statement.query, find, names)
    except ConfigError as error:
        if hasattr(error, "line"):
            raise
        raise text.error(str(error), place_of(tokens)) from error
    except RecursionError:
        raise text.error("this is nested too deeply", place_of(tokens)) from None


def _lowered(
    text: Text,
    tree: exp.Expr,
    find: Callable[[str], Relation | None],
    names: Callable[[], list[str]],
) -> Asked:
    queries = Queries(text, find, names, Expressions({}), None)
    order, limit, offset = (tree.args.get(name) for name in ("order", "limit", "offset"))
    for name in ("order", "limit", "offset"):
        tree.set(name, None)
    bounds = {
        "limit": None if limit is None else _number(text, limit, "LIMIT"),
        "offset": 0 if offset is None else _number(text, offset, "OFFSET"),
    }
    node = rewrite(text, tree)
    made = queries.query(node)
    columns = tuple(one.physical for one in made.columns if not one.hidden)
    if order is None:
        return Asked(made.stream, columns, (), **bounds)  # type: ignore[arg-type]
    keys = [order_key(queries, one, made, node) for one in order.expressions]
    relation, named = with_columns(made, [key for key, _ in keys])
    ways = tuple(zip(named, (way for _, way in keys), strict=True))
    return Asked(relation.stream, columns, ways, **bounds)  # type: ignore[arg-type]


def _number(text: Text, clause: exp.Expr, what: str) -> int:
    value = clause.expression
    name = value.name if value is not None and value.key == "literal" else ""
    if not name.isdigit() or value.is_string or len(name) > 12:
        raise text.error(f"{what} takes a whole number", clause)
    return int(name)


def _sortable(column: pa.ChunkedArray, way: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that stand in the order of the values: where nulls stand, then the values."""
    column = column.combine_chunks()
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), np.zeros(len(column), np.int64)
    try:
        rank = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    except pa.ArrowNotImplementedError:
        raise ConfigError(f"ORDER BY: values of type {column.type} have no order") from None
    rank = -rank if way.startswith("DESC") else rank
    null = np.asarray(pc.is_null(column))
    return np.where(null, -1 if way.endswith("FIRST") else 1, 0), np.where(null, 0, rank)
