"""Records pushed through the graph, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millstream.api.windows import WindowSpec
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.expressions import Expression
from millstream.testing.reference.records import (
    Record,
    Row,
    event_time,
    filled,
)
from millstream.testing.reference.steps import mapped_batch, rows_of
from millstream.testing.reference.windows import KINDS, results, windows_of


@dataclass
class Run:
    """Records pushed through the graph, step by step."""

    graph: tuple[nodes.Node, ...]
    can_be_late: bool
    arrived: dict[nodes.Node, list[Record]] = field(default_factory=dict)
    watermark: dict[nodes.Node, float] = field(default_factory=dict)  # at the start of the batch
    latest: dict[nodes.Node, int] = field(default_factory=dict)
    read: dict[nodes.Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph:
            self.arrived[node] = []
            self.watermark[node] = -math.inf
        self.origins = [n for n in self.graph if isinstance(n, nodes.Source | nodes.Windowed)]

    def batch(self, given: Mapping[str, list[Row]]) -> None:
        """Take in some records of some sources, then move the watermarks."""
        sources = {n.name: n for n in self.graph if isinstance(n, nodes.Source)}
        for name in given:
            if name not in sources:
                raise ConfigError(f"there is no source {name!r}; this flow has: {list(sources)}")
        for name, source in sources.items():
            self.push(source, self._records(source, given.get(name, [])))
        for node in self.graph:
            self.watermark[node] = self._watermark(node)

    def finish(self) -> None:
        """The end of all input: every window leaves, those that feed others first."""
        self.can_be_late = False  # a result is never late: what waits for it waits for its window
        for node in self.graph:
            if isinstance(node, nodes.Windowed):
                number, ended = self.origins.index(node), self._furthest(node.inputs[0])
                self.push(node, results(node, self.arrived[node], number, ended))

    # -- sources and watermarks -------------------------------------------------------------------

    def _records(self, node: nodes.Source, rows: list[Row]) -> list[Record]:
        spec, out = node.spec, []
        for row in filled(rows):
            position = self.read.get(node, 0)
            self.read[node] = position + 1
            ts = event_time(row.get(spec.time), spec.time_unit, spec.zone) if spec.time else 0
            if ts is not None:
                self.latest[node] = max(ts, self.latest.get(node, ts))
                out.append(Record(ts, self.origins.index(node), position, row))
        return out

    def _watermark(self, node: nodes.Node) -> float:
        """The time before which nothing more comes out of a step."""
        if isinstance(node, nodes.Source):
            lateness: int | None = node.spec.lateness_micros()
            if lateness is None or node not in self.latest:
                return -math.inf
            return self.latest[node] - lateness
        lowest = min(self.watermark[one] for one in node.inputs)
        if isinstance(node, nodes.Windowed):
            return self._next_result(node.window, lowest)
        return lowest

    def _next_result(self, window: WindowSpec, watermark: float) -> float:
        """The time of the earliest result that is still to come."""
        size, slide = window.span.size, window.span.slide
        if math.isinf(watermark) or not slide:
            return -math.inf
        start = (int(watermark) - size) // slide * slide  # the last window that has closed
        return start + slide + size - 1

    def _furthest(self, node: nodes.Node) -> float:
        """What the watermark after a step comes to if nothing is out of order and none holds it."""
        if isinstance(node, nodes.Source):
            return self.latest.get(node, -math.inf)
        furthest = max(self._furthest(one) for one in node.inputs)
        if isinstance(node, nodes.Windowed):
            return self._next_result(node.window, furthest)
        return furthest

    # -- steps ------------------------------------------------------------------------------------

    def push(self, node: nodes.Node, records: list[Record]) -> None:
        """Give records to every step after this one."""
        for consumer in self.graph:
            if node in consumer.inputs and not isinstance(consumer, nodes.Late) and records:
                self._step(consumer, records)

    def _step(self, node: nodes.Node, records: list[Record]) -> None:
        match node:
            case nodes.Sink():
                self.arrived[node] += records
            case nodes.Windowed():
                self._arrive(node, records)
            case nodes.Union():
                self.push(node, records)
            case nodes.MapBatches():
                self.push(node, mapped_batch(node, records))
            case _:
                names = {name for one in records for name in one.row}
                rows = [(one, rows_of(node, one, names)) for one in records]
                flat = [(one, row) for one, several in rows for row in several]
                full = filled([row for _, row in flat])
                self.push(
                    node,
                    [
                        Record(one.ts, one.source, one.position, row)
                        for (one, _), row in zip(flat, full, strict=True)
                    ],
                )

    def _arrive(self, node: nodes.Windowed, records: list[Record]) -> None:
        if not node.window.span.whole and any(
            source.spec.time is None for source in sources_of(node)
        ):
            raise ConfigError(f"{node.name}: reference() needs a source with a time column")
        closed = self.watermark[node.inputs[0]]
        late = []
        for record in records:
            windows = windows_of(node.window, record.ts)
            if self.can_be_late and windows and all(end <= closed for _, end in windows):
                late.append(record)
            elif self.can_be_late:
                self.arrived[node].append(replace(record, left=closed))
            else:
                self.arrived[node].append(record)
        for other in self.graph:
            if isinstance(other, nodes.Late) and other.of is node and late:
                self.push(other, late)


def check(node: nodes.Node) -> None:
    """Refuse what is not modelled."""
    if isinstance(node, nodes.Windowed):
        kind = node.window.kind
        if kind not in KINDS:
            raise ConfigError(f"{node.name}: reference() does not know {kind} windows")
        if kind == "bytes" and node.job is not None:
            raise ConfigError(
                f"{node.name}: reference() does not know how many bytes a pair of a MapReduce job "
                "has; use agg() or reduce()"
            )
        if any(early for one in node.inputs for early in _marks(one) if early == "revision"):
            raise ConfigError(
                f"{node.name}: reference() does not know what comes of windows over early results"
            )
    expressions: tuple[Expression, ...] = ()
    if isinstance(node, nodes.Where):
        expressions = (node.condition,)
    elif isinstance(node, nodes.Select):
        expressions = node.items
    for expression in expressions:
        named = sorted(_marks(node.inputs[0]) & set(expression.columns))
        if named:
            raise ConfigError(f"{node.name}: reference() does not know the column {named[0]!r}")


def _marks(node: nodes.Node) -> set[str]:
    """The columns that mark results before they are final, of windows right before this step."""
    if isinstance(node, nodes.Windowed):
        return {"early": {"revision"}, "delta": {"op"}}.get(node.emission.mode, set())
    return {mark for one in node.inputs for mark in _marks(one)}


def sources_of(node: nodes.Node) -> list[nodes.Source]:
    if isinstance(node, nodes.Source):
        return [node]
    return [source for one in node.inputs for source in sources_of(one)]
