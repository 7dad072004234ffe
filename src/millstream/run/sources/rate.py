"""Rates as a source: records that exist because time passes."""

from __future__ import annotations

import time

from millstream.api.sources import Rate
from millstream.ops.times.progress import Horizon
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.splits import AnySplit, RateSplit
from millstream.state.manifests import SourceState

_RECORD_BYTES = 16  # of what a rate gives: a time and a number


class RateTracker(Tracker):
    """Records that exist because time passes."""

    def __init__(self, number: int, spec: Rate, state: SourceState) -> None:
        self.number, self.spec = number, spec
        self.ended = False
        self.next: int = state.extra.get("next", 0)
        self.origin: int = state.extra.get("origin", int(time.time() * 1e6))
        self.interval = 1e6 / spec.rows_per_second
        self.available = self.next

    def poll(self, probe: object = None) -> None:
        elapsed = time.time() * 1e6 - self.origin
        self.available = int(elapsed / self.interval)
        if self.spec.limit is not None:
            self.available = min(self.available, self.spec.limit)
            self.ended = self.next >= self.spec.limit

    def pending(self) -> int:
        waiting: int = self.available - self.next
        return max(0, waiting) * _RECORD_BYTES

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        end = min(self.available, self.next + rows)
        step = max(1, -(-(end - self.next) // parts))
        splits: list[AnySplit] = [
            RateSplit(self.number, start, min(end, start + step), self.origin, self.interval)
            for start in range(self.next, end, step)
        ]
        self.next = max(self.next, end)
        self.ended = self.spec.limit is not None and self.next >= self.spec.limit
        return splits

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        return self.take(size // _RECORD_BYTES, size, parts)

    def horizon(self, now: int, since: int = 0) -> Horizon:
        return Horizon()

    def save(self, state: SourceState) -> None:
        state.extra = {"next": self.next, "origin": self.origin}
