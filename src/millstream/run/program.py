"""The program a checkpoint belongs to: compared before anything starts.

What must stay is what the stored state and offsets mean: sources, and keyed operators with their
keys and windows. Functions, stateless steps and sinks may change. Windows, aggregates and updaters
may be added and taken away; `adopting.py` fits the stored state to that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.api.programs import Program
from millstream.api.sinks import FileSink
from millstream.errors import CheckpointError, ConfigError
from millstream.graph import nodes
from millstream.io.claims import Lease, check_owner
from millstream.operators.joins.step import Join
from millstream.operators.protocol import KeyedStep
from millstream.ops.jobs import Family, WindowJob
from millstream.ops.preparing import held_columns
from millstream.ops.updates import DICTS
from millstream.plan.outputs import check_apart
from millstream.plan.rules.prune_columns import stored_columns
from millstream.plan.stages import Plan
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import shards_of
from millstream.state.segments import safe_name
from millstream.state.storage import open_storage

_SHARDS_PER_CORE = 4
LEAST_SHARDS = 8
_ORIGINS = ("source", "windowed", "update", "published")
_LABELS = {  # of fields whose names do not tell by themselves
    "combine": "whether its job has combine()",
    "compared": "what is compared of its rows",
    "cyclic": "whether it is in a cycle of updaters",
    "partition": "whether keys lie where partition= says",
}
_SETTLED = (
    "ttl",
    "keeps",
    "plain",
    "cycle",
    "columns",
)  # may change, or have own rules
ALL = "*"
_OF_ITSELF = ("format", "id", "epoch", "lease")  # what a checkpoint has whatever its program is


@dataclass(frozen=True)
class Difference:
    """How a program differs from the one a checkpoint belongs to."""

    refused: list[str]  # what the stored state and offsets cannot follow
    removed: list[str]  # operators that are gone, and aggregates as "operator.aggregate"


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
            "keeps": keeps(plan.jobs[node.name]),
            "plain": is_plain(plan.jobs[node.name]),
            **_partitioned(node.partition),
            **({"sorted": "by ranges"} if node.in_order else {}),
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
            "cyclic": bool(_cycle(plan, one.name)),
            "cycle": _cycle(plan, one.name),
            **_partitioned(job.partition),
        }
    for step in plan.nodes:
        if isinstance(step, KeyedStep):
            operators[step.name] = {
                "family": step.name,
                "kind": step.kind,
                **step.described(plan.inputs_of(step)),
                **({"rows": stored_columns(plan, step)} if isinstance(step, Join) else {}),
            }
    sources = {
        node.name: {
            "kind": type(node.spec).__name__,
            "path": str(getattr(node.spec, "path", "")),
            "time": node.spec.time or "arrival",
            **({"trees": trees} if (trees := getattr(node.spec, "trees", 1)) > 1 else {}),
        }
        for node in plan.sources()
    }
    families = {
        family.name: {
            "unit": family.span.pane,
            "states": sorted(m.state for m in family.measures),
            "holds": family.holds,
            "held": _held(family),
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


def known_panes(path: Path | None) -> tuple[dict[str, int], dict[str, str], dict[str, int]]:
    """Pane widths, families of operators and numbers of origins that a checkpoint has.

    A plan keeps to them.
    """
    if path is None or not open_storage(path).exists("flow.json"):
        return {}, {}, {}
    place = Checkpoint(path, create=False)
    program = place.read_whole_program() or {}
    if _binds_nothing(place, program):
        return {}, {}, {}
    return panes_of(program)


def panes_of(
    program: dict[str, Any],
) -> tuple[dict[str, int], dict[str, str], dict[str, int]]:
    """The same of a program that is known."""
    units = {name: family["unit"] for name, family in program.get("families", {}).items()}
    homes = {name: known["family"] for name, known in program.get("operators", {}).items()}
    return units, homes, _numbers(program)


def _binds_nothing(checkpoint: Checkpoint, program: dict[str, Any]) -> bool:
    """Whether nothing was committed, nor received and promised to be: any program may begin."""
    if checkpoint.begun():
        return False
    if not checkpoint.store.shared and checkpoint.store.exists("published"):
        return False
    return not any(
        checkpoint.spool.within(safe_name(name)).names() for name in program.get("sources", {})
    )


def _numbers(program: dict[str, Any]) -> dict[str, int]:
    if "numbers" in program:
        return dict(program["numbers"])
    graph = program.get("graph", {}).get("nodes", [])  # as they were before they were kept
    origins = [node["name"] for node in graph if node["kind"] in _ORIGINS]
    return {name: number for number, name in enumerate(origins)}


def check_program(
    plan: Plan,
    checkpoint: Checkpoint,
    shards: int | None,
    cores: int,
    remove: tuple[str, ...] = (),
    least_shards: int = LEAST_SHARDS,
) -> dict[str, Any]:
    """The program of this checkpoint; the first start writes it, a changed one is refused.

    `remove` names what may be gone: its state is dropped.
    """
    described = describe_program(plan)
    _check_removed(described, remove)
    known = checkpoint.read_whole_program()
    if known is None or _binds_nothing(checkpoint, known):
        before = known or {"format": 1, "id": uuid.uuid4().hex[:12]}
        known = {
            **{name: before[name] for name in _OF_ITSELF if name in before},
            "shards": before.get("shards") or shards or max(least_shards, _SHARDS_PER_CORE * cores),
            "born": {},
            "since": {},
            "dropped": {"operators": {}, "tables": {}},
            **described,
        }
        checkpoint.write_program(known)
        return _in_shards(checkpoint, known, shards)
    try:
        found = difference(known, described)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"what checkpoint {checkpoint.path} says of its program makes no sense "
            f"({type(error).__name__}: {error}): it was not written by millstream; use another"
        ) from error
    gone = [name for name in found.removed if name not in remove]
    if found.refused or gone:
        latest = checkpoint.latest()
        since = f"batch {latest.batch}" if latest else "its creation"
        changes = sorted([*found.refused, *(_told_gone(known, name) for name in gone)])
        hint = ""
        if gone:
            names = ", ".join(map(repr, gone))
            hint = (
                f". What is gone takes its state along only if that is said: remove=[{names}] "
                f"({' '.join(f'--remove {_quoted(name)}' for name in gone)})"
            )
        raise CheckpointError(
            f"the program has changed since {since} of checkpoint {checkpoint.path}: "
            f"{'; '.join(changes)}{hint}. Either undo the change, or start afresh with another "
            "checkpoint= (--checkpoint) and output directory"
        )
    known["shards"] = shards_of(checkpoint.latest(), known)
    return _in_shards(checkpoint, known, shards)


def _in_shards(checkpoint: Checkpoint, known: dict[str, Any], shards: int | None) -> dict[str, Any]:
    """The same program; another number of shards than it has is refused."""
    if shards is not None and shards != known["shards"]:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} has {known['shards']} shards; leave out "
            f"shards={shards}, or stop the flow and change them with `millstream reshard "
            f"{checkpoint.path} --shards {shards}`"
        )
    return known


def _check_removed(described: dict[str, Any], remove: tuple[str, ...]) -> None:
    operators = described["operators"]
    there = {
        *operators,
        *(f"{name}.{agg}" for name, one in operators.items() for agg in one.get("aggregates", ())),
    }
    for name in remove:
        if name in there:
            raise ConfigError(
                f"remove={name!r}: the flow still has it; take it out of the program, or leave out "
                "remove="
            )


def _told_gone(known: dict[str, Any], name: str) -> str:
    return f"{'operator' if name in known['operators'] else 'aggregate'} {name!r} is gone"


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def check_owners(plan: Plan, checkpoint: Path, program: dict[str, Any] | None) -> None:
    """Refuse output directories in, or with the results of another, checkpoint; changes nothing."""
    check_apart(plan, checkpoint)
    for sink in plan.sinks():
        if isinstance(sink.spec, FileSink):
            check_owner(
                open_storage(sink.spec.directory), None if program is None else owner_of(program)
            )


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


def difference(known: dict[str, Any], now: dict[str, Any]) -> Difference:
    """What has changed from one description of a program to the next, as far as it matters."""
    refused = []
    if known["flow"] != now["flow"]:
        refused.append(f"it belongs to flow {known['flow']!r}, this is {now['flow']!r}")
    before, after = known["sources"], now["sources"]
    refused.extend(f"source {name!r} is gone" for name in before.keys() - after.keys())
    refused.extend(f"source {name!r} is new" for name in after.keys() - before.keys())
    removed = [name for name in known["operators"] if name not in now["operators"]]
    for what in ("sources", "operators"):
        for name in known[what].keys() & now[what].keys():
            one = what.removesuffix("s")
            refused.extend(_fields(f"{one} {name!r}", known[what][name], now[what][name]))
    for name in known["operators"].keys() & now["operators"].keys():
        before, after = known["operators"][name], now["operators"][name]
        if before["kind"] != after["kind"]:
            continue
        refused.extend(_cycles(name, before, after))
        refused.extend(_additions(name, known, now))
        aggs = after.get("aggregates", {})
        removed.extend(f"{name}.{agg}" for agg in before.get("aggregates", {}) if agg not in aggs)
    for name in now["operators"].keys() - known["operators"].keys():
        if now["operators"][name].get("from the start"):
            refused.append(
                f"operator {name!r} is new and works on changes: of rows that came before, it "
                "would only see that they go"
            )
    return Difference(sorted(refused), removed)


def _fields(what: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Fields that must stay and did not."""
    for field in sorted(before.keys() | after.keys()):
        was: Any = before.get(field)
        now: Any = after.get(field)
        if field == "family" and isinstance(was, str) and isinstance(now, str):
            same = all(before.get(n) == after.get(n) for n in ("keys", "kind"))
            if was != now and same:  # else that is said
                yield f"{what}: {_moved(_input(was, before), _input(now, after))}"
            continue
        if (
            field == "aggregates"
            and isinstance(was, dict)
            and isinstance(now, dict)
            and before.get("kind") == after.get("kind")
        ):
            changed = any(was[name] != now[name] for name in was.keys() & now.keys())
        elif field == "rows":
            yield from _unknown_columns(what, was or {}, now or {})
            continue
        elif field == "compared":  # not known of what an earlier version began
            changed = None not in (was, now) and was != now
        else:
            changed = was != now and field not in _SETTLED
        if changed:
            label = _LABELS.get(field, field)
            yield f"{what}: {label} was {_shown(was)}, is {_shown(now)}"


