"""Read only the columns that something downstream looks at."""

from __future__ import annotations

from dataclasses import replace

from millstream.graph import nodes
from millstream.operators.protocol import KeyedStep
from millstream.plan.stages import Plan

_ALL = None


def prune_columns(plan: Plan) -> Plan:
    """Narrow what is read from each source; a Python function or a sink wants everything."""
    formats = dict(plan.formats)
    for source in plan.sources():
        wanted = _wanted(plan, source)
        fmt = formats[source.name]
        if wanted is _ALL:
            continue
        always = {fmt.time, source.spec.participant} - {None}
        kept = tuple(n for n in fmt.schema.names if n in wanted or n in always)
        if kept and len(kept) < len(fmt.schema.names):
            formats[source.name] = replace(fmt, columns=kept)
    return replace(plan, formats=formats)


def stored_columns(plan: Plan, step: KeyedStep) -> dict[str, list[str]]:
    """The columns that a step stores of the rows of its inputs, as far as they are known."""
    stored = {}
    for one in step.inputs:
        known, used = plan.columns.get(one.name), _used_by(plan, step, one)
        if known is not None:
            stored[one.name] = sorted(known if used is _ALL else used.intersection(known))
    return stored


def _wanted(plan: Plan, node: nodes.Node) -> set[str] | None:
    """The columns of a node's output that are used; None stands for all of them."""
    wanted: set[str] = set()
    for consumer in plan.consumers(node):
        more = _used_by(plan, consumer, node)
        if more is _ALL:
            return _ALL
        wanted |= more
    stream = nodes.diverts_to(node)
    if stream is not None and isinstance(node, nodes.Source):
        more = _wanted(plan, plan.node(stream))
        return _ALL if more is _ALL else wanted | more
    return wanted


def _used_by(plan: Plan, node: nodes.Node, before: nodes.Node) -> set[str] | None:
    """The columns of the step before that a step uses."""
    match node:
        case nodes.Where():
            after = _wanted(plan, node)
            return _ALL if after is _ALL else after | node.condition.columns
        case nodes.At(expr=expression) if expression is not None:
            after = _wanted(plan, node)
            return _ALL if after is _ALL else after | expression.columns
        case nodes.Select():
            if any(item.name == "*" for item in node.items):
                return _ALL
            return {column for item in node.items for column in item.columns}
        case nodes.Union():
            return _wanted(plan, node)
        case KeyedStep():
            return _used_by_inputs(plan, node, before)
        case nodes.Windowed():
            late = _sets_aside(plan, node)
            whole_records = any(agg.column is None and not _counts(agg) for _, agg in node.aggs)
            if (
                late
                or node.window.kind == "bytes"
                or node.reducer is not None
                or node.job is not None
                or whole_records
            ):
                return _ALL
            return {*node.keys, *(name for _, agg in node.aggs for name in agg.columns)}
        case _:
            return _ALL


def _used_by_inputs(plan: Plan, node: KeyedStep, before: nodes.Node) -> set[str] | None:
    """The same of a step that may have it as several of its inputs."""
    if _sets_aside(plan, node):
        return _ALL
    wanted, inputs, used = _wanted(plan, node), plan.inputs_of(node), set[str]()
    for number, one in enumerate(node.inputs):
        if one is before:
            more = node.uses_of(number, wanted, inputs)
            if more is _ALL:
                return _ALL
            used |= more
    return used


def _sets_aside(plan: Plan, node: nodes.Node) -> bool:
    """Whether records that are late for a step go somewhere, whole as they are."""
    return any(isinstance(one, nodes.Late) and one.of is node for one in plan.nodes)


def _counts(agg: object) -> bool:
    return getattr(agg, "kind", "") == "count"
