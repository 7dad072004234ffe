"""Since when a run listens: somebody is silent only in time in which it could have been heard.

A process that is stopped for a while (a laptop that sleeps, SIGSTOP) hears nothing meanwhile, and
who sends from the same machine says nothing. A clock that is set forward leaves time out. Both look
alike: between two signs that the process runs too much time has passed.
"""

from __future__ import annotations

import threading

PERIOD = 0.5  # seconds from one sign to the next
_MISSED = 3_000_000  # microseconds after which there was none for too long


class Attention:
    """Whether this process ran all the time, by a clock in microseconds."""

    def __init__(self) -> None:
        self.since = 0  # it has listened ever since
        self._sign: int | None = None  # the last one; None: nobody gives them regularly
        self._lock = threading.Lock()  # they come from several threads

    def sign(self, now: int) -> None:
        """It runs; called in short intervals."""
        with self._lock:
            if self._sign is not None and now - self._sign > _MISSED:
                self.since = now
            self._sign = now

    def check(self, now: int) -> None:
        """Find out before silence is judged: who gives signs may not have come to it yet."""
        if self._sign is not None:
            self.sign(now)
