"""The program a checkpoint belongs to: compared before anything starts.

What must stay is what the stored state and offsets mean: sources, and keyed operators with their
keys, windows and aggregates. Functions, stateless steps and sinks may change.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from millstream.api.sinks import FileSink
from millstream.errors import CheckpointError
from millstream.io.writers import check_owner
from millstream.plan.stages import Plan
from millstream.state.checkpoint import Checkpoint

_SHARDS_PER_CORE = 4
_LEAST_SHARDS = 8


def describe_program(plan: Plan) -> dict[str, Any]:
    """What a checkpoint remembers of a plan."""
    operators = {}
    for node in plan.windowed():
        operators[node.name] = {
            "keys": list(node.keys),
            "window": str(node.window),
            "emit": node.emission.mode,
            "aggregates": {name: str(agg) for name, agg in node.aggs},
            "kind": "map_reduce" if node.job else "reduce" if node.reducer else "agg",
            "combine": bool(node.job and node.job.can("combine")),
        }
    sources = {
        node.name: {
            "kind": type(node.spec).__name__,
            "path": str(getattr(node.spec, "path", "")),
            "time": node.spec.time or "arrival",
        }
        for node in plan.sources()
    }
    return {"flow": plan.flow, "sources": sources, "operators": operators}


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


def check_owners(plan: Plan, program: dict[str, Any] | None) -> None:
    """Refuse output directories with the results of another checkpoint; changes nothing."""
    for sink in plan.sinks():
        if isinstance(sink.spec, FileSink):
            owner = None if program is None else f"{plan.flow} {program['id']}"
            check_owner(Path(sink.spec.path).absolute(), owner)


def _changes(known: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    if known["flow"] != now["flow"]:
        found.append(f"it belongs to flow {known['flow']!r}, this is {now['flow']!r}")
    for what in ("sources", "operators"):
        one = what.removesuffix("s")
        for name in known[what].keys() - now[what].keys():
            found.append(f"{one} {name!r} is gone")
        for name in now[what].keys() - known[what].keys():
            found.append(f"{one} {name!r} is new")
        for name in known[what].keys() & now[what].keys():
            before, after = known[what][name], now[what][name]
            for field in sorted(before.keys() | after.keys()):
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
