"""The graph: what a flow means. Frozen nodes that point to their inputs; nothing here runs.

Nodes compare by identity, because two equal maps at two places are two nodes. Descriptions of
sources, sinks, windows and aggregates are held as they are; the planner turns them into stages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from millstream.ops.emitting.firing import FINAL, Emission
from millstream.ops.expressions import Expression
from millstream.ops.overload import Overload
from millstream.ops.times.spans import Span
from millstream.ops.updates.job import UpdateJob


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """Any step of a flow; `name` is unique in it."""

    name: str
    inputs: tuple[Node, ...] = ()

    @property
    def kind(self) -> str:
        """What the plan calls it."""
        return type(self).__name__.lower()

    def mentions(self) -> Collection[str]:
        """Columns it names itself, so that they are no expressions."""
        return ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """Records enter here."""

    spec: Any

    def mentions(self) -> Collection[str]:
        """Those of a schema that was given as one."""
        schema = getattr(self.spec, "schema", None)
        return schema.names if isinstance(schema, pa.Schema) else ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Select(Node):
    """Columns computed by SQL expressions."""

    items: tuple[Expression, ...]

    def mentions(self) -> Collection[str]:
        """Its expressions."""
        return [one.name for one in self.items]


@dataclass(frozen=True, eq=False, kw_only=True)
class Where(Node):
    """Records for which a SQL condition is true."""

    condition: Expression


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Node):
    """A Python function per record."""

    fn: Callable[[dict[str, Any]], Any]
    schema: pa.Schema | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Node):
    """A Python function per event that may publish, and may give records times of their own."""

    fn: Callable[..., Any]
    keys: tuple[str, ...] = ()
    null_keys: str = "dead"
    behind: int = 0  # how far before its event a record may lie, in microseconds
    publishes: tuple[str, ...] | None = None  # None: found by looking at the code
    schema: pa.Schema | None = None

    def mentions(self) -> Collection[str]:
        """Its key."""
        return self.keys


@dataclass(frozen=True, eq=False, kw_only=True)
class At(Node):
    """Records get the event time that an expression or a function says."""

    expr: Expression | None = None
    fn: Callable[[dict[str, Any]], Any] | None = None
    behind: int = 0  # how far before the old time the new one may lie, in microseconds
    unit: str = "s"  # of numbers
    zone: str | None = None  # of times without an offset
    format: str | None = None  # of texts that are not ISO-8601


@dataclass(frozen=True, eq=False, kw_only=True)
class MapBatches(Node):
    """A Python function per Arrow table."""

    fn: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs(Node):
    """The map side of a MapReduce job: records to packed (key, value) pairs."""

    job: Any
    keys: tuple[str, ...]
    null_keys: str = "dead"
    span: Span | None = None  # of the windows after it; None: they follow from the records

    def mentions(self) -> Collection[str]:
        """Its key."""
        return self.keys


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """Several streams as one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Keyed(Node):
    """A step with state by key; some operator runs it."""

    takes_events: ClassVar[bool] = False  # changes come to it as events, with the mark `op`
    in_order: bool = False  # sorted output: ranges of keys, one after the other

    @property
    def gives_changes(self) -> bool:
        """Whether it may take back what it gave, also if its input does not."""
        return False

    def output_watermark(self, at: int) -> int | None:
        """Where time stands behind it when it stands at `at` before it; None: at the same time."""
        return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Windowed(Keyed):
    """Aggregates or a reduce over windows."""

    keys: tuple[str, ...]
    window: Any
    aggs: tuple[tuple[str, Any], ...] = ()
    reducer: Callable[..., Any] | None = None
    job: Any = None
    null_keys: str = "dead"
    emission: Emission = FINAL
    partition: Callable[[Any], int] | None = None  # which shard a key belongs to; None: by hash
    policy: Any = None  # when a window leaves that is not complete; None: never
    fidelity: bool = False  # results say how much of their input they stand on

    def mentions(self) -> Collection[str]:
        """Its key and its aggregates."""
        return (*self.keys, *(name for name, _ in self.aggs))

    def output_watermark(self, at: int) -> int:
        """Results have the end of their window as their time."""
        watermark: int = self.window.span.output_watermark(at)
        return watermark


@dataclass(frozen=True, eq=False, kw_only=True)
class Update(Keyed):
    """One slate per key, changed by a function per event."""

    takes_events: ClassVar[bool] = True
    keys: tuple[tuple[str, ...], ...]  # per input
    null_keys: tuple[str, ...]  # likewise
    job: UpdateJob
    publishes: tuple[str, ...] | None = None  # None: found by looking at the code


@dataclass(frozen=True, eq=False, kw_only=True)
class Published(Node):
    """A stream that updaters publish to, or that gets what an overload policy diverts."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Late(Node):
    """Records that came too late for a keyed operator."""

    of: Keyed


@dataclass(frozen=True, eq=False, kw_only=True)
class Sink(Node):
    """Results leave here."""

    spec: Any


def diverts_to(node: Node) -> str | None:
    """The stream that gets what is too much for a step."""
    policy: Overload | None = None
    match node:
        case Source():
            policy = node.spec.overload
        case Update():
            policy = node.job.overload
    return None if policy is None else policy.stream


def over(node: Node, made: Mapping[Node, Node], **changed: Any) -> Node:
    """A step over what was made of the steps it refers to; itself, if nothing is other."""
    fields: dict[str, Any] = {"inputs": tuple(made[one] for one in node.inputs)}
    if isinstance(node, Late):
        fields["of"] = made[node.of]
    if not changed and all(getattr(node, name) == value for name, value in fields.items()):
        return node
    return replace(node, **fields, **changed)
