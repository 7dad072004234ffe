"""The engine of a flow, and who looks at it while it runs, if somebody does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millstream.api.early import Looks
from millstream.plan.stages import Plan
from millstream.run.batches.engine import Engine
from millstream.run.early.looker import Looker
from millstream.run.early.target import Target
from millstream.run.sources.trackers import make_tracker
from millstream.run.sources.tracking import Tracker
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint


def engine_of(
    plan: Plan,
    place: Checkpoint,
    settings: Settings,
    looking: tuple[Looks, Target] | None,
    trackers: Callable[..., Tracker] | None = None,
) -> tuple[Engine, Looker | None]:
    """An engine for a plan, and who looks at it, if somebody does.

    trackers: how sources are opened; if it is not said and somebody looks, in a random order of
    blocks.
    """
    if looking is None:
        return Engine(plan, place, settings, trackers=trackers or make_tracker), None
    looks, target = looking
    by_blocks = partial(make_tracker, looks=looks)
    engine = Engine(target.plan, place, settings, trackers=trackers or by_blocks)
    return engine, Looker(engine, target, looks)
