"""Starting a flow: all that can be found wrong before it runs is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.api.early import Looks, Snapshot
from millstream.api.sinks import Redis
from millstream.api.sources import Collector, Http
from millstream.io.mirrors import require_redis
from millstream.plan.stages import Plan
from millstream.run.early import engine_of
from millstream.run.fleeting import forget_rows, make_fleeting, remove_fleeting
from millstream.run.handle import Handle
from millstream.run.looked import looked_for
from millstream.run.planning import plan_flow
from millstream.run.program import check_owners, check_program
from millstream.run.session import (
    check_surroundings,
)
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint

if TYPE_CHECKING:
    from millstream.api.flow import Flow


def _check_ports(plan: Plan) -> None:
    """Who takes records from others can have its port and its token."""
    specs = [node.spec for node in plan.sources() if isinstance(node.spec, Http)]
    if specs:
        from millstream.run.posting import check_places  # a web server, for who wants one

        check_places(specs)
    collectors = [node.spec for node in plan.sources() if isinstance(node.spec, Collector)]
    if collectors:
        from millstream.run import listening  # likewise

        listening.check_places(collectors)


def start(
    flow: Flow,
    checkpoint: Path | None,
    settings: Settings,
    looks: Looks | None = None,
    plan: Plan | None = None,
) -> Handle:
    """Check everything, take the checkpoint, and run on a thread; `plan`: if it is known.

    Without a checkpoint the state lies in a directory that is removed at the end.
    """
    if checkpoint is not None:
        return _start(flow, checkpoint, settings, looks, plan)
    place = make_fleeting(settings)
    try:
        return _start(flow, place, settings, looks, plan, fleeting=True)
    except BaseException:
        remove_fleeting(place)
        raise


def _start(
    flow: Flow,
    checkpoint: Path,
    settings: Settings,
    looks: Looks | None,
    plan: Plan | None,
    *,
    fleeting: bool = False,
) -> Handle:
    plan = plan or plan_flow(flow, checkpoint)
    looking = looked_for(plan, looks)
    check_surroundings(settings)
    if any(isinstance(sink.spec, Redis) for sink in plan.sinks()):
        require_redis()
    place = Checkpoint(checkpoint)
    place.lock()
    try:
        program = place.read_whole_program()
        if program is not None:
            check_program(plan, place, settings.shards, 1, settings.remove)
        check_owners(plan, place.path, program)
        place.latest()
        _check_ports(plan)
        engine, looker = engine_of(plan, place, settings, looking)
        if fleeting:
            forget_rows(plan)
        return Handle(engine, settings, flow.name, looker, fleeting=fleeting)
    except BaseException:
        place.close()
        raise


def plan_snapshots(flow: Flow, checkpoint: Path | None, looks: Looks) -> Plan:
    """Find every mistake that can be found before anything is started."""
    plan = plan_flow(flow, checkpoint)
    looked_for(plan, looks)
    return plan


def snapshots(
    flow: Flow, checkpoint: Path | None, settings: Settings, looks: Looks, plan: Plan
) -> Iterator[Snapshot]:
    """Run a flow and give its snapshots; whoever stops asking for them stops it."""
    handle = start(flow, checkpoint, settings, looks, plan)
    try:
        yield from handle.snapshots()
        handle.wait()
    finally:
        if handle.running:
            handle.stop()
