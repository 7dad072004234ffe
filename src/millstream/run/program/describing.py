"""What a checkpoint keeps of a program, so that the next one can be compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.api.programs import Program
from millstream.api.sinks import FileSink
from millstream.graph import nodes
from millstream.operators.joins.step import Join
from millstream.operators.protocol import KeyedStep
from millstream.ops.updates.job import DICTS
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import held_columns
from millstream.plan.rules.prune_columns import stored_columns
from millstream.plan.stages import Plan, gives_changes, marks_changes

_ORIGINS = ("source", "windowed", "update", "published")
ALL = "*"


def describe_program(plan: Plan) -> dict[str, Any]:
    """What a checkpoint remembers of a plan."""
    steps = [one for one in plan.nodes if isinstance(one, KeyedStep)]
    return {
        "flow": plan.flow,
        "sources": {node.name: _source(node) for node in plan.sources()},
        "operators": {
            **{node.name: _windowed(plan, node) for node in plan.windowed()},
            **{node.name: _updater(plan, node) for node in plan.updaters()},
            **{step.name: _step(plan, step) for step in steps},
        },
        "families": {family.name: _family(family) for family in plan.families.values()},
        "sinks": {
            sink.name: str(sink.spec.directory)
            for sink in plan.sinks()
            if isinstance(sink.spec, FileSink)
        },
        "changes": dict(_readers(plan)),
        "numbers": plan.numbers,
        "stored": {
            owner: {table: how.told() for table, how in tables.items()}
            for operator in plan.operators.values()
            for owner, tables in operator.stored().items()
        },
        "graph": {
            "nodes": [
                {"name": node.name, "kind": node.kind, "level": plan.levels.get(node.name)}
                for node in plan.nodes
            ],
            "edges": [[one.name, node.name] for node in plan.nodes for one in plan.feeding(node)],
        },
    }


def _source(node: nodes.Source) -> dict[str, Any]:
    trees = getattr(node.spec, "trees", 1)
    return {
        "kind": type(node.spec).__name__,
        "path": str(getattr(node.spec, "path", "")),
        "time": node.spec.time or "arrival",
        **({"trees": trees} if trees > 1 else {}),
    }


def _windowed(plan: Plan, node: nodes.Windowed) -> dict[str, Any]:
    return {
        "family": plan.family_of(node.name).name,
        "keys": list(node.keys),
        "window": str(node.window),
        "emit": node.emission.mode,
        "aggregates": {name: str(agg) for name, agg in node.aggs},
        "kind": "map_reduce" if node.job else "reduce" if node.reducer else "agg",
        "combine": _combines(node),
        "keeps": keeps(plan.jobs[node.name]),
        "plain": is_plain(plan.jobs[node.name]),
        **_partitioned(node.partition),
        **({"sorted": "by ranges"} if node.in_order else {}),
    }


def _updater(plan: Plan, node: nodes.Update) -> dict[str, Any]:
    job, cycle = node.job, _cycle(plan, node.name)
    return {
        "family": node.name,
        "keys": [list(keys) for keys in node.keys],
        "kind": "update",
        "clock": job.clock,
        "order": job.order,
        "ttl": job.ttl,
        "codec": "msgpack" if job.codec is DICTS else type(job.codec).__name__,
        "cyclic": bool(cycle),
        "cycle": cycle,
        **_partitioned(job.partition),
    }


def _step(plan: Plan, step: KeyedStep) -> dict[str, Any]:
    return {
        "family": step.name,
        "kind": step.kind,
        **step.described(plan.inputs_of(step)),
        **({"rows": stored_columns(plan, step)} if isinstance(step, Join) else {}),
    }


def _family(family: Family) -> dict[str, Any]:
    return {
        "unit": family.span.pane,
        "states": sorted(m.state for m in family.measures),
        "holds": family.holds,
        "held": _held(family),
    }


def _readers(plan: Plan) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Who works on changes: on those of which operators, and through which steps they come.

    What a function makes of a row cannot be compared.
    """
    for node in plan.nodes:
        match node:
            case nodes.Sink() if marks_changes(node.inputs[0]):
                yield node.name, _reads(node.inputs)
            case nodes.Keyed() if any(map(gives_changes, node.inputs)):
                yield node.name, _reads(node.inputs)


def _reads(inputs: tuple[nodes.Node, ...]) -> dict[str, list[str]]:
    """The steps before a reader, each before its inputs and told once, however they fork."""
    origins, steps = set(), []
    seen: dict[nodes.Node, int] = {}
    waiting = [*reversed(inputs)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Keyed) or not node.inputs:
            steps.append(node.name)
            if gives_changes(node):
                origins.add(node.name)
        elif node in seen:
            steps.append(f"step {seen[node]} again")
        else:
            seen[node] = len(seen) + 1
            steps.append(_stateless(node))
            waiting.extend(reversed(node.inputs))
    return {"of": sorted(origins), "steps": steps}


def _stateless(node: nodes.Node) -> str:
    """What a step does, in words that a checkpoint keeps: those of the plan may change."""
    match node:
        case nodes.Where():
            return f"where {node.condition.sql}"
        case nodes.Select():
            return f"select {', '.join(item.sql for item in node.items)}"
        case nodes.Union():
            return f"union of {len(node.inputs)}"
    return node.kind


def _partitioned(partition: Any) -> dict[str, bool]:
    """That keys lie where a user's function says; which function that is cannot be compared."""
    return {} if partition is None else {"partition": True}


def _combines(node: nodes.Windowed) -> bool | str:
    """Whether a job combines, and if its states are lists of values."""
    if isinstance(node.job, Program) and node.job.combines_pairs:
        return "pairs"
    return bool(node.job and node.job.can("combine"))


def keeps(job: WindowJob) -> list[str]:
    """The tables of its family that an operator over windows needs."""
    used = {"panes": job.combines, "values": job.holds}
    return [table for table, needed in used.items() if needed]


def is_plain(job: WindowJob) -> bool:
    """Whether its windows are made of panes that are known by their time."""
    return job.kind == "time" and not job.span.whole


def _held(family: Family) -> list[str]:
    """The columns of kept values."""
    if not family.holds:
        return []
    columns = held_columns(family)
    return [ALL] if columns is None else sorted(columns)


def _cycle(plan: Plan, updater: str) -> list[str]:
    """The updaters of its cycle, which share what waits; none if it is in none."""
    for group in plan.groups.values():
        names = [job.name for job in group.jobs]
        if updater in names:
            return names if group.cyclic else []
    return []


def panes_of(program: dict[str, Any]) -> tuple[dict[str, int], dict[str, str], dict[str, int]]:
    """Pane widths, families of operators and numbers of origins that a program has."""
    units = {name: family["unit"] for name, family in program.get("families", {}).items()}
    homes = {name: known["family"] for name, known in program.get("operators", {}).items()}
    return units, homes, _numbers(program)


def _numbers(program: dict[str, Any]) -> dict[str, int]:
    if "numbers" in program:
        return dict(program["numbers"])
    graph = program.get("graph", {}).get("nodes", [])  # as they were before they were kept
    origins = [node["name"] for node in graph if node["kind"] in _ORIGINS]
    return {name: number for number, name in enumerate(origins)}
