"""Early answers without Spark: the same engine, tasks and looks, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from millstream.api.early import Bounds, Snapshot, looks
from millstream.api.flow import Flow
from millstream.durations import Duration
from millstream.run.early import Looker, trackers_of
from millstream.run.engine import Engine
from millstream.run.executors import InProcess
from millstream.run.looked import looked_at
from millstream.run.planning import plan_flow
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint

_ASKED = ("confidence", "interval", "step", "seed", "publish")


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
    looked = looked_at(plan_flow(flow, Path(checkpoint)), asked.step)
    place = Checkpoint(checkpoint)
    place.lock()
    engine = Engine(looked.plan, place, settings, trackers=trackers_of(asked))
    looker = Looker(engine, looked, asked)
    try:
        engine.open(parallelism)
        executor = InProcess(looked.plan, parallelism)
        enough = looker.at_start()
        while True:
            while not looker.found.empty():
                if (found := looker.found.get()) is not None:
                    yield found
            if enough:
                break
            worked = engine.step(executor)
            enough = looker.after_step()
            if not worked and not enough:
                time.sleep(settings.poll)
    finally:
        engine.close()
