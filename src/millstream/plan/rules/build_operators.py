"""Turn families of windows and groups of updaters into operators, which tasks and driver run."""

from __future__ import annotations

from dataclasses import replace

from millstream.graph import nodes
from millstream.operators.protocol import KeyedStep, Operator
from millstream.operators.updates.group import Updates
from millstream.operators.updates.work import Origins
from millstream.operators.windows.family import Windows
from millstream.plan.stages import Plan


def can_go_on(plan: Plan, node: nodes.Node) -> bool:
    """Whether results over the whole input may change later: only sinks can follow that."""
    if isinstance(node, nodes.Keyed) and node.in_order:
        return False
    after = plan.consumers(node)
    if any(isinstance(one, nodes.Keyed) or plan.publishes.get(one.name) for one in after):
        return False
    return all(can_go_on(plan, one) for one in after)


def build_operators(plan: Plan) -> Plan:
    """Give origins of records that are new the next numbers, then make every operator."""
    numbers = dict(plan.numbers)
    for node in plan.origins():
        numbers.setdefault(node.name, max(numbers.values(), default=-1) + 1)
    names = {numbers[node.name]: node.name for node in plan.origins()}
    declared = frozenset(one.name for one in plan.nodes if isinstance(one, nodes.Published))
    origins = Origins(names, plan.publishes, declared)
    made: list[Operator] = []
    for family in plan.families.values():
        mine = {job.name: numbers[job.name] for job in family.jobs}
        lasting = family.span.whole and can_go_on(plan, plan.node(family.jobs[0].name))
        made.append(Windows(family, mine, lasting))
    for group in plan.groups.values():
        cycle = frozenset(plan.cycle_of(group.jobs[0].name)) if group.cyclic else frozenset()
        made.append(Updates(group, origins, cycle))
    for node in plan.nodes:
        if isinstance(node, KeyedStep):
            made.append(node.operator_over(numbers[node.name], plan.inputs_of(node)))
    return replace(plan, numbers=numbers, operators={one.name: one for one in made})