def _unknown_columns(
    what: str, was: dict[str, list[str]], now: dict[str, list[str]]
) -> Iterator[str]:
    """Columns that are read behind a step, and that the rows it has stored do not have."""
    for name in sorted(was.keys() & now.keys()):
        missing = sorted(set(now[name]) - set(was[name]))
        if missing:
            yield (
                f"{what}: {_shown(missing)} of {name!r} is read behind it, and the rows that it "
                "has stored so far do not have it; leave it out, or read all input again"
            )


def _moved(was: str, now: str) -> str:
    if was != now:
        return f"its input was {was!r}, is {now!r}"
    return (
        f"it shared what is stored with other windows over {was!r}, and differs from them now in "
        "its steps before, in nulls= or in partition="
    )


def _input(family: str, operator: dict[str, Any]) -> str:
    """The step an operator reads: panes are named after it and the key."""
    keys = " ".join(map(str, operator["keys"]))
    return family.partition(f" by {keys}" if keys else " for ")[0]


def _cycles(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    was, now = before.get("cycle"), after.get("cycle")
    if was is not None and was != now:
        yield (
            f"operator {name!r}: its cycle was {_shown(was)}, is {_shown(now)}, and events that "
            "wait belong to the whole cycle"
        )


def _additions(name: str, known: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Aggregates that an operator cannot take up, because what it has kept does not tell of them.

    Where panes are kept, windows that began before are known by their start, and get null.
    """
    before, after = known["operators"][name], now["operators"][name]
    fresh = [agg for agg in after.get("aggregates", {}) if agg not in before["aggregates"]]
    if not fresh:
        return
    what = f"operator {name!r}: {', '.join(fresh)} cannot be added to it"
    instead = "give the window with it another name, and it begins with what comes from now on"
    stored, family = known["families"][before["family"]], now["families"][after["family"]]
    if not set(after["keeps"]) <= set(before.get("keeps", after["keeps"])):
        yield f"{what}: values and panes of its open windows were not both kept; {instead}"
    elif not set(family["held"]) <= set(stored.get("held", [ALL])) and ALL not in stored["held"]:
        yield f"{what}: the values kept of its open windows lack a column; {instead}"
    elif not after["plain"] and not set(family["states"]) <= set(stored["states"]):
        yield f"{what}: its open windows have no panes that could tell; {instead}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
