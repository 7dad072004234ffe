"""Whether a program may go on from a checkpoint: compared before anything starts, written once.

`describing.py` says what is kept of a program, `differing.py` what may change of it.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from millstream.api.sinks import FileSink
from millstream.errors import CheckpointError, ConfigError
from millstream.io.claims import Lease, check_owner
from millstream.plan.outputs import check_apart
from millstream.plan.stages import Plan
from millstream.run.program.describing import describe_program, panes_of
from millstream.run.program.differing import difference
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import shards_of
from millstream.state.segments import safe_name
from millstream.state.storage import open_storage

_SHARDS_PER_CORE = 4
LEAST_SHARDS = 8
_OF_ITSELF = ("format", "id", "epoch", "lease")  # what a checkpoint has whatever its program is


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


def _binds_nothing(checkpoint: Checkpoint, program: dict[str, Any]) -> bool:
    """Whether nothing was committed, nor received and promised to be: any program may begin."""
    if checkpoint.begun():
        return False
    if not checkpoint.store.shared and checkpoint.store.exists("published"):
        return False
    return not any(
        checkpoint.spool.within(safe_name(name)).names() for name in program.get("sources", {})
    )


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
    _refuse_changes(checkpoint, known, described, remove)
    known["shards"] = shards_of(checkpoint.latest(), known)
    return _in_shards(checkpoint, known, shards)


def check_unchanged(plan: Plan, checkpoint: Checkpoint) -> None:
    """Refuse what a start would refuse of a changed program; changes nothing."""
    known = checkpoint.read_whole_program()
    if known is not None and not _binds_nothing(checkpoint, known):
        _refuse_changes(checkpoint, known, describe_program(plan), ())


def _refuse_changes(
    checkpoint: Checkpoint,
    known: dict[str, Any],
    described: dict[str, Any],
    remove: tuple[str, ...],
) -> None:
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
