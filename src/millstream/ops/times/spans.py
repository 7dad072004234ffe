"""Windows as arithmetic on panes.

A window of `size` that moves by `slide` is cut into panes of gcd(size, slide), numbered from the
epoch. In units of panes a window *ends at* E and covers panes [E - panes, E); ends are `step`
panes apart. Everything about open, closed and late follows from that, with integers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from millstream.durations import text
from millstream.ops.chunks import Int64
from millstream.ops.times.calendars import Calendar
from millstream.ops.times.progress import BEGIN, END

_OPEN_END = 2**61  # a pane number no data reaches: "all windows may close"
_NOTHING_CLOSED = -(2**61)
_FAR = 2**40  # no pane of a calendar


@dataclass(frozen=True)
class Span:
    """The pane arithmetic of one window kind; `slide` 0 stands for one window over everything.

    `unit` makes panes finer than they need be, so that windows of several sizes can share them.
    """

    size: int
    slide: int
    unit: int = 0
    calendar: Calendar | None = None  # panes are its days, weeks or months, not all equally long

    @property
    def pane(self) -> int:
        """Microseconds of one pane."""
        return self.unit or (math.gcd(self.size, self.slide) if self.slide else 1)

    @property
    def pane_text(self) -> str:
        """How long one is, for people: months are not all equally long."""
        if self.calendar is not None and self.calendar.months:
            return f"{self.calendar.size}mo"
        return text(self.pane)

    @property
    def panes(self) -> int:
        """Panes in a window."""
        return self.size // self.pane if self.slide else 1

    @property
    def step(self) -> int:
        """Panes between the ends of neighbouring windows."""
        return self.slide // self.pane if self.slide else 1

    @property
    def whole(self) -> bool:
        """One window over all of the (bounded) input."""
        return self.slide == 0

    def pane_of(self, ts: Int64) -> Int64:
        """The pane of each time."""
        if self.calendar is not None:
            return self.calendar.pane_of(ts)
        return np.zeros(len(ts), np.int64) if self.whole else ts // self.pane

    def pane_at(self, at: int) -> int:
        """The pane that holds one moment."""
        return at // self.pane if self.calendar is None else self.calendar.pane_at(at)

    def moment(self, pane: int) -> int:
        """When a pane begins."""
        if self.calendar is None or not -_FAR < pane < _FAR:
            return pane * self.pane
        return int(self.calendar.starts(np.array([pane]))[0])

    def moments(self, panes: Int64) -> Int64:
        """When panes begin."""
        return panes * self.pane if self.calendar is None else self.calendar.starts(panes)

    def align_down(self, end: Int64) -> Int64:
        """The last window end at or before each pane boundary."""
        return end - (end - self.panes) % self.step

    def next_end(self, pane: int) -> int:
        """The first window end at or after the beginning of a pane."""
        return int(self.align_down(np.array([pane + self.step - 1]))[0])

    def last_end(self, panes: Int64) -> Int64:
        """The end of the last window that holds each pane."""
        return self.align_down(panes + self.panes)

    def covered(self, panes: Int64) -> np.ndarray:
        """Which panes lie in any window at all (hopping windows leave gaps)."""
        return self.last_end(panes) > panes

    def closes_at(self, watermark: int) -> int:
        """The last window end (in panes) that a watermark closes."""
        if watermark >= END:
            return _OPEN_END
        if self.whole or watermark <= BEGIN:
            return _NOTHING_CLOSED
        return int(self.align_down(np.array([self.pane_at(watermark)]))[0])

    def output_watermark(self, watermark: int) -> int:
        """The watermark of the results: their time is the window's end less a microsecond."""
        if watermark >= END or watermark <= BEGIN:
            return watermark
        if self.whole:
            return BEGIN
        return self.moment(self.closes_at(watermark) + self.step) - 1


NOTHING_CLOSED = _NOTHING_CLOSED
