"""What SQL finds by name: views and streams of this flow, those made in Python among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.api.sources import Collector, Files, Generator, HostStats, Lines, Rate
from millstream.api.sources.kafka import Kafka
from millstream.api.stream import Stream
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.io.formats import DEBEZIUM, Format, parse_schema, with_operation
from millstream.operators.view import Kept
from millstream.ops.sql.expression import Expression
from millstream.ops.sql.nodes import Column as Named
from millstream.plan.rules.resolve_columns import resolve_columns
from millstream.plan.stages import Plan
from millstream.sql.relations import Column, Relation

if TYPE_CHECKING:
    from millstream.api.flow import Flow


@dataclass(frozen=True)
class Entry:
    """Something that a statement made."""

    kind: str  # "stream", "view" or "sink"
    name: str
    relation: Relation | None  # None: a sink that nothing goes to yet
    made: tuple[nodes.Node, ...]  # the steps it is made of


@dataclass
class Catalog:
    """The names of one flow."""

    flow: Flow
    entries: dict[str, Entry] = field(default_factory=dict)  # by the name in lower case

    def find(self, name: str) -> Relation | None:
        """The stream or view of a name: as it is written, or the only one that differs by case."""
        entry = self.entries.get(name.lower())
        if entry is not None and entry.kind != "sink":
            return entry.relation
        node = self._node(name)
        return None if node is None else relation_of(Stream(self.flow, node))

    def _node(self, name: str) -> nodes.Node | None:
        streams = list(self._streams())
        exact = [one for one in streams if one.name == name]
        alike = exact or [one for one in streams if one.name.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def _streams(self) -> Iterator[nodes.Node]:
        return (one for one in self.flow.nodes if not isinstance(one, nodes.Sink | Kept))

    def names(self) -> list[str]:
        """All streams and views that somebody gave a name."""
        made = [one.name for one in self.entries.values() if one.kind != "sink"]
        own = (
            one.name
            for one in self._streams()
            if isinstance(one, nodes.Source) or self.flow.is_named(one)
        )
        return list(dict.fromkeys([*made, *own]))


def relation_of(stream: Stream) -> Relation:
    """A stream of Python as a table: its columns as far as they are known without running it."""
    graph = upstream(stream)
    formats = {one.name: _format(one.spec) for one in graph if isinstance(one, nodes.Source)}
    order = tuple((one.name,) for one in graph)
    try:
        plan = resolve_columns(Plan(stream.flow.name, graph, formats, order=order))
    except ConfigError:
        return Relation(stream, (), open=True)  # its own mistake, told when the flow is planned
    names = plan.columns.get(stream.name)
    if not names:
        return Relation(stream, (), open=True)
    types = plan.types.get(stream.name, {})
    columns = tuple(Column(one, one, types.get(one)) for one in names)
    time = _time(stream.node)
    return Relation(stream, columns, time=time if time in names else None)


def upstream(stream: Stream) -> tuple[nodes.Node, ...]:
    """The steps that lead to a stream, in order."""
    wanted, waiting = set(), [stream.node]
    while waiting:
        node = waiting.pop()
        if node not in wanted:
            wanted.add(node)
            waiting.extend(node.inputs)
    return tuple(one for one in stream.flow.nodes if one in wanted)


def _format(spec: object) -> Format:
    """The columns of a source, as far as the program says them, or its files show them."""
    if isinstance(spec, Collector):
        spec = spec.reads
    schema = getattr(spec, "schema", None)
    time = getattr(spec, "time", None)
    if isinstance(spec, Rate):
        return Format("json", parse_schema("ts timestamp, value bigint"), "ts")
    if isinstance(spec, Files | Lines | Generator | HostStats) and schema is not None:
        columns = parse_schema(schema)
        if getattr(spec, "format", None) == DEBEZIUM:
            columns = with_operation(columns)
        return Format("json", columns, time)
    if isinstance(spec, Files | Lines) and spec.format == "text":
        return Format("text", parse_schema("value string"), time)
    if isinstance(spec, Files | Kafka):
        from millstream.run.sources.resolving import (
            resolve_format,  # looks at files, as the plan will
        )

        with suppress(ConfigError):  # there may be none yet
            return resolve_format("", spec)
    return Format("json", pa.schema([]), time)


def _time(node: nodes.Node) -> str | None:
    """The column that has the event time behind a step; None if none has it for sure."""
    match node:
        case nodes.Source():
            time: str | None = node.spec.time
            return time
        case nodes.Windowed():
            return None if node.window.span.whole else "window_end"
        case nodes.Where() | nodes.Keyed():
            return _time(node.inputs[0]) if node.inputs else None
        case nodes.At(expr=Expression(node=Named(name=name))):
            return name
        case nodes.Union():
            several = {_time(one) for one in node.inputs}
            return several.pop() if len(several) == 1 else None
        case nodes.Select():
            before = _time(node.inputs[0])
            plain = [one.name for one in node.items if one.sql.strip() in (before, "*")]
            return before if before is not None and (before in plain or "*" in plain) else None
    return None
