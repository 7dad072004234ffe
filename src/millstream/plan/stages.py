"""A plan: the graph with everything decided that a task needs to know.

Level 0 reads the input and runs the fused stateless steps; level L >= 1 owns the state of the keyed
operators that are L exchanges away from the sources. A batch is one Spark job whose stages are the
levels. Stateless steps and sinks have no level: they run wherever their records are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from millstream.graph import nodes as graph
from millstream.graph.changing import changes_of, gives_changes, marks_changes
from millstream.io.formats import Format
from millstream.operators.dedup import Dedup
from millstream.operators.protocol import Columns, Input, Inputs, Operator, Types
from millstream.ops.times.progress import BEGIN, END
from millstream.ops.updates.job import UpdateGroup
from millstream.ops.windows.jobs import Family, WindowJob

__all__ = [
    "Plan",
    "changes_of",
    "gives_changes",
    "held_by",
    "marks_changes",
    "timeless_windows",
    "unlike_unions",
    "upstream",
]


@dataclass(frozen=True)
class Plan:
    """How to run a flow. Rules turn an empty plan into a full one, step by step."""

    flow: str
    nodes: tuple[graph.Node, ...]
    formats: dict[str, Format]  # per source: what a task must know to read it
    columns: dict[str, Columns] = field(default_factory=dict)  # None: not known
    types: dict[str, Types] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)  # keyed operators only
    jobs: dict[str, WindowJob] = field(default_factory=dict)
    families: dict[str, Family] = field(default_factory=dict)  # by name
    units: dict[str, int] = field(default_factory=dict)  # pane widths a checkpoint already has
    homes: dict[str, str] = field(default_factory=dict)  # and the families of its operators
    numbers: dict[str, int] = field(default_factory=dict)  # and the numbers of its origins
    publishes: dict[str, frozenset[str]] = field(default_factory=dict)  # updater -> streams
    order: tuple[tuple[str, ...], ...] = ()  # inputs first; the steps of a cycle together
    groups: dict[str, UpdateGroup] = field(default_factory=dict)  # updaters that run together
    operators: dict[str, Operator] = field(default_factory=dict)  # by name

    @property
    def depth(self) -> int:
        """The number of exchanges."""
        return max(map(self.leaving, self.levels), default=0)

    def levels_with_work(self, watermarks: dict[str, int]) -> int:
        """The exchanges that can have anything to do in a batch planned at these watermarks.

        A job over the whole input gives nothing before its end, so nobody behind it has work.
        """
        gives: dict[str, bool] = {}
        deepest = 0
        for members, feeding in self.walk():
            reached = not feeding or any(gives[name] for name in feeding)
            for node in members:
                gives[node.name] = reached and not _waits(node, watermarks)
                if reached and node.name in self.levels:
                    waits = not gives[node.name]
                    level = self.levels[node.name] if waits else self.leaving(node.name)
                    deepest = max(deepest, level)
        return deepest

    def leaving(self, operator: str) -> int:
        """The level where the results of a keyed operator leave: sorted ones go two further."""
        node = self.node(operator)
        ordered = isinstance(node, graph.Keyed) and node.in_order
        return self.levels[operator] + (2 if ordered else 0)

    def node(self, name: str) -> graph.Node:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    def walk(self) -> Iterator[tuple[list[graph.Node], set[str]]]:
        """The steps, inputs first, those of a cycle together; and who else feeds them."""
        for names in self.order:
            members = [self.node(name) for name in names]
            feeding = {one.name for node in members for one in self.feeding(node)}
            yield members, feeding - set(names)

    def sources(self) -> list[graph.Source]:
        """All sources, in the order they were declared: their place is their number."""
        return [node for node in self.nodes if isinstance(node, graph.Source)]

    def windowed(self) -> list[graph.Windowed]:
        """All keyed operators, in the order they were declared."""
        return [node for node in self.nodes if isinstance(node, graph.Windowed)]

    def updaters(self) -> list[graph.Update]:
        """All updaters, in the order they were declared."""
        return [node for node in self.nodes if isinstance(node, graph.Update)]

    def publishers(self) -> list[graph.Update | graph.Process]:
        """What may publish to streams, in the order it was declared."""
        return [node for node in self.nodes if isinstance(node, graph.Update | graph.Process)]

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

    def feeding(self, node: graph.Node) -> list[graph.Node]:
        """The nodes whose records reach this one: its inputs, or who publishes to it."""
        if isinstance(node, graph.Published):
            by = [n for n in self.publishers() if node.name in self.publishes.get(n.name, ())]
            return by + [one for n in self.diverting(node) for one in n.inputs or (n,)]
        return list(node.inputs)

    def diverting(self, stream: graph.Node) -> list[graph.Node]:
        """The steps whose overload policy sends records to a stream; an updater those it gets."""
        return [node for node in self.nodes if graph.diverts_to(node) == stream.name]

    def inputs_of(self, node: graph.Node) -> Inputs:
        """What is known of the inputs of a step."""
        return tuple(
            Input(
                one.name,
                self.columns.get(one.name),
                self.types.get(one.name, {}),
                gives_changes(one),
            )
            for one in node.inputs
        )

    def missing(self, union: graph.Node, one: graph.Node) -> Types:
        """The columns of a union that one of its inputs does not have, where that is known."""
        mine = self.columns.get(one.name)
        others = [self.columns.get(node.name) or () for node in union.inputs if node is not one]
        known = dict.fromkeys(name for names in others for name in names)
        kinds = self.types.get(union.name, {})
        if mine is None:  # found out record by record: what others have must be there
            return {name: kinds.get(name, pa.null()) for name in known}
        return {name: kinds.get(name, pa.null()) for name in known if name not in mine}

    def cycle_of(self, name: str) -> tuple[str, ...]:
        """The steps of the cycle a step is part of, or just its own name."""
        return next(names for names in self.order if name in names)

    def family_of(self, operator: str) -> Family:
        """The family a keyed operator belongs to."""
        return next(f for f in self.families.values() if any(j.name == operator for j in f.jobs))

    def operator_of(self, step: str) -> Operator | None:
        """The operator that runs a step, if it is keyed."""
        return next((one for one in self.operators.values() if step in one.steps), None)

    def owners(self, level: int) -> set[str]:
        """Under which names the operators of a level store their tables."""
        here = (one for one in self.operators.values() if self.level_of(one) == level)
        return {owner for one in here for owner in one.stored()}

    def level_of(self, operator: Operator) -> int:
        """The level where the state of an operator lives."""
        return self.levels[operator.steps[0]]

    def number(self, node: graph.Node) -> int:
        """The number of an origin of records, as it stands in their identity."""
        return self.numbers[node.name]

    def origins(self) -> list[graph.Node]:
        """Where records come from: sources, keyed operators, and streams that are published to."""
        kinds = graph.Source | graph.Keyed | graph.Published | graph.Process
        return [node for node in self.nodes if isinstance(node, kinds)]

    def times(
        self,
        of_sources: dict[str, int | None],
        holds: dict[str, int] | None = None,
        reached: dict[str, int] | None = None,
        left: dict[str, int] | None = None,
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The watermarks at the input and after every keyed operator.

        `holds`: steps that go no further in this batch. The input of an updater may have come
        further: it keeps events that wait for the next one.
        `reached`: where watermarks have been before; none goes back.
        `left`: windows that may be evicted, and the last that has left, complete or not.
        """
        before, gone = reached or {}, left or {}
        out: dict[str, int | None] = {}
        at_input: dict[str, int] = {}
        for members, feeding in self.walk():
            names = [node.name for node in members]
            known = [out[name] for name in feeding]
            lowest = min((at for at in known if at is not None), default=None)
            at = BEGIN if lowest is None else lowest
            at = max([at, *(before[name] for name in names if name in before)])
            waiting = [holds[name] for name in names if holds and name in holds]
            for node in members:
                out[node.name] = lowest if not waiting else min(at, *waiting)
                if isinstance(node, graph.Source):
                    out[node.name] = of_sources[node.name]
                elif isinstance(node, graph.Keyed):
                    mine = at
                    if waiting and not isinstance(node, graph.Update):
                        mine = max(min(at, *waiting), before.get(node.name, BEGIN))
                        out[node.name] = mine
                    moved = node.output_watermark(max(mine, gone.get(node.name, mine)))
                    out[node.name] = out[node.name] if moved is None else moved
                    at_input[node.name] = mine
                elif isinstance(node, graph.Process | graph.At) and lowest is not None:
                    out[node.name] = held_by(node.behind, lowest)
        after = {name: out[name] for name in at_input}
        return at_input, {name: at for name, at in after.items() if at is not None}

    def evicted(self, closed: dict[str, int]) -> dict[str, int]:
        """Of where windows have left, those that may be evicted."""
        may = {name for name, job in self.jobs.items() if job.evicts}
        return {name: at for name, at in closed.items() if name in may}


