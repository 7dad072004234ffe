"""Cut the graph at key exchanges: every keyed operator one level below those that feed it."""

from __future__ import annotations

from dataclasses import replace

from millstream.graph import nodes
from millstream.plan.stages import Plan


def assign_levels(plan: Plan) -> Plan:
    """The level of each keyed operator: 1 + the deepest keyed operator above it."""
    reached: dict[str, int] = {}
    levels: dict[str, int] = {}
    for members, feeding in plan.walk():
        above = max((reached[name] for name in feeding), default=0)
        keyed = [n.name for n in members if isinstance(n, nodes.Keyed)]
        if keyed:
            above += 1
            levels.update(dict.fromkeys(keyed, above))
            if any(isinstance(n, nodes.Keyed) and n.in_order for n in members):
                above += 2  # their results are parted into ranges, and sorted there
        reached.update({node.name: above for node in members})
    return replace(plan, levels=levels)
