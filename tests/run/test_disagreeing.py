"""A batch whose tasks do not agree is tried again, but not for ever."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.operators.batch import Batch
from millstream.run.batches.attempts import TRIES
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit, Item
from millstream.testing import Driver


class Losing(InProcess):
    """Some of its runs end as if an executor had been lost half-way."""

    losses = 0
    runs = 0

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        self.runs += 1
        items = super().run(batch, parts)
        if self.runs <= self.losses:
            controls = [payload for _, tag, _, payload in items if tag == "control"]
            controls[-1].upstream = "others"
        return items


def driver() -> Driver:
    flow = ms.Flow("again")
    stream = flow.source(ms.Files("nowhere", time="ts"), name="in").key_by("key")
    stream.window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory(), name="out")
    made = Driver(flow, parallelism=2, now=200.0)
    made._executor = Losing(made.engine.plan, 2)
    return made.push("in", [{"ts": 100.0, "key": n} for n in range(5)])


def test_it_is_tried_again() -> None:
    with driver() as mine:
        mine._executor.losses = TRIES - 1
        mine.step()
        assert mine._executor.runs == TRIES
        assert mine.engine.manifest.batch == 0
        mine.end()
        assert sum(row["n"] for row in mine.output()) == 5


def test_then_it_is_an_error_and_nothing_is_committed() -> None:
    with driver() as mine:
        mine._executor.losses = 1_000
        with pytest.raises(ms.MillstreamError, match="batch 0 did not agree, 8 times in a row"):
            mine.step()
        assert mine._executor.runs == TRIES
        assert mine.engine.manifest.batch == -1
        assert not list((mine._path / "state").rglob("*.arrow"))
