"""Refuse flows that cannot work, before anything is started."""

from __future__ import annotations

from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.operators.view import Kept
from millstream.plan.outputs import check_outputs
from millstream.plan.stages import Plan, changes_of, upstream


def check_flow(plan: Plan) -> Plan:
    """Sources and sinks exist, sinks do not share a directory, whole windows can end."""
    if not plan.sources():
        raise ConfigError(f"flow {plan.flow!r} has no source; begin with flow.source(...)")
    kept = any(isinstance(node, Kept) for node in plan.nodes)
    if not plan.sinks() and not plan.updaters() and not kept:
        raise ConfigError(
            f"flow {plan.flow!r} has no sink, so nothing would come out; end a stream with "
            ".sink(ms.Parquet('out/')), ms.Csv, ms.Jsonl, ms.Console, ms.Call, ms.Memory, ms.Redis "
            "or keep it to be read with .view(name)"
        )
    check_outputs(plan)
    _check_deltas(plan)
    _check_publishing(plan)
    _check_snapshots(plan)
    for node in plan.windowed():
        if node.window.span.whole:
            _check_whole(plan, node)
        elif any(
            isinstance(other, nodes.Windowed) and other.window.span.whole
            for other in upstream(plan, node)
        ):
            raise ConfigError(
                f"{node.name!r} has a time window over results of the whole input, which have no "
                "time; give the first job a window too"
            )
    return plan


def _check_deltas(plan: Plan) -> None:
    """Refuse what looks at `op`: a row and the one that takes it back differ there."""
    for node in plan.windowed():
        origin = changes_of(node, ("delta",))
        if origin is None or _rewritten(node):
            continue
        uses = [f"key {name!r}" for name in node.keys if name == "op"]
        uses += [f"{name}={agg}" for name, agg in node.aggs if "op" in agg.columns]
        if uses:
            raise ConfigError(
                f"{node.name!r} works on changes of {origin.name!r}, and {', '.join(uses)} looks "
                'at their mark "op"; a window over changes works on the results as they are now. '
                "To count changes, send them to a sink or an updater"
            )


def _check_publishing(plan: Plan) -> None:
    """Refuse to publish what may be taken back: an event cannot be."""
    for node in plan.nodes:
        if isinstance(node, nodes.Process) and plan.publishes.get(node.name):
            origin = changes_of(node, ("delta",))
            if origin is not None:
                raise ConfigError(
                    f"{node.name!r} publishes, and works on changes of {origin.name!r}, which may "
                    'be taken back; use emit="final" there, or an updater here'
                )


def _check_snapshots(plan: Plan) -> None:
    """Refuse to add up snapshots, each of which is the whole answer as far as it is known."""
    several = [node for node in plan.windowed() if node.emission.mode == "snapshot"]
    if len(several) > 1:
        raise ConfigError(
            f"{' and '.join(repr(node.name) for node in several)} have "
            'emit="snapshot"; one step of a flow can'
        )
    for node in plan.nodes:
        if isinstance(node, nodes.Keyed | nodes.Process):
            for before in upstream(plan, node):
                if before in several:
                    raise ConfigError(
                        f"{node.name!r} works on snapshots of {before.name!r}, each of which is a "
                        "whole answer, and would add them up; let only select, where, map and "
                        'sinks come after emit="snapshot"'
                    )


def _rewritten(node: nodes.Node) -> bool:
    """Whether a step before a window may have made a column `op` of its own."""
    made = (nodes.Map, nodes.MapBatches, nodes.Process, nodes.Select, nodes.Pairs)
    return any(
        isinstance(one, made) or (not isinstance(one, nodes.Windowed) and _rewritten(one))
        for one in node.inputs
    )


def _check_whole(plan: Plan, node: nodes.Windowed) -> None:
    for source in upstream(plan, node):
        if isinstance(source, nodes.Source) and source.spec.endless:
            raise ConfigError(
                f"{node.name!r} works on the whole input, but source {source.name!r} never ends; "
                "give it a window, like ms.tumbling('1m')"
            )
