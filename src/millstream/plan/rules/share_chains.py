"""Run equal chains of stateless steps once: the same function over the same stream is one step."""

from __future__ import annotations

from dataclasses import replace

from millstream.api.programs import Program
from millstream.graph import nodes
from millstream.plan.stages import Plan


def share_chains(plan: Plan) -> Plan:
    """Merge stateless nodes that do the same to the same input; the first one stays."""
    kept: dict[nodes.Node, nodes.Node] = {}  # node as written -> node that stands for it
    first: dict[tuple[object, ...], nodes.Node] = {}
    made: list[nodes.Node] = []
    for node in plan.nodes:
        inputs = tuple(kept[one] for one in node.inputs)
        same = _same(node, inputs)
        if same is not None and same in first:
            kept[node] = first[same]
            continue
        mine = nodes.over(node, kept)
        kept[node] = mine
        made.append(mine)
        if same is not None:
            first[same] = mine
    return replace(plan, nodes=tuple(made))


def _same(node: nodes.Node, inputs: tuple[nodes.Node, ...]) -> tuple[object, ...] | None:
    """What makes two steps the same; None if a step is never shared (sources, state, sinks)."""
    match node:
        case nodes.Where():
            return ("where", inputs, node.condition.sql)
        case nodes.Select():
            return ("select", inputs, tuple((item.sql, item.name) for item in node.items))
        case nodes.Map():
            return ("map", inputs, node.fn, str(node.schema))
        case nodes.MapBatches():
            return ("map_batches", inputs, node.fn)
        case nodes.Pairs():
            closes = isinstance(node.job, Program) and node.job.can("close")
            same = node.job.same if isinstance(node.job, Program) else id(node.job)
            return ("pairs", inputs, same, node.keys, node.span if closes else None)
        case nodes.Union():
            return ("union", inputs)
        case _:
            return None
