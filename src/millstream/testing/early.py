"""Early answers without Spark: the same engine, tasks and looks, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from millstream.api.early import Bounds, Snapshot, looks
from millstream.api.flow import Flow
from millstream.durations import Duration
from millstream.run.early.target import target_for
from millstream.run.engines import engine_of
from millstream.run.exploring import steps_here
from millstream.run.planning import plan_flow
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint

_ASKED = ("confidence", "interval", "step", "seed", "publish", "metric", "ratios")


def snapshots_in_process(
    flow: Flow,
    checkpoint: str | Path,
    at: Iterable[float] | None = None,
    *,
    every: Duration | None = None,
    until: Bounds | None = None,
    parallelism: int = 1,
    **options: Any,
) -> Iterator[Snapshot]:
    """What `flow.snapshots` gives, one after the other; leaving the loop is a kill."""
    asked = looks(at, every, until, **{n: options.pop(n) for n in _ASKED if n in options})
    settings = Settings.from_options({"parallelism": parallelism, **options})
    plan = plan_flow(flow, Path(checkpoint))
    looking, place = target_for(plan, asked), Checkpoint(checkpoint)
    place.lock()
    engine, looker = engine_of(plan, place, settings, looking)
    yield from steps_here(engine, looker)
