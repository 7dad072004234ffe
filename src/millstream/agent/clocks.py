"""The clock of a machine beside that of its collector: up to when times of records are believed.

An agent stamps and judges by its own clock. If that is two hours ahead, so are its records, and
none looks too far in the future there. With every answer the collector says what its clock is; the
times an agent reads are measured by that one, which between two answers goes on with the steady
clock here: so setting the wrong one right tells at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from millstream.durations import Duration, micros, rounded


@dataclass
class Clock:
    """How far the clock of this machine is ahead of the collector's, in microseconds."""

    skew: int  # so far it may be
    _heard: tuple[int, float] | None = None  # what the collector's said, and the steady clock then
    _told: str = ""

    @property
    def ahead(self) -> int:
        """Negative: behind; 0 as long as nothing is known."""
        return 0 if self._heard is None else int(time.time() * 1e6) - self._theirs()

    def _theirs(self) -> int:
        """What the collector's clock says now."""
        if self._heard is None:
            return int(time.time() * 1e6)
        said, then = self._heard
        return said + int((time.monotonic() - then) * 1e6)

    @property
    def wrong(self) -> bool:
        """Whether it is too far ahead."""
        return self.ahead > self.skew

    def compare(self, theirs: int) -> str | None:
        """Take in what the collector's says; gives what people should know, once."""
        self._heard = (theirs, time.monotonic())
        ahead = self.ahead
        side = "" if abs(ahead) <= self.skew else "ahead of" if ahead > 0 else "behind"
        before, self._told = self._told, side
        if side in ("", before):
            return None
        said = (
            f"the clock of this machine is {rounded(abs(ahead))} {side} the collector's; "
            "set it right. "
        )
        if side == "behind":
            return said + "Windows of all agents wait for times that are stamped here"
        return said + (
            f"Times more than {rounded(self.skew)} (clock_skew) ahead of the collector's clock "
            "move no watermark: such records stay in the windows of their times, and nobody waits "
            "for them"
        )

    def trusted(self, future: int) -> int:
        """Up to when times are believed, less `future`, which is added where they are looked at."""
        most = min(self.skew, future) if self.wrong else future
        return self._theirs() + most - future


def clock_of(skew: Duration) -> Clock:
    """A clock that may be so far ahead."""
    return Clock(micros(skew, "Collector(clock_skew=)", zero=True))
