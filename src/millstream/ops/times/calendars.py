"""Windows that begin by a calendar: days, weeks and months of a zone, or any size with an offset.

Panes are numbered as everywhere (`spans.py`); only where each begins is not a product but looked
up. A day of a zone goes from one midnight of its clocks to the next, whatever happens in between. A
midnight that is skipped is the end of the gap, and of one that comes twice the first is meant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millstream.ops.chunks import Int64
from millstream.ops.zones import localize

MONTH = 30 * 86_400_000_000  # how long one is about


@dataclass(frozen=True)
class Calendar:
    """Periods side by side, of `size` microseconds on the clock of the zone, or so many months."""

    size: int
    months: bool = False
    offset: int = 0  # microseconds on that clock after 1970-01-01 00:00 when one begins
    zone: str = "UTC"

    @property
    def width(self) -> int:
        """How long a period is, in microseconds; of months about."""
        return self.size * MONTH if self.months else self.size

    def starts(self, panes: Int64) -> Int64:
        """When periods begin, UTC."""
        if self.months:
            wall = (panes * self.size).astype("datetime64[M]").astype("datetime64[us]")
            return localize(wall.astype(np.int64), self.zone)
        return localize(panes * self.size + self.offset, self.zone)

    def pane_at(self, at: int) -> int:
        """The number of the period that holds a moment."""
        return int(self.pane_of(np.array([at], np.int64))[0])

    def pane_of(self, ts: Int64) -> Int64:
        """The number of the period that holds each moment."""
        about = self._about(ts)
        if self.zone == "UTC" or not len(ts):
            return about
        # No clock is off by as much as a day, nor a period shorter: one up or down is enough.
        low, high = int(about.min()) - 1, int(about.max()) + 1
        if high - low > len(ts) + 1_000:
            later, earlier = self.starts(about + 1) <= ts, self.starts(about) > ts
            return about + later - earlier
        bounds = self.starts(np.arange(low, high + 1))
        found: Int64 = low + np.searchsorted(bounds, ts, side="right") - 1
        return found

    def _about(self, ts: Int64) -> Int64:
        """The same on a clock that shows UTC."""
        if self.months:
            months = ts.view("datetime64[us]").astype("datetime64[M]").astype(np.int64)
            return months // self.size
        return (ts - self.offset) // self.size
