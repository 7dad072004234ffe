"""The plan as text: stages, steps with their inputs by name, strategies and why.

Readable, diffable, and the golden format of the tests. It needs no source to exist: everything it
says follows from the graph.
"""

from __future__ import annotations

from typing import Any

from millstream.graph import nodes
from millstream.graph.durations import text
from millstream.ops.jobs import Family, WindowJob
from millstream.plan.planner import sketch
from millstream.plan.stages import Plan


def explain(flow: str, graph: tuple[nodes.Node, ...]) -> str:
    """What `Flow.explain()` and `millstream plan` print."""
    plan = sketch(flow, graph)
    place = _places(plan)
    lines = [f"flow {flow}"]
    for level in range(plan.depth + 1):
        title = "read, fused stateless steps, map-side combine"
        if level:
            title = f"state of keyed operators, {level} exchange(s) from the source"
        lines.append(f"stage {level}: {title}")
        for node in plan.nodes:
            if place[node] != level:
                continue
            if isinstance(node, nodes.Windowed):
                family = plan.family_of(node.name)
                if family.jobs[0].name == node.name:
                    lines.extend(f"  {line}" for line in _family(plan, family))
            else:
                lines.extend(f"  {line}" for line in _describe(node))
    return "\n".join(lines)


def _places(plan: Plan) -> dict[nodes.Node, int]:
    place: dict[nodes.Node, int] = {}
    for node in plan.nodes:
        above = max((place[one] for one in node.inputs), default=0)
        place[node] = plan.levels.get(node.name, above)
    return place


def _family(plan: Plan, family: Family) -> list[str]:
    """The operators of a family; what they share is said first."""
    members = [node for job in family.jobs for node in plan.windowed() if node.name == job.name]
    if len(members) == 1:
        return _windowed(members[0], family.jobs[0])
    names = ", ".join(node.name for node in members)
    states = ", ".join(m.state for m in family.measures) or "kept values"
    lines = [
        f"panes of {text(family.span.pane)} by {_keys(members[0])} <- {_feeds(members[0])}: "
        f"computed once, shared by {names}",
        f"  each pane holds: {states}",
    ]
    for node, job in zip(members, family.jobs, strict=True):
        lines.extend(f"  {line}" for line in _windowed(node, job))
    return lines


def _feeds(node: nodes.Node) -> str:
    return ", ".join(one.name for one in node.inputs)


def _keys(node: nodes.Windowed) -> str:
    return ", ".join(node.keys) or "everything"


def _describe(node: nodes.Node) -> list[str]:
    feeds = ", ".join(one.name for one in node.inputs)
    head = f"{node.name} = "
    match node:
        case nodes.Source():
            return [head + _source(node.spec)]
        case nodes.Select():
            return [head + f"select {', '.join(item.sql for item in node.items)} <- {feeds}"]
        case nodes.Where():
            return [head + f"where {node.condition.sql} <- {feeds}"]
        case nodes.Map():
            return [head + f"map {_function(node.fn)} <- {feeds}"]
        case nodes.MapBatches():
            return [head + f"map_batches {_function(node.fn)} <- {feeds}"]
        case nodes.Pairs():
            return [head + f"map of {type(node.job).__name__} <- {feeds}"]
        case nodes.Late():
            return [head + f"late for {node.of.name} <- {feeds}"]
        case nodes.Sink():
            return [head + f"sink {_sink(node.spec)} <- {feeds}"]
        case _:
            return [head + f"{node.kind} <- {feeds}"]


def _windowed(node: nodes.Windowed, job: WindowJob) -> list[str]:
    lines = [f"{node.name} = key by {_keys(node)}, window {node.window} <- {_feeds(node)}"]
    lines.extend(f"  {line}" for line in _how_windows(job))
    if node.job is not None:
        if node.job.can("combine"):
            lines.append("  two stacks: one value per key and pane, because it has combine")
        else:
            lines.append("  kept values: all are handed to reduce, because it has no combine")
    elif node.reducer is not None:
        lines.append(f"  kept values: reduce {_function(node.reducer)} gets records in order")
    for name, agg in node.aggs:
        lines.append(f"  {name} = {agg}: {agg.strategy}, {_WHY[agg.strategy]}")
    return lines


def _how_windows(job: WindowJob) -> list[str]:
    span = job.span
    if span.whole:
        return []
    match job.kind:
        case "landmark":
            return [f"panes of {text(span.pane)}, added to one total per key"]
        case "session":
            return ["pieces of sessions, joined when they meet"]
        case "rows" | "bytes":
            unit = "row" if job.kind == "rows" else "byte"
            return [f"numbered per key once the watermark has passed, {unit} by {unit}"]
        case _:
            return [f"panes of {text(span.pane)}, {span.panes} a window, {span.step} a slide"]


_WHY = {
    "blocks": "one combine per result however many panes",
    "two stacks": "one or two combines per result, because it has combine",
    "kept values": "all values of a window are needed",
}


def _source(spec: Any) -> str:
    kind = type(spec).__name__
    where = getattr(spec, "path", None) or getattr(spec, "host", None) or ""
    parts = [str(where)] if where else []
    if getattr(spec, "port", None):
        parts[-1] += f":{spec.port}"
    if getattr(spec, "follow", False):
        parts.append("follow")
    parts.append(f"time {spec.time or 'of arrival'}")
    late = spec.lateness_micros()
    parts.append("complete" if late is None else f"lateness {text(late)}")
    return f"{kind}({', '.join(parts)})"


def _sink(spec: Any) -> str:
    path = getattr(spec, "path", None)
    if path is not None:
        return f"{type(spec).__name__}({path})"
    fn = getattr(spec, "fn", None)
    return f"{type(spec).__name__}({_function(fn) if fn else ''})"


def _function(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__).replace("<locals>.", "")
