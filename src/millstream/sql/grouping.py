"""GROUP BY: keys and arguments computed first, then the aggregates, then what is made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlglot import expressions as exp

from millstream.api import aggregates as api
from millstream.api.stream import Stream
from millstream.errors import ConfigError
from millstream.io.schemas import TIMESTAMP
from millstream.ops.aggregates.totals import DecimalTotal
from millstream.ops.sql.types import is_decimal
from millstream.plan.answers import decimal_total
from millstream.sql.aggregates import Call, check_type, is_aggregate, read_call
from millstream.sql.expressions import Made, column_of, identifier, sql_of
from millstream.sql.relations import Column, Relation, Scope
from millstream.sql.several import Keys, without
from millstream.sql.windows import BOUNDS, Specs

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries


_MARKS = {"revision": "revision", "final": "final"}


def is_grouped(node: exp.Expr) -> bool:
    """Whether a query has GROUP BY, HAVING or an aggregate."""
    if node.args.get("group") is not None or node.args.get("having") is not None:
        return True
    return any(True for item in node.expressions for _ in aggregates_of(item))


def aggregates_of(node: exp.Expr) -> list[Any]:
    """Calls of aggregates in an expression, outside of OVER and of queries in it."""
    found: list[Any] = []
    for each in node.walk(prune=lambda n: n.key in ("window", "select") or is_aggregate(n)):
        if is_aggregate(each) and each.key not in ("window", "select"):
            found.append(each)
    return found


@dataclass
class Grouping:
    """One GROUP BY on its way."""

    queries: Queries
    node: exp.Expr
    scope: Scope
    env: Env
    specs: Specs
    every: Keys = ()  # of several sets of keys all there are: those that this one lacks are null
    computed: dict[str, Made] = field(default_factory=dict)  # columns made before grouping
    keys: dict[str, tuple[Any, Column]] = field(default_factory=dict)  # physical -> tree, column
    calls: dict[str, tuple[Any, Any, Column]] = field(default_factory=dict)  # name -> tree, agg

    def answer(self) -> tuple[Relation, list[Made]]:
        """The grouped relation, and the items of the select list over it."""
        from millstream.sql.values import Values

        text, env = self.scope.text, self.env
        values = Values(self.queries, env)
        self.node = self.node.copy()
        self.node.set("expressions", [values.extract(one) for one in self.node.expressions])
        items = [self._item(item) for item in self.node.expressions]
        having = self.node.args.get("having")
        condition = None
        if having is not None:
            condition = self._substituted(values.extract(having.this))
        bounds = self._find_keys(items)
        if self.every:
            kept = [tree for tree, _ in self.keys.values()]
            missing = self._missing(kept, items)
            items = [(name, without(tree, missing, kept)) for name, tree in items]
            condition = condition and without(condition, missing, kept)
        for name, tree in items:
            self._find_calls(tree, name)
        if condition is not None:
            self._find_calls(condition, None)
        if not self.calls and not self.keys and not bounds and not self.every:
            raise text.error("there is nothing to group by", self.node)
        relation = values.join(self._grouped())
        tables = tuple(dict.fromkeys(one.table for one in relation.columns if one.table))
        scope = Scope(text, relation, tables, self.scope.above)
        if condition is not None:
            relation = self.queries.keep(values.fill(self._over(condition)), scope)
            scope = Scope(text, relation, tables, self.scope.above)
        make = self.queries.expressions.make
        made = [make(values.fill(self._checked(tree)), scope, name) for name, tree in items]
        if self.queries.emission.get("emit") == "early" and self.specs:
            marks = [column_of(one) for one in relation.columns if one.name in _MARKS]
            made += marks  # which of several results of a window is the last
        return relation, made

    # -- what the text asks for -----------------------------------------------------------------

    def _item(self, item: exp.Expr) -> tuple[str, Any]:
        """An item of the select list: its name, and its tree with the stream's names."""
        text = self.scope.text
        if item.key == "star" or (item.key == "column" and item.this.key == "star"):
            raise text.error("* does not go with GROUP BY; name the columns", item)
        value = item.this if item.key == "alias" else item
        name = item.alias if item.key == "alias" else ""
        if not name:
            name = value.name if value.key in ("column", "dot") else sql_of(value)
        return name, self._canonical(value)

    def _canonical(self, node: exp.Expr) -> Any:
        return self.queries.expressions.canonical(node, self.scope)

    def _substituted(self, node: exp.Expr) -> Any:
        """With what names of the select list stand for, where no column has the name."""
        aliases = {
            item.alias.lower(): item.this for item in self.node.expressions if item.key == "alias"
        }

        def one(each: Any) -> Any:
            plain = isinstance(each, exp.Column) and each.args.get("table") is None
            if plain and each.name.lower() in aliases and not self._is_column(each):
                return aliases[each.name.lower()].copy()
            return each

        return self._canonical(node.copy().transform(one, copy=False))

    def _is_column(self, column: Any) -> bool:
        relation = self.scope.relation
        names = [one.name.lower() for one in relation.columns]
        return column.name.lower() in names

    def _find_keys(self, items: list[tuple[str, Any]]) -> bool:
        """Take the keys; gives whether the bounds of windows are among them."""
        text = self.scope.text
        group = self.node.args.get("group")
        if group is None:
            if self.specs:
                raise text.error(
                    "windows are for GROUP BY: add GROUP BY window_start, window_end, ...",
                    self.node,
                )
            return False
        if group.args.get("all") is not None or group.args.get("totals"):
            raise text.error("GROUP BY ALL is not supported; name the columns", group)
        bounds = set()
        for each in group.expressions:
            tree = self._key(each, items)
            if self.specs and tree.key == "column" and tree.name in BOUNDS:
                bounds.add(tree.name)
                continue
            self._take_key(tree, items, each)
        one_length = len(self.specs) == 1  # so that each bound says what the other is
        if self.specs and bounds != set(BOUNDS) and not (bounds and one_length):
            missing = " and ".join(one for one in BOUNDS if one not in bounds)
            raise text.error(f"add {missing} to GROUP BY", group)
        return bool(bounds)

    def _key(self, each: exp.Expr, items: list[tuple[str, Any]]) -> Any:
        """A key: an expression, the place of an item (from 1), or its name."""
        text = self.scope.text
        if each.key == "literal" and not each.is_string:
            number = int(each.name) if each.name.isdigit() else 0
            if not 1 <= number <= len(items):
                raise text.error(f"there is no column {each.name} in SELECT", each)
            return items[number - 1][1].copy()
        return self._substituted(each)

    def _missing(self, kept: list[Any], items: list[tuple[str, Any]]) -> list[Any]:
        """The keys of other sets that are none of this one."""
        others = [self._key(one, items) for one in self.every]
        return [one for one in others if one not in kept and one.name not in BOUNDS]

    def _take_key(self, tree: Any, items: list[tuple[str, Any]], at: exp.Expr) -> None:
        text = self.scope.text
        if aggregates_of(tree):
            raise text.error("an aggregate cannot be a key", at)
        made = self.queries.expressions.make(tree, self._canonical_scope())
        if made.plain is not None:
            self.keys[made.plain.physical] = (tree, made.plain)
            return
        alias = next((name for name, item in items if item == tree), None)
        name = self._free(alias, "key")
        self.computed[name] = self.queries.expressions.make(tree, self._canonical_scope(), name)
        self.keys[name] = (tree, Column(name, name, made.type))

    def _canonical_scope(self) -> Scope:
        """Names of the stream are names of the text."""
        relation = self.scope.relation
        columns = {
            one.physical: replace(one, name=one.physical, table="", hidden=False, merged=False)
            for one in relation.columns
        }
        relation = replace(relation, columns=tuple(columns.values()))
        return Scope(self.scope.text, relation, (), None)

    def _find_calls(self, tree: Any, alias: str | None) -> None:
        """Take the aggregates of an expression."""
        for call in aggregates_of(tree):
            if any(call == known for known, _, _ in self.calls.values()):
                continue
            name = self._free(alias if tree is call else None, "agg")
            agg, kind = self._aggregate(call)
            self.calls[name] = (call, agg, Column(name, name, kind))

    def _aggregate(self, call: Any) -> tuple[Any, Any]:
        text = self.scope.text
        read: Call = read_call(text, call)
        if read.argument is None:
            return read.make(None), read.type(None)
        if aggregates_of(read.argument):
            raise text.error("an aggregate within an aggregate", call)
        made = self.queries.expressions.make(read.argument, self._canonical_scope())
        check_type(text, call, read, made.type)
        if made.plain is not None:
            column = made.plain.physical
            if self.specs and column in BOUNDS:
                raise text.error(f"{column} is a key, not a value", call)
        else:
            column = next(
                (
                    n
                    for n, one in self.computed.items()
                    if one.expression.node == made.expression.node
                ),
                self._free(None, "arg"),
            )
            self.computed[column] = self.queries.expressions.make(
                read.argument, self._canonical_scope(), column
            )
        try:
            if read.decimal is not None and made.type is not None and is_decimal(made.type):
                total = decimal_total(column, made.type, read.decimal)
                return total, DecimalTotal(made.type, read.decimal).type
            return read.make(column), read.type(made.type)
        except ConfigError as error:
            raise text.error(str(error), call) from None

    def _free(self, wanted: str | None, stem: str) -> str:
        """A name that no column has yet."""
        taken = {one.physical.lower() for one in self.scope.relation.columns}
        taken |= {name.lower() for name in (*self.computed, *self.calls, *self.keys, *BOUNDS)}
        taken |= {"op", "revision", "final", "emit"}
        if wanted is not None and wanted.isidentifier():
            mine = taken - {one.physical.lower() for one in self.scope.relation.columns}
            mine |= {name.lower() for name in self.keys} | {"op", "revision", "final", "emit"}
            if wanted.lower() not in mine and not (stem == "key" and wanted.lower() in taken):
                return wanted
        number = 1
        while f"_{stem}{number}" in taken:
            number += 1
        return f"_{stem}{number}"

    # -- streams --------------------------------------------------------------------------------

    def _grouped(self) -> Relation:
        stream = self._prepared()
        aggs = {name: agg for name, (_, agg, _) in self.calls.items()}
        keys = tuple(column for _, column in self.keys.values())
        keys = tuple(Column(one.physical, one.physical, one.type) for one in keys)
        made = tuple(column for _, _, column in self.calls.values())
        if not self.specs:
            return self._unwindowed(stream, keys, aggs)
        if not aggs:  # the keys of a window, each once
            aggs = {self._free(None, "agg"): api.count()}
        given = self.queries.emission
        keyed = stream.key_by(*self.keys, nulls="keep")
        streams = [keyed.window(spec, **given).agg(**aggs) for spec in self.specs]
        whole = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])
        edges = tuple(Column(one, one, TIMESTAMP) for one in BOUNDS)
        early = given.get("emit") == "early"
        marks = tuple(Column(*one) for one in _MARKS.items()) if early else ()
        columns = (*keys, *edges, *made, *marks)
        return Relation(whole, columns, time="window_end", exact=bool(self.calls))

    def _unwindowed(
        self, stream: Stream, keys: tuple[Column, ...], aggs: dict[str, Any]
    ) -> Relation:
        """Groups of all there is, kept up to date."""
        made = tuple(column for _, _, column in self.calls.values())
        if not aggs:
            name = self._free(None, "agg")
            grouped = stream.key_by(*self.keys, nulls="keep").agg(
                emit="delta", **{name: api.count()}
            )
            return Relation(grouped, keys, exact=False)
        grouped = stream.key_by(*self.keys, nulls="keep").agg(emit="delta", **aggs)
        return Relation(grouped, (*keys, *made))

    def _prepared(self) -> Stream:
        """The stream with what keys and aggregates need, if that is not there already."""
        relation = self.scope.relation
        if not self.computed:
            return relation.stream
        wanted: dict[str, Made] = {}
        for name, (_, column) in self.keys.items():
            if name not in self.computed:
                wanted[name] = column_of(column, name)
        for _, agg, _ in self.calls.values():
            for name in agg.columns:
                if name not in self.computed:
                    wanted[name] = column_of(Column(name, name), name)
        if relation.time is not None:
            wanted.setdefault(relation.time, column_of(Column(relation.time, relation.time)))
        items = [*wanted.values(), *self.computed.values()]
        return self.queries.project(relation, items).stream

    def _over(self, tree: Any) -> Any:
        """An expression over the grouped relation: keys and aggregates are columns of it."""
        known = [(key, name) for name, (key, _) in self.keys.items()]
        known += [(call, name) for name, (call, _, _) in self.calls.items()]

        def one(node: Any) -> Any:
            for each, name in known:
                if node == each:
                    return exp.Column(this=identifier(name, node))
            for key, value in list(node.args.items()):
                several = value if isinstance(value, list) else [value]
                made = [one(part) if hasattr(part, "args") else part for part in several]
                if any(new is not old for new, old in zip(made, several, strict=True)):
                    node.set(key, made if isinstance(value, list) else made[0])
            return node

        return one(tree.copy())

    def _checked(self, tree: Any) -> Any:
        """The same, with an error for a column that is neither a key nor in an aggregate."""
        made = self._over(tree)
        names = {*self.keys, *self.calls, *(BOUNDS if self.specs else ())}
        for column in made.find_all(exp.Column):
            if column.parts[0].name not in names:
                text = self.scope.text
                self.queries.expressions.refuse_strangers(column, text)
                raise text.error(
                    f"{column.parts[0].name!r} is neither in GROUP BY nor in an aggregate", column
                )
        return made
