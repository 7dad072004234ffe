"""The clock of arrival: wall-clock time that never goes back and does not believe every jump.

Arrival times decide which window a record is in and when that leaves. So a clock that is set back
must not move records into windows that have left, and one that shows another year for a moment must
not close all windows until then. What no clock can rightly show is never believed: a time that does
not fit into a manifest would leave a checkpoint nobody can read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from millstream.errors import ConfigError

LAST = 32_503_680_000_000_000  # microseconds: the year 3000 begins
_JUMP = 60_000_000  # microseconds by which a clock may be corrected at once
_BELIEVED = 10_000_000  # how long it must have shown another time before that is taken as true


def _steady() -> float:
    """Seconds of a clock nobody sets; it goes on while the machine sleeps, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _shown(at: int) -> str:
    year = 1970 + int(at // 31_556_952_000_000)
    return f"the clock of this machine shows the year {year}, expected 1970 to 2999"


class ArrivalClock:
    """Microseconds since the epoch; each time is at least the one before."""

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _steady
    ) -> None:
        self._wall, self._steady = wall, steady
        self.wrong: str | None = None  # what to say of a clock that shows what cannot be
        self._at = int(wall() * 1e6)
        if not 0 <= self._at < LAST:
            raise ConfigError(f"{_shown(self._at)}; set it and start again")
        self._read = int(steady() * 1e6)  # the steady clock at `_at`
        self._lock = threading.Lock()
        self._jumped: int | None = None  # the steady clock when the wall clock ran far ahead

    def raise_to(self, floor: int) -> None:
        """No time from now on is before this one."""
        self._at = max(self._at, floor)

    def now(self) -> int:
        """The wall clock, unless that has been set back or has just jumped far ahead."""
        with self._lock:
            return self._move()

    def _move(self) -> int:
        wall, steady = int(self._wall() * 1e6), int(self._steady() * 1e6)
        carried = self._at + max(0, steady - self._read)
        self.wrong = None
        if not 0 <= wall < LAST:
            self.wrong = f"{_shown(wall)}; the time goes on from before: set the clock"
            wall = carried
        if wall <= carried + _JUMP:
            self._jumped = None
        elif self._jumped is None:
            self._jumped = steady
        far = abs(wall - carried) > _JUMP
        believed = self._jumped is not None and steady - self._jumped >= _BELIEVED
        if believed:
            self._jumped = None
        self._at = carried if far and not believed else max(self._at, wall)
        self._read = steady
        return self._at
