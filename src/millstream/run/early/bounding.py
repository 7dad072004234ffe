"""What ends early answers: an error that is small enough, or a time that is up.

As long as an error is too large, it says how many blocks would do, and the next batch reads these.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from millstream.api.early import Bounds
from millstream.ops.estimating.estimates import Estimates
from millstream.run.batches.engine import Engine
from millstream.run.early.gathering import Gathered

_MARGIN = 1.05  # more blocks than seem to be enough


class Bounded:
    """The bounds of a run that has begun."""

    def __init__(self, engine: Engine, gathered: Gathered, until: Bounds) -> None:
        self._engine, self._gathered, self._until = engine, gathered, until
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def by_time(self) -> str | None:
        """The bound, if its time is up."""
        within = self._until.within
        if within is not None and self.elapsed * 1e6 >= within:
            return str(replace(self._until, error=None))
        return None

    def by_error(self, found: dict[str, Estimates]) -> str | None:
        """The bound, if these estimates are good enough; else the next batch aims at that."""
        until = self._until
        if until.error is None or not found:
            return None
        errors = np.sort(np.concatenate([_errors(one) for one in found.values()]))
        if not len(errors):
            return None
        error = float(errors[int(np.ceil(until.share * len(errors))) - 1])
        if error <= until.error:
            return str(replace(until, within=None))
        self._aim_at(error / until.error)
        return None

    def notes(self, found: dict[str, Estimates]) -> list[str]:
        """Why no error is small enough, where that is so: none is a share of 0."""
        until = self._until
        if until.error is None:
            return []
        zero = {name: (one.value == 0) & (one.lower < one.upper) for name, one in found.items()}
        every, some = (sum(map(count, zero.values())) for count in (len, np.sum))
        if some <= every - np.ceil(until.share * every):
            return []
        return [
            f"{', '.join(name for name, one in zero.items() if one.any())}: no error is a share of "
            f"an estimate of 0, so while there is one {replace(until, within=None)} does not end "
            "this; say share= to leave some out, or a time limit"
        ]

    def _aim_at(self, times: float) -> None:
        """Let the next batch read as much as makes errors so many times smaller, if it may be so.

        They go with the root of the number of blocks. A batch more than needed costs as much as
        some hundred thousand rows.
        """
        tracker = self._gathered.tracker
        count = len(tracker.population.blocks)
        if not np.isfinite(times):
            tracker.aim = None
            return
        draws = self._gathered.answers.blocks.draws * times**2
        tracker.aim = int(np.ceil(_MARGIN * draws * count / (count + draws)))
        more = tracker.population.blocks[self._gathered.read : tracker.aim]
        weight = sum(tracker.weigh(tracker.population.split(0, block)) for block in more)
        if self._until.within is not None:
            return  # a batch that is under way when time is up is waited for
        self._engine.pace.aim_at(weight)


def _errors(found: Estimates) -> Any:
    """How far bounds are from estimates, as a share of these; infinite where there are none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.maximum(found.upper - found.value, found.value - found.lower)
        errors = np.where(far == 0, 0.0, far / np.abs(found.value))
    return np.where(np.isnan(errors), np.inf, errors)
