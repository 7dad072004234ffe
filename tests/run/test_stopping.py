"""A stop that takes too long says what may hold it up, and blames no function without need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.planning import plan_flow
from millstream.run.spark.onspark import OnSpark
from millstream.run.spark.stopping import too_late


def _update(event: Any, slate: Any, ctx: Any) -> None:
    slate["n"] = 1


def _told(build: Callable[[ms.Stream], ms.Stream], sink: Any = None, begun: bool = True) -> str:
    flow = ms.Flow("slow")
    stream = build(flow.source(ms.Rate(5, limit=10), name="rate"))
    stream.sink(sink or ms.Memory(), name="sink")
    return too_late("slow", plan_flow(flow), begun, 4.0)


@pytest.mark.parametrize(
    ("build", "sink", "named"),
    [
        (lambda s: s.map(lambda row: row).named("mine"), None, "the function of 'mine' may take"),
        (lambda s: s, ms.Call(print), "the function of 'sink' may take"),
        (
            lambda s: (
                s.map(lambda row: row).named("mine").key_by("value").update(_update, name="u")
            ),
            None,
            "functions of 'mine', 'u' may take",
        ),
    ],
)
def test_steps_with_functions_are_named(build: Any, sink: Any, named: str) -> None:
    said = _told(build, sink)
    assert named in said and "its batch was not done in time (stop_timeout=4 s)" in said


def test_without_functions_none_is_blamed() -> None:
    said = _told(lambda s: s.where("value > 1").key_by().agg(n=ms.count(), m=ms.mean("value")))
    assert "function" not in said and "it is large, or this machine is busy" in said
    said = _told(lambda s: s.where("value > 1"), begun=False)
    assert "its start was not done" in said and "Spark was still starting" in said


@pytest.mark.spark
def test_a_job_is_cancelled_also_after_a_look_at_another_program(spark: Any) -> None:
    def sleeps(things: Iterable[int]) -> list[int]:
        time.sleep(120)
        return list(things)

    flow = ms.Flow("slow")
    flow.source(ms.Rate(5, limit=10), name="rate").sink(ms.Memory())
    make = partial(OnSpark, spark, plan_flow(flow), Path("ck"), None)
    running, only_looked_at = make(), make()
    only_looked_at.close()  # as `replace(dry_run=True)` does
    running_now = spark.statusTracker().getActiveJobsIds

    def cancel() -> None:
        while not running_now():
            time.sleep(0.01)
        only_looked_at.cancel()
        running.cancel()

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    with pytest.raises(ms.RunError):
        running.probe("rate", sleeps, [1])
    canceller.join()
    running.close()
