"""The planner: a visible tuple of rules, each a function from a plan to a better one."""

from __future__ import annotations

from collections.abc import Callable

from millstream.graph import nodes
from millstream.io.formats import Format
from millstream.plan.rules.assign_levels import assign_levels
from millstream.plan.rules.build_jobs import build_jobs
from millstream.plan.rules.build_operators import build_operators
from millstream.plan.rules.check_flow import check_flow
from millstream.plan.rules.know_keys import know_keys
from millstream.plan.rules.link_streams import link_streams
from millstream.plan.rules.prune_columns import prune_columns
from millstream.plan.rules.push_predicates import push_predicates
from millstream.plan.rules.resolve_columns import resolve_columns
from millstream.plan.rules.share_chains import share_chains
from millstream.plan.rules.share_panes import share_panes
from millstream.plan.stages import Plan

RULES: tuple[Callable[[Plan], Plan], ...] = (
    share_chains,
    push_predicates,
    link_streams,
    check_flow,
    resolve_columns,
    prune_columns,
    know_keys,
    assign_levels,
    build_jobs,
    share_panes,
    build_operators,
)


# What can be decided without looking at the sources.
SKETCH = (
    share_chains,
    push_predicates,
    link_streams,
    assign_levels,
    build_jobs,
    share_panes,
    build_operators,
)


def sketch(flow: str, graph: tuple[nodes.Node, ...]) -> Plan:
    """The plan of a flow as far as it does not depend on what its sources hold."""
    plan = Plan(flow, graph, {})
    for rule in SKETCH:
        plan = rule(plan)
    return plan


def make_plan(
    flow: str,
    graph: tuple[nodes.Node, ...],
    formats: dict[str, Format],
    units: dict[str, int] | None = None,
    homes: dict[str, str] | None = None,
    numbers: dict[str, int] | None = None,
) -> Plan:
    """The plan of a flow whose sources have been looked at.

    `units` are the pane widths of families that a checkpoint already holds, `homes` the families of
    its operators, `numbers` those of its origins: all stay, whatever comes before them now.
    """
    plan = Plan(flow, graph, formats, units=units or {}, homes=homes or {}, numbers=numbers or {})
    for rule in RULES:
        plan = rule(plan)
    return plan
