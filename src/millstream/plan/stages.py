"""A plan: the graph with everything decided that a task needs to know.

Level 0 reads the input and runs the fused stateless steps; level L >= 1 owns the state of the keyed
operators that are L exchanges away from the sources. A batch is one Spark job whose stages are the
levels. Stateless steps and sinks have no level: they run wherever their records are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from millstream.graph import nodes as graph
from millstream.io.formats import Format
from millstream.ops.jobs import Family, WindowJob
from millstream.ops.progress import BEGIN


@dataclass(frozen=True)
class Plan:
    """How to run a flow. Rules turn an empty plan into a full one, step by step."""

    flow: str
    nodes: tuple[graph.Node, ...]
    formats: dict[str, Format]  # per source: what a task must know to read it
    columns: dict[str, tuple[str, ...] | None] = field(default_factory=dict)  # None: not known
    types: dict[str, dict[str, pa.DataType]] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)  # keyed operators only
    jobs: dict[str, WindowJob] = field(default_factory=dict)
    families: dict[str, Family] = field(default_factory=dict)  # by name
    units: dict[str, int] = field(default_factory=dict)  # pane widths a checkpoint already has
    homes: dict[str, str] = field(default_factory=dict)  # and the families of its operators

    @property
    def depth(self) -> int:
        """The number of exchanges."""
        return max(self.levels.values(), default=0)

    def node(self, name: str) -> graph.Node:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    def sources(self) -> list[graph.Source]:
        """All sources, in the order they were declared: their place is their number."""
        return [node for node in self.nodes if isinstance(node, graph.Source)]

    def windowed(self) -> list[graph.Windowed]:
        """All keyed operators, in the order they were declared."""
        return [node for node in self.nodes if isinstance(node, graph.Windowed)]

    def sinks(self) -> list[graph.Sink]:
        """All sinks."""
        return [node for node in self.nodes if isinstance(node, graph.Sink)]

    def consumers(self, node: graph.Node) -> list[graph.Node]:
        """The nodes that take the records of this one. `Late` taps its window, not its input."""
        return [
            other
            for other in self.nodes
            if node in other.inputs and not isinstance(other, graph.Late)
        ]

    def family_of(self, operator: str) -> Family:
        """The family a keyed operator belongs to."""
        return next(f for f in self.families.values() if any(j.name == operator for j in f.jobs))

    def family_level(self, family: Family) -> int:
        """The level where the state of a family lives."""
        return self.levels[family.jobs[0].name]

    def number(self, node: graph.Node) -> int:
        """The number of a source or keyed operator, as it stands in the identity of records."""
        origins: list[graph.Node] = [
            n for n in self.nodes if isinstance(n, graph.Source | graph.Windowed)
        ]
        return origins.index(node)

    def watermarks(self, of_sources: dict[str, int | None]) -> dict[str, int]:
        """The watermark at the input of every keyed operator."""
        out: dict[graph.Node, int | None] = {}
        at_input: dict[str, int] = {}
        for node in self.nodes:
            if isinstance(node, graph.Source):
                out[node] = of_sources[node.name]
                continue
            holding = [out[i] for i in node.inputs if out[i] is not None]
            lowest = min((at for at in holding if at is not None), default=None)
            if isinstance(node, graph.Windowed):
                at_input[node.name] = BEGIN if lowest is None else lowest
                lowest = node.window.span.output_watermark(at_input[node.name])
            out[node] = lowest
        return at_input

    def furthest(self, latest: dict[str, int]) -> dict[str, int]:
        """A time at the input of every keyed operator that no watermark passed before the end.

        It follows from the latest times of the sources, not from how their input was cut.
        """
        out: dict[graph.Node, int] = {}
        at_input: dict[str, int] = {}
        for node in self.nodes:
            if isinstance(node, graph.Source):
                out[node] = latest.get(node.name, BEGIN)
                continue
            out[node] = max((out[one] for one in node.inputs), default=BEGIN)
            if isinstance(node, graph.Windowed):
                at_input[node.name] = out[node]
                out[node] = node.window.span.output_watermark(out[node])
        return at_input


def upstream_sources(plan: Plan, node: graph.Node) -> list[graph.Source]:
    """All sources whose records can reach a node."""
    if isinstance(node, graph.Source):
        return [node]
    found: dict[graph.Source, None] = {}
    for one in node.inputs:
        found.update(dict.fromkeys(upstream_sources(plan, one)))
    return list(found)
