"""What blocks gave the groups of the window that is looked at, from all batches so far.

Tasks of this batch have reported it just now, those of batches before, maybe before a kill, in the
checkpoint. Blocks count in the order in which they were drawn, and as whole batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from millstream.api.early import Looks
from millstream.operators.batch import Control
from millstream.operators.early.logs import Log
from millstream.ops.estimating.answers import Answers
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.run.batches.engine import Engine
from millstream.run.early.target import Target
from millstream.run.sources.files.blocks import BlocksTracker
from millstream.run.sources.files.population import Population


class Gathered:
    """The reports of all batches, added up."""

    def __init__(self, engine: Engine, target: Target, looks: Looks) -> None:
        self._engine, self._target, self._looks = engine, target, looks
        self._log = Log(engine.checkpoint.store, target.windows.name)
        self._answers: Answers | None = None
        self.read = self.batches = 0  # taken in so far
        self.complete = True  # all batches were reported

    @property
    def draws(self) -> bool:
        """Whether blocks are read at random; who only tries a flow reads its first records."""
        return all(isinstance(one, BlocksTracker) for one in self._engine.trackers.values())

    @property
    def tracker(self) -> BlocksTracker:
        """Who deals out the blocks."""
        (tracker,) = self._engine.trackers.values()
        assert isinstance(tracker, BlocksTracker)
        return tracker

    @property
    def population(self) -> Population:
        """All blocks."""
        return self.tracker.population

    @property
    def answers(self) -> Answers:
        """What blocks gave so far."""
        if self._answers is None:
            population = self.population
            self._answers = Answers(
                self._target.keys,
                self._target.windows.job.measures,
                population.starts,
                population.sizes[population.by_place],
                self._looks.metric,
                dict(self._looks.ratios),
            )
        return self._answers

    @property
    def progress(self) -> float:
        """The share of the input that was read."""
        return self.answers.blocks.progress

    def catch_up(self) -> None:
        """Add what batches before this one reported."""
        while self.batches <= self._engine.manifest.batch:
            if self._log.has(self.batches, "blocks"):
                self._add(partial(self._kept, self.batches))
            else:
                self.complete = False
                self.batches += 1

    def _kept(self, batch: int, kind: str) -> pa.Table | None:
        """What a batch reported; those of before tails were looked at have none."""
        if kind.startswith("tails") and not self._log.has(batch, kind):
            return None
        return self._log.read(batch, kind)

    def add(self, controls: list[Control]) -> None:
        """Add what the tasks of this batch report."""
        self._add(partial(self._target.windows.reported, controls))

    def _add(self, reported: Callable[[str], pa.Table | None]) -> None:
        table = reported("blocks")
        if table is not None:
            self.answers.add(table)
        for kind, name in self._target.windows.values.items():
            values = reported(kind)
            if values is not None:
                self.answers.add_values(name, values)
        self.batches += 1

    def count(self, read: int) -> None:
        """So many blocks have been read, whatever they gave."""
        self.answers.read(self.population.places[self.read : read])
        self.read = read

    # -- estimates ------------------------------------------------------------------------------

    @property
    def sure(self) -> Confidence:
        """How sure estimates are to be now."""
        return Confidence(self._looks.confidence, self._looks.interval, self.batches)

    def estimates(self) -> dict[str, Estimates]:
        """All aggregates of all groups; none if a batch was not reported."""
        if not self.complete:
            return {}
        estimate = partial(self.answers.estimates, self.sure)
        if self._looks.metric is None:
            return estimate()
        return self._engine.hands.ask("snapshots(metric=)", estimate)
