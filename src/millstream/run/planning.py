"""From a flow to its plan: look at the sources, then apply the rules."""

from __future__ import annotations

from pathlib import Path

from millstream.api.flow import Flow
from millstream.graph import nodes as graph
from millstream.io.formats import Format
from millstream.plan.planner import make_plan
from millstream.plan.stages import Plan
from millstream.run.program.program import known_panes
from millstream.run.sources.resolving import resolve_format


def plan_flow(flow: Flow, checkpoint: Path | None = None) -> Plan:
    """Look at the sources and plan; every mistake that can be found without Spark is found."""
    return make_plan(flow.name, flow.nodes, formats_of(flow), *known_panes(checkpoint))


def formats_of(flow: Flow) -> dict[str, Format]:
    """What the records of every source look like."""
    return {
        node.name: resolve_format(node.name, node.spec)
        for node in flow.nodes
        if isinstance(node, graph.Source)
    }
