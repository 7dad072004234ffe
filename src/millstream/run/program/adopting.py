"""Fitting what is stored to a changed program: what is new is filled, what is gone is dropped.

Both are said by the program in the checkpoint, which is written in one step, and hold for the
manifests of batches before it: `born` (operator -> the last window end it does not give), `since`
(family -> state -> the time from which panes have it) and `dropped` (operators and tables, and the
last batch whose manifest still has them). So a crash at any moment finds either the old program or
the new one, and neither needs a manifest of its own.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np

from millstream.graph import nodes
from millstream.ops.times.progress import BEGIN, SourceProgress
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.zones import timestamp
from millstream.plan.reaching import latest
from millstream.plan.stages import Plan
from millstream.run.program.describing import ALL, describe_program, is_plain, keeps
from millstream.state.manifests import Manifest

_OF_OPERATORS = ("memos", "closed", "firing", "strategies", "rung", "due", "carried", "hot")
_SHARED = ("panes", "values", "totals", "tails")  # tables of a family; others belong to one job
_FOREVER = -(2**61)
_DESCRIBED = ("operators", "families", "changes", "numbers", "sinks", "stored", "graph")  # as is


def adopt(
    plan: Plan, known: dict[str, Any], manifest: Manifest
) -> tuple[dict[str, Any], list[str]]:
    """The program of a checkpoint from now on, and what is to be said of the change."""
    program = copy.deepcopy(known)
    described = describe_program(plan)
    notes = _drop(plan, program, manifest)
    read_to = _read_to(plan, manifest)
    for family in plan.families.values() if manifest.batch >= 0 else ():
        came = max(read_to[job.name] for job in family.jobs)
        if came > BEGIN:
            notes.extend(_fill(family, program, manifest, came))
    if manifest.batch >= 0:
        alone = (node.name for node in plan.nodes if _is_alone(node))
        fresh = [name for name in alone if name not in program["operators"]]
        notes.extend(f"{name} is new and begins with what comes from now on" for name in fresh)
    program.update({name: described[name] for name in _DESCRIBED})
    return program, notes


def _read_to(plan: Plan, manifest: Manifest) -> dict[str, int]:
    """Per keyed step the latest time that was read of the sources above it."""
    tops = {name: state.top for name, state in manifest.sources.items() if state.top is not None}
    progress = {
        node.name: SourceProgress(node.spec.lateness_micros(), top=tops.get(node.name, BEGIN))
        for node in plan.sources()
    }
    return latest(plan, progress, manifest.told)


# -- what is gone -------------------------------------------------------------------------------


def _drop(plan: Plan, program: dict[str, Any], manifest: Manifest) -> list[str]:
    dropped = program.setdefault("dropped", {"operators": {}, "tables": {}})
    now = {node.name for node in plan.nodes if isinstance(node, nodes.Keyed)}
    notes = []
    for name, before in program["operators"].items():
        if name not in now:
            notes.append(f"{name} is removed, and what was stored for it is dropped")
            dropped["operators"][name] = manifest.batch
            program["born"].pop(name, None)
            continue
        after = dict(getattr(plan.node(name), "aggs", ()))
        gone = [agg for agg in before.get("aggregates", {}) if agg not in after]
        notes.extend(f"{name}: {agg} is no longer computed" for agg in gone)
    for owner, tables in manifest.segments.items():
        for table in tables:
            if not _is_used(plan, owner, table):
                dropped["tables"].setdefault(owner, {})[table] = manifest.batch
    return notes


def _is_used(plan: Plan, owner: str, table: str) -> bool:
    if any(node.name == owner for node in plan.nodes if _is_alone(node)):
        return True
    family = plan.families.get(owner)
    if family is None:
        return False
    if table in _SHARED:
        return table not in ("panes", "values") or bool(family.users(table))
    return any(job.name == table.partition(" ")[2] for job in family.jobs)


def _is_alone(node: nodes.Node) -> bool:
    """Whether a keyed step has a state of its own; windows share theirs."""
    return isinstance(node, nodes.Keyed) and not isinstance(node, nodes.Windowed)


def without_dropped(manifest: Manifest, program: dict[str, Any]) -> Manifest:
    """A manifest without what the program no longer counts as its own."""
    dropped = program.get("dropped", {"operators": {}, "tables": {}})
    gone = {name for name, batch in dropped["operators"].items() if manifest.batch <= batch}
    tables = {
        (owner, table)
        for owner, several in dropped["tables"].items()
        for table, batch in several.items()
        if manifest.batch <= batch
    }
    if not gone and not tables:
        return manifest
    fields: dict[str, Any] = {
        field: {n: v for n, v in getattr(manifest, field).items() if n not in gone}
        for field in _OF_OPERATORS
    }
    fields["segments"] = {
        owner: {table: shards for table, shards in several.items() if (owner, table) not in tables}
        for owner, several in manifest.segments.items()
    }
    for measured in ("rates", "combining"):
        known = getattr(manifest, measured)
        fields[measured] = {n: v for n, v in known.items() if n in program["families"]}
    return msgspec.structs.replace(manifest, **fields)


# -- what is new --------------------------------------------------------------------------------


def _fill(family: Family, program: dict[str, Any], manifest: Manifest, read_to: int) -> list[str]:
    """Say from when on a family's panes have new states, and which window new jobs begin with."""
    notes = []
    span, stored = family.span, program["families"].get(family.name)
    next_pane = span.pane_at(read_to) + 1  # panes up to here were read without what is new
    known_states = set(stored["states"]) if stored else set()
    since = program["since"].setdefault(family.name, {})
    for measure in family.measures:
        if measure.state not in known_states:
            since[measure.state] = span.moment(next_pane)
    old = [job for job in family.jobs if job.name in program["operators"]]
    for job in family.jobs:
        if job in old:
            fresh = [m.name for m in job.measures if m.state not in known_states and not m.held]
            if fresh and is_plain(job):
                notes.append(
                    f"{job.name}: {', '.join(fresh)} is null for windows that begin before "
                    f"{timestamp(span.moment(next_pane))}: their panes were computed without it"
                )
            continue
        if not is_plain(job):
            notes.append(f"{job.name} is new and begins with what comes from now on")
            continue
        from_pane = next_pane
        if stored is not None and _knows(stored, job, known_states):
            from_pane = _intact(job, old, program, manifest, next_pane)
        if from_pane <= _FOREVER:
            notes.append(f"{job.name} is new (filled from stored panes): all of them are there")
            continue
        reach = np.array([from_pane + job.span.panes + job.span.step - 1])
        first = int(job.span.align_down(reach)[0])
        program["born"][job.name] = span.moment(first - job.span.step)
        begins = timestamp(span.moment(first - job.span.panes))
        how = "filled from stored panes" if from_pane < next_pane else "not filled"
        notes.append(f"{job.name} is new ({how}): its first window begins at {begins}")
    return notes


