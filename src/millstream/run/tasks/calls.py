"""Which user's function a task is in, and on what: read from its Python frames.

Nothing is noted while functions are called, so that knowing costs the loops around them nothing.
Whoever wants to know (a watchdog, a task that is tried again) looks at the stack: the loops that
call functions are known, and their local variables say the operator and the record or key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from millstream.api import programs
from millstream.io import programmed
from millstream.ops import records
from millstream.ops.aggregates import holding
from millstream.ops.codec import decode_key, decode_row
from millstream.ops.keys import partitioning
from millstream.ops.records import as_json, shown
from millstream.ops.sql import calling as called_in_sql
from millstream.ops.updates import kept, machine, processing
from millstream.ops.windows import answering, preparing, reducing, running
from millstream.run.tasks import pairing, steps, timing

_SHOWN = 300  # characters of a record or key in a message
Locals = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A function of a step, and what it was given."""

    operator: str
    given: str  # "record {...}", "key 'a'"


def _record(here: Locals) -> str:
    return f"record {as_json(here['chunk'].table.slice(here['index'], 1).to_pylist()[0])}"


def _event(here: Locals) -> str:
    packed = here.get("packed")
    value = "" if packed is None else f", value {as_json(decode_row(packed))}"
    return f"key {shown(here['cell'].key)}{value}"


def _empty(here: Locals) -> str:
    return "zero(), for an empty state"


# What each loop was about when it called a function, by its local variables.
_LOOPS: dict[CodeType, Callable[[Locals], str]] = {
    records.apply.__code__: _record,
    processing.process.__code__: lambda here: f"record {as_json(here['row'])}",
    pairing._call_map.__code__: _record,
    timing._call_at.__code__: _record,
    called_in_sql.UserCall.call.__code__: lambda here: (
        f"{here['self'].function.name}() of {shown(tuple(here['args']))}"
    ),
    steps._map_batches.__code__: lambda here: f"a table of {len(here['chunk']):,} records",
    machine.Machine.call.__code__: _event,
    machine.Machine.call_plain.__code__: _event,
    kept.Keeper.merge.__code__: _event,
    reducing.call_reducer.__code__: lambda here: f"key {shown(here['key'])}",
    answering.call_each.__code__: lambda here: f"{here['name']!r} of {shown(here['one'])}",
    holding.ObjectKernel.lift.__code__: lambda here: f"value {shown(here['value'])}",
    holding.ObjectKernel.lift_pairs.__code__: lambda here: (
        f"{here['stop'] - here['start']:,} values of key {shown(decode_key(here['key']))}"
    ),
    holding.ObjectKernel.minus.__code__: lambda here: (
        f"uncombine of {shown(here['total'])} and {shown(here['expired'])}"
    ),
    holding.ObjectKernel._combine.__code__: lambda here: (
        f"combine of {shown(here['left'])} and {shown(here['right'])}"
    ),
    running._Total.start.__code__: _empty,
    running._Total.forget.__code__: _empty,
    preparing._filled.__code__: _empty,
    programs.MapSplit.close.__code__: lambda here: "close(), at the end of a piece of input",
    programs._begun.__code__: lambda here: "setup()",
    programmed._placed.__code__: lambda here: f"file {here['path']} {here['after']}",
    partitioning.shards_of.__code__: lambda here: f"partition of key {shown(here['key'])}",
}
# What tells one turn of a loop from the next; other functions of the table are called per call.
_TURNS = ("index", "at", "us", "src", "pos", "last")


def calls_functions(code: CodeType) -> bool:
    """Whether this code calls users' functions."""
    return code in _LOOPS


def calling(frame: FrameType | None) -> tuple[FrameType, FrameType | None] | None:
    """The frame that called a user's function, and the frame it called, if that has one."""
    below: FrameType | None = None
    while frame is not None:
        if frame.f_code in _LOOPS:
            return frame, below
        frame, below = frame.f_back, frame
    return None


def turn_of(frame: FrameType) -> tuple[int, ...]:
    """What is different in the next turn of a loop that calls functions."""
    found = (frame.f_locals.get(name) for name in _TURNS)
    return tuple(one for one in found if isinstance(one, int))


def described(frame: FrameType) -> Call:
    """The operator and what its function was given, from a frame that calls functions."""
    try:
        given = _LOOPS[frame.f_code](frame.f_locals)
    except Exception:  # it may be between two records, or a record cannot be shown
        given = "unknown input"
    text = given if len(given) <= _SHOWN else given[:_SHOWN] + "..."
    return Call(_operator(frame), text.replace("\n", "\\n"))


def _operator(frame: FrameType | None) -> str:
    """The step whose function it is: named by the nearest frame that knows one."""
    while frame is not None:
        here = frame.f_locals
        owner = getattr(here.get("self"), "job", None)
        known = [here.get(name) for name in ("node", "job", "around", "source", "program")]
        for one in (*known, owner):
            name = getattr(one, "name", None)
            if isinstance(name, str):
                return name
        if isinstance(here.get("operator"), str):
            return str(here["operator"])
        frame = frame.f_back
    return "the flow"
