"""The program a checkpoint belongs to: compared before anything starts.

What must stay is what the stored state and offsets mean: sources, and keyed operators with their
keys, windows and aggregates. Functions, stateless steps and sinks may change, and windows and
aggregates may be added: they are filled from the panes that are stored, as far as these go back.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np

from millstream.api.programs import Program
from millstream.api.sinks import FileSink
from millstream.errors import CheckpointError
from millstream.graph import nodes
from millstream.io.claims import Lease, check_owner
from millstream.ops.jobs import Family, WindowJob, timestamp
from millstream.ops.updates import DICTS
from millstream.plan.stages import Plan
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest

_SHARDS_PER_CORE = 4
_LEAST_SHARDS = 8


def describe_program(plan: Plan) -> dict[str, Any]:
    """What a checkpoint remembers of a plan."""
    operators: dict[str, dict[str, Any]] = {}
    for node in plan.windowed():
        operators[node.name] = {
            "family": plan.family_of(node.name).name,
            "keys": list(node.keys),
            "window": str(node.window),
            "emit": node.emission.mode,
            "aggregates": {name: str(agg) for name, agg in node.aggs},
            "kind": "map_reduce" if node.job else "reduce" if node.reducer else "agg",
            "combine": _combines(node),
        }
    for one in plan.updaters():
        job = one.job
        operators[one.name] = {
            "family": one.name,
            "keys": [list(keys) for keys in one.keys],
            "kind": "update",
            "clock": job.clock,
            "order": job.order,
            "ttl": job.ttl,
            "codec": "msgpack" if job.codec is DICTS else type(job.codec).__name__,
            "cyclic": plan.group_of(one.name).cyclic,
        }
    sources = {
        node.name: {
            "kind": type(node.spec).__name__,
            "path": str(getattr(node.spec, "path", "")),
            "time": node.spec.time or "arrival",
        }
        for node in plan.sources()
    }
    families = {
        family.name: {
            "unit": family.span.pane,
            "states": sorted(m.state for m in family.measures),
            "holds": family.holds,
        }
        for family in plan.families.values()
    }
    return {
        "flow": plan.flow,
        "sources": sources,
        "operators": operators,
        "families": families,
        "sinks": {
            sink.name: str(sink.spec.directory)
            for sink in plan.sinks()
            if isinstance(sink.spec, FileSink)
        },
        "graph": {
            "nodes": [
                {"name": node.name, "kind": node.kind, "level": plan.levels.get(node.name)}
                for node in plan.nodes
            ],
            "edges": [[one.name, node.name] for node in plan.nodes for one in plan.feeding(node)],
        },
    }


def _combines(node: nodes.Windowed) -> bool | str:
    """Whether a job combines, and if its states are lists of values."""
    if isinstance(node.job, Program) and node.job.combines_pairs:
        return "pairs"
    return bool(node.job and node.job.can("combine"))


def known_panes(path: Path | None) -> tuple[dict[str, int], dict[str, str]]:
    """Pane widths and families of operators that a checkpoint has, so that a plan keeps to them."""
    if path is None or not (path / "flow.json").exists():
        return {}, {}
    program = Checkpoint(path, create=False).read_program() or {}
    units = {name: family["unit"] for name, family in program.get("families", {}).items()}
    return units, {name: known["family"] for name, known in program.get("operators", {}).items()}


def check_program(
    plan: Plan, checkpoint: Checkpoint, shards: int | None, cores: int
) -> dict[str, Any]:
    """The program of this checkpoint; the first start writes it, a changed one is refused."""
    described = describe_program(plan)
    known = checkpoint.read_program()
    if known is None:
        known = {
            "format": 1,
            "id": uuid.uuid4().hex[:12],
            "shards": shards or max(_LEAST_SHARDS, _SHARDS_PER_CORE * cores),
            "born": {},
            "since": {},
            **described,
        }
        checkpoint.write_program(known)
        return known
    changes = list(_changes(known, described))
    if changes:
        latest = checkpoint.latest()
        since = f"batch {latest.batch}" if latest else "its creation"
        raise CheckpointError(
            f"the program has changed since {since} of checkpoint {checkpoint.path}: "
            f"{'; '.join(changes)}. Either undo the change, or start afresh with another "
            "checkpoint= (--checkpoint) and output directory"
        )
    if shards is not None and shards != known["shards"]:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} has {known['shards']} shards, fixed at its first "
            f"start; leave out shards={shards} or use a new checkpoint"
        )
    return known


def adopt_additions(
    plan: Plan, checkpoint: Checkpoint, program: dict[str, Any], manifest: Manifest
) -> list[str]:
    """Fit windows and aggregates that are new into what is stored; says what cannot be filled.

    `born` (operator -> the last window end it does not give) and `since` (family -> state -> the
    time from which panes have it) are kept with the program, so that a crash changes nothing.
    """
    described = describe_program(plan)
    notes: list[str] = []
    latest = [at for state in manifest.sources.values() for at in state.latest.values()]
    if manifest.batch >= 0 and latest:
        read_to = max(latest)
        for family in plan.families.values():
            notes.extend(_adopt(plan, family, program, manifest, read_to))
    if manifest.batch >= 0:
        fresh = [node.name for node in plan.updaters() if node.name not in program["operators"]]
        notes.extend(f"{name} is new and begins with what comes from now on" for name in fresh)
    program.update({name: described[name] for name in ("operators", "families", "graph", "sinks")})
    checkpoint.write_program(program)
    return notes


def _adopt(
    plan: Plan, family: Family, program: dict[str, Any], manifest: Manifest, read_to: int
) -> list[str]:
    notes = []
    pane, stored = family.span.pane, program["families"].get(family.name)
    next_pane = read_to // pane + 1  # panes up to here were read without what is new
    known_states = set(stored["states"]) if stored else set()
    since = program["since"].setdefault(family.name, {})
    for measure in family.measures:
        if measure.state not in known_states:
            since[measure.state] = next_pane * pane
    old = [job for job in family.jobs if job.name in program["operators"]]
    intact = min((_oldest(job, manifest) for job in old), default=next_pane)
    for job in family.jobs:
        whole = job.span.whole or job.kind != "time"
        if job.name in program["operators"]:
            fresh = [m.name for m in job.measures if m.state not in known_states and not m.held]
            if fresh and not whole:
                notes.append(
                    f"{job.name}: {', '.join(fresh)} is null for windows that begin before "
                    f"{timestamp(next_pane * pane)}: their panes were computed without it"
                )
            continue
        from_pane = intact
        needs_new = any(m.state not in known_states for m in job.measures if not m.held)
        if needs_new or stored is None or (job.holds and not stored["holds"]) or whole:
            from_pane = next_pane
        reach = np.array([from_pane + job.span.panes + job.span.step - 1])
        first = int(job.span.align_down(reach)[0])
        if whole:
            notes.append(f"{job.name} is new and begins with what comes from now on")
            continue
        program["born"][job.name] = (first - job.span.step) * pane
        begins = timestamp((first - job.span.panes) * pane)
        how = "filled from stored panes" if from_pane < next_pane else "not filled"
        notes.append(f"{job.name} is new ({how}): its first window begins at {begins}")
    return notes


def _oldest(job: WindowJob, manifest: Manifest) -> int:
    """The first pane from which on all panes of a job are still stored."""
    closed = manifest.closed.get(job.name)
    if closed is None:
        return -(2**61) // max(1, job.span.pane)
    return closed // job.span.pane - job.span.panes + 1


def check_owners(plan: Plan, program: dict[str, Any] | None) -> None:
    """Refuse output directories with the results of another checkpoint; changes nothing."""
    for sink in plan.sinks():
        if isinstance(sink.spec, FileSink):
            check_owner(sink.spec.directory, None if program is None else owner_of(program))


def owner_of(program: dict[str, Any]) -> str:
    """How output directories name a checkpoint."""
    return " ".join(f"{program['flow']} {program['id']}".split())


def renew_lease(checkpoint: Checkpoint, program: dict[str, Any]) -> tuple[Lease, Lease]:
    """The lease of the run before, and that of this one, which is on disk before it is used."""
    before = Lease(program.get("epoch", 0), program.get("lease", ""))
    now = Lease(before.epoch + 1, uuid.uuid4().hex)
    program["epoch"], program["lease"] = now.epoch, now.token
    checkpoint.write_program(program)
    return before, now


def _changes(known: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    if known["flow"] != now["flow"]:
        found.append(f"it belongs to flow {known['flow']!r}, this is {now['flow']!r}")
    for what in ("sources", "operators"):
        one = what.removesuffix("s")
        for name in known[what].keys() - now[what].keys():
            found.append(f"{one} {name!r} is gone")
        if what == "sources":
            found.extend(f"{one} {name!r} is new" for name in now[what].keys() - known[what].keys())
        for name in known[what].keys() & now[what].keys():
            before, after = known[what][name], now[what][name]
            for field in sorted(before.keys() | after.keys()):
                if field == "ttl":
                    continue  # it holds for what is written from now on
                if field == "aggregates" and before[field].items() <= after[field].items():
                    continue  # more of them can be computed from the same panes
                if before.get(field) != after.get(field):
                    found.append(
                        f"{one} {name!r}: {field} was {_shown(before.get(field))}, "
                        f"is {_shown(after.get(field))}"
                    )
    return sorted(found)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
