"""Starting a flow: all that can be found wrong before it runs is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.api.early import Looks, Snapshot
from millstream.api.sinks import Redis
from millstream.api.sources import Collector, Http
from millstream.io.mirrors import require_redis
from millstream.plan.stages import Plan
from millstream.run.batches.engine import Engine
from millstream.run.early.looker import Looker
from millstream.run.early.target import target_for
from millstream.run.engines import engine_of
from millstream.run.fleeting import forget_rows, make_fleeting, remove_fleeting
from millstream.run.handle import Handle
from millstream.run.planning import plan_flow
from millstream.run.program.program import check_owners, check_program
from millstream.run.sources.tracking import Tracker
from millstream.run.spark.session import check_java_and_master
from millstream.run.spark.sharing import Spark
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint

if TYPE_CHECKING:
    from millstream.api.flow import Flow


def check_ports(plans: Iterable[Plan]) -> None:
    """Who takes records from others can have its port and its token."""
    specs = [node.spec for plan in plans for node in plan.sources()]
    if posted := [spec for spec in specs if isinstance(spec, Http)]:
        # A web server, for who wants one.
        from millstream.run.sources.received.posting import check_places

        check_places(posted)
    if collectors := [spec for spec in specs if isinstance(spec, Collector)]:
        from millstream.run.sources.collector import listening  # likewise

        listening.check_places(collectors)


@dataclass(frozen=True)
class Ready:
    """A flow that can be started: its checkpoint is taken, and nothing was found wrong."""

    name: str
    engine: Engine
    settings: Settings
    looker: Looker | None
    fleeting: bool

    def begin(self, spark: Spark | None = None) -> Handle:
        """Run it on a thread; `spark`: where others run too."""
        return Handle(
            self.engine, self.settings, self.name, self.looker, fleeting=self.fleeting, spark=spark
        )

    def give_back(self) -> None:
        """Leave everything as it was."""
        self.engine.checkpoint.close()
        if self.fleeting:
            remove_fleeting(self.engine.checkpoint.path)


def start(
    flow: Flow,
    checkpoint: Path | None,
    settings: Settings,
    looks: Looks | None = None,
    plan: Plan | None = None,
) -> Handle:
    """Check everything, take the checkpoint, and run on a thread; `plan`: if it is known."""
    ready = make_ready(flow, checkpoint, settings, looks, plan)
    try:
        return ready.begin()
    except BaseException:
        ready.give_back()
        raise


def make_ready(
    flow: Flow,
    checkpoint: Path | None,
    settings: Settings,
    looks: Looks | None = None,
    plan: Plan | None = None,
    trackers: Callable[..., Tracker] | None = None,
) -> Ready:
    """Check everything and take the checkpoint; `trackers`: how sources are opened.

    Without one the state lies in a directory that is removed at the end.
    """
    with ExitStack() as undo:
        path = checkpoint
        if path is None:
            path = make_fleeting(settings)
            undo.callback(remove_fleeting, path)
        plan = plan or plan_flow(flow, path)
        looking = target_for(plan, looks)
        check_java_and_master(settings)
        if any(isinstance(sink.spec, Redis) for sink in plan.sinks()):
            require_redis()
        place = Checkpoint(path)
        place.lock()
        undo.callback(place.close)
        program = place.read_whole_program()
        if program is not None:
            check_program(plan, place, settings.shards, 1, settings.remove)
        check_owners(plan, place.path, program)
        place.latest()
        check_ports([plan])
        engine, looker = engine_of(plan, place, settings, looking, trackers)
        if checkpoint is None:
            forget_rows(plan)
        undo.pop_all()
    return Ready(flow.name, engine, settings, looker, checkpoint is None)


def plan_snapshots(flow: Flow, checkpoint: Path | None, looks: Looks) -> Plan:
    """Find every mistake that can be found before anything is started."""
    plan = plan_flow(flow, checkpoint)
    target_for(plan, looks)
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
