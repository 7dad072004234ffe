"""Doing what statements ask for: `flow.sql(text)`.

A text is all or nothing: if one of its statements cannot be done, the flow is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import expressions as exp

from millstream.api.stream import Stream
from millstream.errors import ConfigError, SqlError
from millstream.graph import nodes
from millstream.graph.changing import gives_changes
from millstream.ops.sql.calling import UserFunction
from millstream.ops.sql.frames import suggestion
from millstream.ops.sql.types import type_name
from millstream.sql import statements as ask
from millstream.sql.catalog import Catalog, Entry, relation_of, upstream
from millstream.sql.connectors import make_sink, make_source, view_options, without_kept
from millstream.sql.expressions import Expressions
from millstream.sql.grammar import place_of, statements_of
from millstream.sql.lowering import Queries
from millstream.sql.places import Text
from millstream.sql.relations import Column, Relation
from millstream.sql.rules import rewrite

if TYPE_CHECKING:
    from millstream.api.flow import Flow


@dataclass(frozen=True)
class Answer:
    """What one statement gave: a stream, a text, or nothing."""

    stream: Stream | None = None
    text: str | None = None
    query: bool = False  # a query by itself: somebody wants to see its rows


class Session:
    """The SQL of one flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.catalog = Catalog(flow)
        self.functions: dict[str, UserFunction] = {}
        self._sinks: dict[str, Any] = {}  # those that nothing goes to yet

    def run(self, sql: str) -> list[Answer]:
        """Do all statements of a text."""
        if not isinstance(sql, str):
            raise SqlError(f"sql(): expected a text, got {type(sql).__name__}")
        text = Text(sql)
        before = dict(self.catalog.entries), dict(self._sinks)
        try:
            with self.flow.attempt():
                found = statements_of(text)
                if not found:
                    raise text.error("there is no statement", None)
                return [self._one(text, tokens) for tokens in found]
        except BaseException:
            self.catalog.entries, self._sinks = before
            raise

    def _one(self, text: Text, tokens: Any) -> Answer:
        try:
            return self._do(text, ask.read_statement(text, tokens, self.functions))
        except SqlError:
            raise
        except ConfigError as error:  # of a step, which knows no places
            raise text.error(str(error), place_of(tokens)) from error
        except RecursionError:
            raise text.error("this is nested too deeply", place_of(tokens)) from None

    def _do(self, text: Text, statement: ask.Statement) -> Answer:
        match statement:
            case ask.CreateStream():
                return self._create_stream(text, statement)
            case ask.CreateView():
                return self._create_view(text, statement)
            case ask.CreateSink():
                return self._create_sink(text, statement)
            case ask.Insert():
                return self._insert(text, statement)
            case ask.Query():
                return Answer(self._query(text, statement.query).stream, query=True)
            case ask.Show():
                return Answer(text=self._show(statement.what))
            case ask.Describe():
                return Answer(text=self._describe(text, statement.name))
            case ask.Explain():
                return Answer(text=self._explain(text, statement))
            case ask.Drop():
                return self._drop(text, statement)

    def _query(
        self, text: Text, tree: exp.Expr, emission: dict[str, Any] | None = None
    ) -> Relation:
        expressions = Expressions(self.functions)
        queries = Queries(text, self.catalog.find, self.catalog.names, expressions, emission)
        return queries.query(rewrite(text, tree))

    # -- making ---------------------------------------------------------------------------------

    def _free(self, text: Text, name: ask.Name, unless: bool) -> bool:
        """Whether a name is free; an error if it is not and must be."""
        taken = name.text.lower() in self.catalog.entries or any(
            one.name.lower() == name.text.lower() and self.flow.is_named(one)
            for one in self.flow.nodes
        )
        if taken and not unless:
            raise text.error(f"there is a {name.text!r} already; drop it first", name.place)
        return not taken

    def _making(
        self, make: Callable[[], Relation | None]
    ) -> tuple[Relation | None, tuple[Any, ...]]:
        before = set(self.flow.nodes)
        relation = make()
        return relation, tuple(one for one in self.flow.nodes if one not in before)

    def _remember(
        self, kind: str, name: str, relation: Relation | None, made: tuple[Any, ...]
    ) -> None:
        self.catalog.entries[name.lower()] = Entry(kind, name, relation, made)

    def _create_stream(self, text: Text, statement: ask.CreateStream) -> Answer:
        if not self._free(text, statement.name, statement.unless):
            return Answer(self._stream(text, statement.name))

        def make() -> Relation:
            found, name = make_source(text, statement), statement.name.text
            columns = tuple(
                Column(one.name, one.name, one.type)
                for one in found.schema or ()
                if one.name != found.op
            )
            if not found.key:
                stream = self.flow.source(found.spec, name=name)
            else:
                records = self.flow.source(found.spec, name=f"{name}_records")
                stream = records.changes(key=found.key, op=found.op).named(name)
            if not columns:
                return relation_of(stream)
            return Relation(stream, columns, time=found.spec.time)

        relation, made = self._making(make)
        self._remember("stream", statement.name.text, relation, made)
        return Answer(relation.stream if relation else None)

    def _create_view(self, text: Text, statement: ask.CreateView) -> Answer:
        if not self._free(text, statement.name, statement.unless):
            return Answer(self._stream(text, statement.name))
        kept, options = without_kept(text, statement.options)
        emission = view_options(text, options)
        before = set(self.flow.nodes)

        def make() -> Relation:
            relation = self._query(text, statement.query, emission)
            stream = relation.stream
            if stream.node in before:  # a view has a step of its own, which has its name
                stream = stream.select("*")
            stream = stream.named(statement.name.text)
            if statement.materialized or gives_changes(stream.node) if kept is None else kept:
                query = statement.query.sql(dialect="spark")
                stream._keep(statement.name.text, query, relation.schema)
            return Relation(stream, relation.columns, relation.open, relation.time)

        relation, made = self._making(make)
        assert relation is not None
        if emission and not any(isinstance(one, nodes.Windowed) for one in made):
            raise text.error(
                "these options are for windows, and there is none", statement.name.place
            )
        self._remember("view", statement.name.text, relation, made)
        return Answer(relation.stream)

    def _create_sink(self, text: Text, statement: ask.CreateSink) -> Answer:
        if not self._free(text, statement.name, statement.unless):
            return Answer()
        spec = make_sink(text, statement.options)
        self._sinks[statement.name.text.lower()] = spec
        self._remember("sink", statement.name.text, None, ())
        if statement.view is not None:
            relation = self._relation(text, statement.view)
            return self._fill(statement.name, lambda: relation)
        if statement.query is not None:
            query = statement.query
            return self._fill(statement.name, lambda: self._query(text, query))
        return Answer()

    def _insert(self, text: Text, statement: ask.Insert) -> Answer:
        entry = self.catalog.entries.get(statement.sink.text.lower())
        if entry is None or entry.kind != "sink":
            known = [one.name for one in self.catalog.entries.values() if one.kind == "sink"]
            raise text.error(
                f"there is no sink {statement.sink.text!r}"
                f"{suggestion(statement.sink.text, known) or '; CREATE SINK makes one'}",
                statement.sink.place,
            )
        if entry.relation is not None:
            raise text.error(
                f"{entry.name} gets rows already; use UNION ALL in one query, or another sink",
                statement.sink.place,
            )
        return self._fill(statement.sink, lambda: self._query(text, statement.query))

    def _fill(self, name: ask.Name, query: Callable[[], Relation]) -> Answer:
        entry = self.catalog.entries[name.text.lower()]

        def make() -> Relation:
            relation = query()
            relation.stream.sink(self._sinks[name.text.lower()], name=entry.name)
            return relation

        relation, made = self._making(make)
        assert relation is not None
        self._remember("sink", entry.name, relation, made)
        return Answer(relation.stream)

    # -- looking --------------------------------------------------------------------------------

    def _relation(self, text: Text, name: ask.Name) -> Relation:
        found = self.catalog.find(name.text)
        if found is None:
            known = self.catalog.names()
            near = suggestion(name.text, known) or f"; there are {', '.join(known) or 'none'}"
            raise text.error(f"there is no stream or view {name.text!r}{near}", name.place)
        return found

    def _stream(self, text: Text, name: ask.Name) -> Stream:
        return self._relation(text, name).stream

    def _show(self, what: str) -> str:
        if what == "FUNCTIONS":
            return "\n".join(f"{n}: {type_name(f.type)}" for n, f in sorted(self.functions.items()))
        kinds = {"STREAMS": "stream", "VIEWS": "view", "SINKS": "sink"}
        entries = self.catalog.entries.values()
        if what in kinds:
            return "\n".join(one.name for one in entries if one.kind == kinds[what])
        told = {one.name: one.kind for one in entries if one.kind != "sink"}
        rest = [one for one in self.catalog.names() if one not in told and self._is_own(one)]
        told |= dict.fromkeys(rest, "stream of Python")
        return "\n".join(f"{name}: {kind}" for name, kind in told.items())

    def _is_own(self, name: str) -> bool:
        """A source, or a step that was given a name; not one that a statement made on its way."""
        made = {step for one in self.catalog.entries.values() for step in one.made}
        return any(
            (isinstance(one, nodes.Source) or self.flow.is_named(one)) and one not in made
            for one in self.flow.nodes
            if one.name == name
        )

    def _describe(self, text: Text, name: ask.Name) -> str:
        relation = self._relation(text, name)
        lines = [
            f"{one.name}: {'unknown' if one.type is None else type_name(one.type)}"
            + (" (event time)" if one.physical == relation.time else "")
            for one in relation.columns
        ]
        return "\n".join(lines or ["columns are not known before records come"])

    def _explain(self, text: Text, statement: ask.Explain) -> str:
        from millstream.plan.explain import explain

        if statement.name is not None:
            graph = upstream(self._stream(text, statement.name))
            return explain(self.flow.name, graph, None)
        assert statement.query is not None
        with self.flow.attempt(keep=False):
            graph = upstream(self._query(text, statement.query).stream)
            return explain(self.flow.name, graph, None)

    # -- taking away ----------------------------------------------------------------------------

    def _drop(self, text: Text, statement: ask.Drop) -> Answer:
        name = statement.name.text
        entry = self.catalog.entries.get(name.lower())
        if entry is None or entry.kind != statement.kind.lower():
            if statement.unless and entry is None:
                return Answer()
            known = [
                o.name for o in self.catalog.entries.values() if o.kind == statement.kind.lower()
            ]
            raise text.error(
                f"SQL made no {statement.kind.lower()} {name!r}{suggestion(name, known)}",
                statement.name.place,
            )
        made = set(entry.made)
        users = [
            one.name for one in self.flow.nodes if one not in made and made.intersection(one.inputs)
        ]
        if users:
            raise self._used(text, statement.name, users[0])
        self.flow.remove(entry.made)
        del self.catalog.entries[name.lower()]
        self._sinks.pop(name.lower(), None)
        return Answer()

    def _used(self, text: Text, name: ask.Name, user: str) -> SqlError:
        owner = next(
            (
                one.name
                for one in self.catalog.entries.values()
                if any(step.name == user for step in one.made)
            ),
            user,
        )
        return text.error(f"{owner!r} uses {name.text!r}; drop that first", name.place)
