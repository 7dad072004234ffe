"""The graph as text: one line a step, inputs by name; readable, diffable, the golden format."""

from __future__ import annotations

from typing import Any

from millstream.graph import nodes
from millstream.graph.durations import text


def format_graph(flow: str, graph: tuple[nodes.Node, ...]) -> str:
    """What `explain()` and `millstream plan` print."""
    levels = _levels(graph)
    deepest = max(levels.values(), default=0)
    lines = [f"flow {flow}"]
    for level in range(deepest + 1):
        title = "read, fused stateless steps, map-side combine"
        if level:
            title = f"state of keyed operators, {level} exchange(s) from the source"
        lines.append(f"stage {level}: {title}")
        for node in graph:
            if levels[node] == level:
                lines.extend(f"  {line}" for line in _describe(node))
    return "\n".join(lines)


def _levels(graph: tuple[nodes.Node, ...]) -> dict[nodes.Node, int]:
    levels: dict[nodes.Node, int] = {}
    for node in graph:
        above = max((levels[one] for one in node.inputs), default=0)
        levels[node] = above + 1 if isinstance(node, nodes.Windowed) else above
    return levels


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
        case nodes.Windowed():
            return _windowed(node, head, feeds)
        case _:
            return [head + f"{node.kind} <- {feeds}"]


def _windowed(node: nodes.Windowed, head: str, feeds: str) -> list[str]:
    keys = ", ".join(node.keys) or "everything"
    lines = [head + f"key by {keys}, window {node.window} <- {feeds}"]
    span = node.window.span
    if not span.whole:
        lines.append(f"  panes of {text(span.pane)}, {span.panes} a window, {span.step} a slide")
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
