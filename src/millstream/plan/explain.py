"""The plan as text: stages, steps with their inputs by name, strategies and why.

Readable, diffable, and the golden format of the tests. It needs no source to exist: everything it
says follows from the graph, and with a checkpoint from its last committed batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.programs import job_name
from millstream.durations import text
from millstream.graph import nodes
from millstream.operators.protocol import KeyedStep
from millstream.ops.overload import THROTTLE
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.plan.figures import Figures, moment, read_figures
from millstream.plan.planner import sketch
from millstream.plan.stages import Plan
from millstream.plan.strategies import (
    choose,
    combines,
    function_name,
    how_of,
    keeps,
    number,
    used_strategy,
)


def explain(
    flow: str,
    graph: tuple[nodes.Node, ...],
    checkpoint: str | Path | None = None,
    columns: Mapping[str, pa.Schema] | None = None,
) -> str:
    """What `Flow.explain()` and `millstream plan` print; with a checkpoint, also what happened.

    columns: those that steps were found to give, if anybody looked.
    """
    plan = sketch(flow, graph)
    figures = read_figures(plan, checkpoint) if checkpoint is not None else None
    place = places(plan)
    lines = [f"flow {flow}"]
    if checkpoint is not None:
        lines[0] += f", as of {figures.title}" if figures else ", no batch committed yet"
    schemas = columns or {}
    for level in range(plan.depth + 1):
        title = "read, fused stateless steps, map-side combine"
        if level:
            keyed = level in plan.levels.values()
            what = "state of keyed operators" if keyed else "sorting"
            title = f"{what}, {level} exchange(s) from the source"
        lines.append(f"stage {level}: {title}")
        lines.extend(f"  {line}" for line in _sorting(plan, level))
        for node in plan.nodes:
            if place[node] != level:
                continue
            if isinstance(node, nodes.Windowed):
                family = plan.family_of(node.name)
                if family.jobs[0].name == node.name:
                    lines.extend(f"  {line}" for line in _family(plan, family, figures))
                    for job in family.jobs:
                        lines.extend(_columns(job.name, schemas))
            elif isinstance(node, nodes.Update):
                lines.extend(f"  {line}" for line in _updater(plan, node, figures))
                lines.extend(_columns(node.name, schemas))
            else:
                lines.append(f"  {describe(node, plan)}")
                if isinstance(node, KeyedStep):
                    lines.extend(f"    {line}" for line in node.details(plan.inputs_of(node)))
                lines.extend(f"    {line}" for line in _happened(figures, node))
                lines.extend(_columns(node.name, schemas))
    return "\n".join(lines)


def _columns(step: str, schemas: Mapping[str, pa.Schema]) -> list[str]:
    """The columns of a step with their types."""
    if step not in schemas:
        return []
    told = ", ".join(f"{field.name} {field.type}" for field in schemas[step])
    return [f"    columns of {step}: {told or 'none seen'}"]


def outline(flow: str, graph: Iterable[nodes.Node]) -> str:
    """The steps of a flow, one a line, as they were written."""
    return "\n".join([f"Flow {flow!r}", *(f"  {told_step(node)}" for node in graph)])


def told_step(node: nodes.Node) -> str:
    """One step in one line, with what feeds it."""
    what = what_of(node)
    if isinstance(node, nodes.Windowed):
        aggs = ", ".join(f"{name}={agg}" for name, agg in node.aggs)
        made = aggs or (f"map_reduce {job_name(node.job)}" if node.job else "reduce")
        what = f"by {keys_of(node)}, {node.window}: {made}"
    feeds = _feeds(node)
    return f"{node.name} = {what}{f' <- {feeds}' if feeds else ''}"


def _sorting(plan: Plan, level: int) -> list[str]:
    """What happens to results that leave in the order of keys."""
    lines = []
    for node in plan.windowed():
        if node.in_order and plan.leaving(node.name) == level + 1:
            lines.append(f"{node.name}: results parted into ranges of keys, by a sample")
        elif node.in_order and plan.leaving(node.name) == level:
            lines.append(f"{node.name}: each range in the order of keys")
    return lines


def places(plan: Plan) -> dict[nodes.Node, int]:
    """The stage in which every step runs."""
    place: dict[str, int] = {}
    left: dict[str, int] = {}  # where the records of a step come out
    for members, feeding in plan.walk():
        names = [node.name for node in members]
        above = max((left[name] for name in feeding), default=0)
        above = max([above, *(plan.levels.get(name, 0) for name in names)])
        place.update(dict.fromkeys(names, above))
        further = [plan.leaving(name) for name in names if name in plan.levels]
        left.update(dict.fromkeys(names, max([above, *further])))
    return {node: place[node.name] for node in plan.nodes}


# -- what happened -----------------------------------------------------------------------------


def _happened(figures: Figures | None, node: nodes.Node) -> list[str]:
    """The figures of a step, one line."""
    if figures is None:
        return []
    account = figures.account(node.name)
    parts = [f"{account.get('offered', 0):,} in", f"{account.get('aggregated', 0):,} aggregated"]
    parts.extend(figures.losses(node.name))
    count, rate = figures.last_batch(node.name), figures.rate(node.name)
    if count is not None:
        pace = f" ({number(rate)} a second)" if rate else ""
        parts.append(f"{count:,} of them in the last batch{pace}")
    line = "so far: " + ", ".join(parts)
    if isinstance(node, nodes.Source) and node.name in figures.watermarks:
        line += f"; watermark {moment(figures.watermarks[node.name])}"
    return [line]


def _windows_left(figures: Figures | None, node: nodes.Windowed, job: WindowJob) -> list[str]:
    if figures is None:
        return []
    parts = []
    results = figures.results(node)
    if results is not None:
        parts.append(f"{results:,} results")
    if not job.span.whole:
        parts.append(f"watermark {moment(figures.watermarks[node.name])}")
        until = figures.left_until(node.name)
        parts.append("no window has left" if until is None else f"left until {moment(until)}")
    used = used_strategy(figures, job)
    if used is not None:
        parts.append(f"slid last by {used}")
    return ["windows: " + ", ".join(parts)] if parts else []


def _kept(figures: Figures | None, owner: str) -> list[str]:
    if figures is None:
        return []
    tables = [
        f"{one.table}: {one.rows:,} rows in {one.segments:,} segment{'s'[: one.segments != 1]}"
        for one in figures.tables(owner)
    ]
    return ["stored: " + ("; ".join(tables) or "nothing")]


# -- what is planned ---------------------------------------------------------------------------


def _family(plan: Plan, family: Family, figures: Figures | None) -> list[str]:
    """The operators of a family; what they share is said first."""
    members = members_of(plan, family)
    said = filter(None, [keeps(family, figures), combines(family, figures)])
    stored = [f"  {line}" for line in (*said, *_kept(figures, family.name))]
    if len(members) == 1:
        return [*_windowed(members[0], family.jobs[0], figures), *stored]
    names = ", ".join(node.name for node in members)
    states = ", ".join(m.state for m in family.measures) or "kept values"
    lines = [
        f"panes of {family.span.pane_text} by {keys_of(members[0])} <- {_feeds(members[0])}: "
        f"computed once, shared by {names}",
        f"  each pane holds: {states}",
        *stored,
    ]
    for node, job in zip(members, family.jobs, strict=True):
        lines.extend(f"  {line}" for line in _windowed(node, job, figures))
    return lines


def members_of(plan: Plan, family: Family) -> list[nodes.Windowed]:
    """The nodes of a family, in the order of its jobs."""
    return [node for job in family.jobs for node in plan.windowed() if node.name == job.name]


def _feeds(node: nodes.Node) -> str:
    return ", ".join(one.name for one in node.inputs)


def keys_of(node: nodes.Windowed) -> str:
    """The key columns of a keyed operator."""
    return ", ".join(node.keys) or "everything"


def describe(node: nodes.Node, plan: Plan) -> str:
    """A stateless step, source or sink in one line, with what feeds it."""
    feeding = ", ".join(one.name for one in plan.feeding(node))
    return f"{node.name} = {what_of(node)}{f' <- {feeding}' if feeding else ''}"


def results_of(node: nodes.Windowed) -> str:
    """When the results of a window leave, if not once and final."""
    emission = node.emission
    if emission.mode == "delta":
        return "emits changes"
    if emission.mode == "final":
        return "" if node.policy is None else f"leaves when complete, or by {node.policy}"
    if emission.mode == "snapshot":
        return f"emits snapshots, {emission.looks.when()}"
    whens = [
        f"every {text(emission.every)}" if emission.every else "",
        f"every {emission.every_rows:,} records" if emission.every_rows else "",
        f"every {text(emission.every_event)} of event time" if emission.every_event else "",
    ]
    return f"emits early results, {' or '.join(filter(None, whens))}"


def update_keys(node: nodes.Update) -> str:
    """The key columns of an updater, per input where they differ."""
    ways = [", ".join(keys) or "everything" for keys in node.keys]
    if len(set(ways)) == 1:
        return ways[0]
    return "; ".join(f"{one.name} by {way}" for one, way in zip(node.inputs, ways, strict=True))


def how_it_updates(plan: Plan, node: nodes.Update) -> list[str]:
    """What an updater was told to do, one phrase each."""
    job = node.job
    if job.merge is not None:
        phrases = ["partial slates where records are read, merged per key, because it has merge"]
    elif job.order == "event":
        phrases = [f"events in the order of their time; late ones are {_LATE[job.late]}"]
    else:
        phrases = ["events as they arrive, in order within a batch"]
    if job.ttl is not None:
        phrases.append(f"a slate not written for {text(job.ttl)} ({job.clock} time) is gone")
    if job.on_timer is not None:
        phrases.append(f"timers call {function_name(job.on_timer)}")
    targets = sorted(plan.publishes.get(node.name, ()))
    if targets:
        phrases.append(f"publishes to {', '.join(targets)}")
    names = plan.cycle_of(node.name)
    if len(names) > 1:
        phrases.append(f"in one task, because it is in a cycle: {', '.join(names)}")
    if job.flush is not None and len(names) > 1:
        phrases.append("slates are flushed with every batch, because it is in a cycle")
    elif job.flush is not None:
        phrases.append(f"slates are flushed every {text(job.flush)}, their events every batch")
    return phrases


_LATE = {"apply": "applied when they come", "divert": "set aside"}


def _updater(plan: Plan, node: nodes.Update, figures: Figures | None) -> list[str]:
    name = function_name(node.job.fn)
    lines = [f"{node.name} = update {name} by {update_keys(node)} <- {_feeds(node)}"]
    inner = [*how_it_updates(plan, node), *_happened(figures, node), *_kept(figures, node.name)]
    if figures is not None:
        inner.append(f"watermark {moment(figures.watermarks[node.name])}")
        hot = figures.now.hot.get(node.name)
        if hot is not None and hot.keys and hot.events:
            key, count = hot.keys[0]
            inner.append(f"hottest key: {key} with {count / hot.events:.1%} of the last events")
    return [*lines, *(f"  {line}" for line in inner)]


def what_of(node: nodes.Node) -> str:
    """What a step does."""
    match node:
        case nodes.Source():
            return _source(node.spec)
        case nodes.Select():
            return f"select {', '.join(item.sql for item in node.items)}"
        case nodes.Where():
            return f"where {node.condition.sql}"
        case nodes.Map():
            return f"map {function_name(node.fn)}"
        case nodes.Process():
            held = f", up to {text(node.behind)} behind its events" if node.behind else ""
            return f"process {function_name(node.fn)}{held}"
        case nodes.At():
            when = function_name(node.fn) if node.expr is None else node.expr.sql
            held = f", up to {text(node.behind)} before its old time" if node.behind else ""
            return f"at {when}{held}"
        case nodes.MapBatches():
            return f"map_batches {function_name(node.fn)}"
        case nodes.Pairs():
            return f"map of {job_name(node.job)}"
        case nodes.Update():
            return f"update {function_name(node.job.fn)}"
        case KeyedStep():
            return node.words()
        case nodes.Published():
            return "stream that is published to"
        case nodes.Late():
            return f"late for {node.of.name}"
        case nodes.Sink():
            return f"sink {sink_name(node.spec)}"
        case _:
            return node.kind


def _windowed(node: nodes.Windowed, job: WindowJob, figures: Figures | None) -> list[str]:
    lines = [f"{node.name} = key by {keys_of(node)}, window {node.window} <- {_feeds(node)}"]
    if results := results_of(node):
        lines.append(f"  {results}")
    inner = _how_windows(job)
    choice = choose(node, job)
    inner.append(f"strategy: {choice.name}, because {choice.why}")
    inner.extend(f"{name} = {agg}: {how_of(agg, job)}" for name, agg in node.aggs)
    inner.extend(_happened(figures, node))
    inner.extend(_windows_left(figures, node, job))
    lines.extend(f"  {line}" for line in inner)
    return lines


def _how_windows(job: WindowJob) -> list[str]:
    span = job.span
    if span.whole:
        return []
    match job.kind:
        case "landmark":
            return [f"panes of {span.pane_text}, added to one total per key"]
        case "session":
            return ["pieces of sessions, joined when they meet"]
        case "rows" | "bytes":
            unit = "row" if job.kind == "rows" else "byte"
            return [f"numbered per key once the watermark has passed, {unit} by {unit}"]
    return [f"panes of {span.pane_text}, {span.panes} a window, {span.step} a slide"]


def _source(spec: Any) -> str:
    place = place_of(spec)
    return f"{type(spec).__name__}({', '.join([*filter(None, [place]), *reading_of(spec)])})"


def place_of(spec: Any) -> str:
    """Where a source reads from, if that is a place."""
    where = getattr(spec, "host", None) or getattr(spec, "path", None) or ""
    port = getattr(spec, "port", None)
    return f"{where}:{port}" if port else str(where)


def reading_of(spec: Any) -> list[str]:
    """How a source is read."""
    parts = ["follow"] if getattr(spec, "follow", False) else []
    parts.append(f"time {spec.time or 'of arrival'}")
    late = spec.lateness_micros()
    parts.append("complete" if late is None else f"lateness {text(late)}")
    if spec.overload != THROTTLE:
        parts.append(str(spec.overload))
    return parts


def sink_name(spec: Any) -> str:
    """A sink and where it writes to."""
    path = getattr(spec, "path", None)
    if path is not None:
        return f"{type(spec).__name__}({path})"
    address = getattr(spec, "address", None)
    if address is not None:
        return f"{type(spec).__name__}({address.shown})"
    fn = getattr(spec, "fn", None)
    return f"{type(spec).__name__}({function_name(fn) if fn else ''})"