def _knows(stored: dict[str, Any], job: WindowJob, states: set[str]) -> bool:
    """Whether stored panes and values have all that a job needs."""
    if any(m.state not in states for m in job.measures if not m.held):
        return False
    if not job.holds:
        return True
    held = set(stored.get("held", ()))
    whole = job.reducer is not None or any(m.column is None and m.held for m in job.measures)
    columns = {column for m in job.measures if m.held for column in m.columns}
    return stored["holds"] and (ALL in held or (not whole and columns <= held))


def _intact(
    job: WindowJob,
    old: list[WindowJob],
    program: dict[str, Any],
    manifest: Manifest,
    next_pane: int,
) -> int:
    """The first pane from which on all a new job needs is still stored, by the needs of others."""
    first = _FOREVER
    for table in keeps(job):
        before = [
            _oldest(one, program, manifest)
            for one in old
            if table in program["operators"][one.name].get("keeps", keeps(one))
            and one.span.step <= one.span.panes  # between hopping windows nothing is kept
        ]
        first = max(first, min([*before, next_pane]))
    return first


def _oldest(job: WindowJob, program: dict[str, Any], manifest: Manifest) -> int:
    """The first pane of the next window of a job: from there on everything is stored."""
    closed = manifest.closed.get(job.name, program["born"].get(job.name))
    if closed is None:
        return _FOREVER
    return job.span.pane_at(closed) - job.span.panes + job.span.step
