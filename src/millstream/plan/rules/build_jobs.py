"""Turn keyed nodes into window jobs: which aggregate is computed in which way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from millstream.api.mapreduce import combiner
from millstream.api.programs import Program, pair_combiner
from millstream.graph import nodes
from millstream.ops.emitting.firing import FINAL
from millstream.ops.times.fidelity import Closing
from millstream.ops.windows.jobs import Measure, WindowJob
from millstream.plan.stages import Plan, changes_of


def build_jobs(plan: Plan) -> Plan:
    """One window job per keyed operator."""
    return replace(plan, jobs={node.name: _closing(plan, node) for node in plan.windowed()})


def _closing(plan: Plan, node: nodes.Windowed) -> WindowJob:
    """A job that knows whose records it gets, if its results tell how much of them there is."""
    job = _job(node)
    if not node.fidelity:
        return job
    reaching = _feeding(plan, node)
    direct = frozenset(name for name, diverted in reaching if not diverted)
    overflow = frozenset(name for name, diverted in reaching if diverted)
    spilled = frozenset(_spilling(plan, node))
    return replace(job, closing=Closing(node.policy, direct, overflow, spilled))


def _spilling(plan: Plan, node: nodes.Node) -> Iterator[str]:
    """The updaters of which a step gets, without another exchange, what they divert."""
    if isinstance(node, nodes.Published):
        yield from (one.name for one in plan.diverting(node) if isinstance(one, nodes.Update))
    for one in plan.feeding(node):
        if not isinstance(one, nodes.Source | nodes.Keyed):
            yield from _spilling(plan, one)


def _feeding(plan: Plan, node: nodes.Node) -> set[tuple[str, bool]]:
    """The sources and keyed steps whose records reach a step without another exchange.

    Of a source also whether that is what its overload policy diverts.
    """
    found: set[tuple[str, bool]] = set()
    for one in plan.feeding(node):
        diverts = isinstance(node, nodes.Published) and nodes.diverts_to(one) == node.name
        if isinstance(one, nodes.Source | nodes.Keyed):
            found.add((one.name, diverts and isinstance(one, nodes.Source)))
        else:
            found |= _feeding(plan, one)
    return found


def _job(node: nodes.Windowed) -> WindowJob:
    window, packed = node.window, node.job is not None
    kind = {"landmark": "landmark", "session": "session", "count": "rows", "bytes": "bytes"}.get(
        window.kind, "time"
    )
    measures, reducer = _computed(node)
    # States of sessions and totals cannot be cut at a moment of event time: rows can.
    by_event = node.emission.by_event and kind in ("session", "landmark")
    return WindowJob(
        node.name,
        ("key",) if packed else node.keys,
        window.span,
        measures,
        reducer,
        packed=packed,
        keep_null_keys=not packed and node.null_keys == "keep",
        ordered=packed and node.in_order,
        partition=node.partition,
        kind=kind,
        # Snapshots are made beside a window, from what blocks gave it; its own result is the last.
        emission=FINAL if node.emission.mode == "snapshot" else node.emission,
        logical=window.logical,
        over_stream=window.over == "stream",
        growing=window.growing,
        changes=by_event or changes_of(node) is not None,
    )


def _computed(node: nodes.Windowed) -> tuple[tuple[Measure, ...], Callable[..., Any] | None]:
    """What is computed of the rows of a window, and the function that gets their values."""
    job = node.job
    if job is None:
        return tuple(agg.measure(name) for name, agg in node.aggs), node.reducer
    if isinstance(job, Program) and job.combines_pairs:
        kernel = pair_combiner(job, node.name)
        return (Measure("value", "combine", None, objects=kernel),), job.reduce_combined
    if job.can("combine"):
        kernel = combiner(job, node.name)
        return (Measure("value", "combine", None, objects=kernel),), job.reduce
    return (), job.reduce
