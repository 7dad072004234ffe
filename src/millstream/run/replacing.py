"""Replacing the program of a running flow: what would change, and what is not possible, and why.

Sources stay as they are, because they are being read. What is asked of the rest is what is asked of
a program at its start (`program/program.py`), and what it means for stored state is the same too
(`program/adopting.py`); the engine makes the change between two batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from millstream.api.sinks import FileSink, Redis
from millstream.api.sources import Collector
from millstream.api.sources.kafka import Kafka
from millstream.api.tables import TableSink
from millstream.errors import CheckpointError, RunError
from millstream.graph import nodes as graph
from millstream.io.formats import Format
from millstream.plan.planner import make_plan
from millstream.plan.stages import Plan
from millstream.run.batches.engine import Engine
from millstream.run.program.describing import describe_program
from millstream.run.program.differing import difference
from millstream.run.program.program import known_panes
from millstream.state.checkpoint import Checkpoint

if TYPE_CHECKING:
    from millstream.api.flow import Flow


@dataclass(frozen=True)
class Replacement:
    """What a new program changes: sources, keyed operators and sinks by name.

    `notes` say what becomes of state: what is filled from when on, and what is dropped.
    `batch` is the last one of the program before.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    batch: int = -1

    def __str__(self) -> str:
        lines = [
            f"{what:8} {', '.join(names)}"
            for what, names in (
                ("added", self.added),
                ("removed", self.removed),
                ("kept", self.kept),
            )
            if names
        ]
        return "\n".join([*lines, *(f"note     {note}" for note in self.notes)])


@dataclass(frozen=True)
class Request:
    """Another flow, and who waits for what becomes of it."""

    flow: Flow
    dry_run: bool
    answer: Future[Replacement] = field(default_factory=Future)


class Requests:
    """Other flows for a running one: asked for by any thread, answered between two batches."""

    def __init__(self, flow: str, asked: threading.Event) -> None:
        self._flow, self._asked = flow, asked
        self._waiting: deque[Request] = deque()
        self._ended, self._lock = False, threading.Lock()

    def ask(self, flow: Flow, dry_run: bool) -> Replacement:
        """Ask, and wait for what becomes of it."""
        request = Request(flow, dry_run)
        with self._lock:
            if self._ended:
                raise RunError(
                    f"flow {self._flow!r} has ended; start it again with the changed program"
                )
            self._waiting.append(request)
        self._asked.set()
        return request.answer.result()

    def answer(self, engine: Engine, replace: Callable[[Request], Replacement]) -> None:
        """Between two batches: put other flows in the place of this one."""
        while self._waiting:
            request, before = self._waiting.popleft(), engine.plan
            try:
                request.answer.set_result(replace(request))
            except Exception as error:
                request.answer.set_exception(error)
                if engine.plan is not before:
                    raise  # the change is made, and something after it failed

    def refuse(self) -> None:
        """The flow has ended."""
        with self._lock:
            self._ended = True
            while self._waiting:
                self._waiting.popleft().answer.set_exception(
                    RunError(f"flow {self._flow!r} ended before it could be replaced")
                )


def replace_program(
    engine: Engine,
    name: str,
    nodes: tuple[graph.Node, ...],
    prepare: Callable[[Plan], None],
    *,
    dry_run: bool,
) -> Replacement:
    """Put another program in the place of the running one, or only say what that would change."""
    before, batch = engine.plan, engine.manifest.batch
    plan = plan_replacement(before, engine.checkpoint, name, nodes)
    notes = engine.replace(plan, lambda: prepare(plan), dry_run=dry_run)
    if not dry_run:
        for node in (one for one in plan.sources() if isinstance(one.spec, Collector)):
            messages = getattr(engine.trackers[node.name], "messages", None)  # a test has none
            if messages is not None:
                messages.code = node.spec.code
    return describe(before, plan, notes, batch)


def plan_replacement(
    running: Plan, checkpoint: Checkpoint, name: str, nodes: tuple[graph.Node, ...]
) -> Plan:
    """The plan of a flow that is to take the place of a running one; refused if it cannot."""
    changed = [f"it belongs to flow {running.flow!r}, this is {name!r}"] * (name != running.flow)
    changed.extend(_sources(running, nodes))
    if changed:
        raise _refused(changed)
    formats = {name: _whole(fmt) for name, fmt in running.formats.items()}
    plan = make_plan(name, nodes, formats, *known_panes(checkpoint.path))
    program = checkpoint.read_whole_program()
    assert program is not None  # it was written at the start
    found = difference(program, describe_program(plan))
    if found.refused:
        raise _refused(found.refused)
    return plan


def describe(before: Plan, after: Plan, notes: list[str], batch: int) -> Replacement:
    """What is added, removed and kept."""
    old, new = _holding(before), _holding(after)
    return Replacement(
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name in old),
        (*notes, *_moved(before, after)),
        batch,
    )


def _holding(plan: Plan) -> list[str]:
    kinds = graph.Source | graph.Keyed | graph.Sink
    return [node.name for node in plan.nodes if isinstance(node, kinds)]


def _moved(before: Plan, after: Plan) -> list[str]:
    """Sinks that go elsewhere from now on."""
    old = {sink.name: sink.spec for sink in before.sinks()}
    return [
        f"sink {sink.name} is now {sink.spec}"
        for sink in after.sinks()
        if isinstance(sink.spec, FileSink | Kafka | Redis | TableSink)
        and old.get(sink.name, sink.spec) != sink.spec
    ]


def _sources(running: Plan, nodes: tuple[graph.Node, ...]) -> list[str]:
    """Why the sources of a running flow are not those of a new program."""
    old = {node.name: node.spec for node in running.sources()}
    new = {node.name: node.spec for node in nodes if isinstance(node, graph.Source)}
    found = [f"source {name!r} is gone" for name in old.keys() - new.keys()]
    found.extend(f"source {name!r} is new" for name in new.keys() - old.keys())
    if not found and list(old) != list(new):
        found.append(f"sources were declared as {', '.join(old)}, are as {', '.join(new)}")
    for name in old.keys() & new.keys():
        found.extend(f"source {name!r}: {one}" for one in _differences(old[name], new[name]))
    if found:
        found.append("sources are being read and stay; to change them stop the flow and start it")
    return found


def _differences(was: Any, now: Any) -> list[str]:
    """The options of a source that differ; a function that was loaded again is taken as equal."""
    if type(was) is not type(now):
        return [f"kind was {type(was).__name__}, is {type(now).__name__}"]
    found = []
    for option in (one for one in fields(was) if one.compare):
        before, after = getattr(was, option.name), getattr(now, option.name)
        again = callable(before) and callable(after)
        if not again and before != after and str(before) != str(after):
            found.append(f"{option.name} was {before!s}, is {after!s}")
    return found


def _whole(fmt: Format) -> Format:
    """A format as it was before columns were left out for the running plan."""
    return replace(fmt, columns=None)


def _refused(reasons: list[str]) -> CheckpointError:
    return CheckpointError(
        f"this program cannot take the place of the running one: {'; '.join(reasons)}. Nothing was "
        "changed, and the flow goes on. What has another key, window or meaning needs another name"
    )
