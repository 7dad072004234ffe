"""Cut the graph at key exchanges: every keyed operator one level below those that feed it."""

from __future__ import annotations

from dataclasses import replace

from millstream.graph import nodes
from millstream.plan.stages import Plan


def assign_levels(plan: Plan) -> Plan:
    """The level of each keyed operator: 1 + the deepest keyed operator above it."""
    reached: dict[nodes.Node, int] = {}
    levels: dict[str, int] = {}
    for node in plan.nodes:
        above = max((reached[one] for one in node.inputs), default=0)
        if isinstance(node, nodes.Windowed):
            above += 1
            levels[node.name] = above
        reached[node] = above
    return replace(plan, levels=levels)