def held_by(behind: int, watermark: int) -> int:
    """The watermark after a step that may give times so far behind its events."""
    return watermark - behind if BEGIN < watermark < END else watermark


def unlike_unions(plan: Plan) -> list[str]:
    """What is to be said of unions of streams that have other columns."""
    told = []
    for node in plan.nodes:
        for one in node.inputs if isinstance(node, graph.Union) else ():
            missing = plan.missing(node, one) if plan.columns.get(one.name) is not None else {}
            if missing:
                names = ", ".join(map(repr, missing))
                told.append(f"{node.name}: {one.name!r} has no column {names}; null stands there")
    return list(dict.fromkeys(told))


def timeless_windows(plan: Plan) -> list[str]:
    """What is to be said of windows, and of `within`, over stored files that say no time."""
    told = []
    for node in plan.nodes:
        if (what := _goes_by_time(node)) is None:
            continue
        above = upstream(plan, node)
        if any(isinstance(one, graph.At) for one in above):
            continue
        told += [
            f"{node.name}: {one.name!r} has no time=, so {what} the time at which records are "
            "read, another one in every run; give time=, or .at() behind it"
            for one in above
            if isinstance(one, graph.Source)
            and getattr(one.spec, "follow", None) is False
            and one.spec.time is None
        ]
    return told


def _goes_by_time(node: graph.Node) -> str | None:
    """What of a step goes by event time, None if nothing does."""
    if isinstance(node, Dedup) and node.within is not None:
        return "within= goes by"
    if not isinstance(node, graph.Windowed) or node.window.span.whole:
        return None
    return None if node.window.kind in ("count", "bytes") else "its windows are over"


def upstream(plan: Plan, node: graph.Node) -> list[graph.Node]:
    """All nodes whose records can reach a node."""
    found: dict[graph.Node, None] = {}
    waiting = plan.feeding(node)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting.extend(plan.feeding(one))
    return list(found)


def _waits(node: graph.Node, watermarks: dict[str, int]) -> bool:
    """Whether a step gives nothing yet: it is over the whole input, which has not ended."""
    if not isinstance(node, graph.Windowed) or not node.window.span.whole:
        return False
    return node.emission.mode == "final" and watermarks[node.name] < END
