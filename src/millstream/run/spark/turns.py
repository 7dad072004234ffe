"""Who may use all cores next: one at a time, and who has waited longest comes first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.errors import RunError

GIVEN_UP = "the batch was given up"


class Turns:
    """A lock that is given in the order in which it was asked for."""

    def __init__(self) -> None:
        self._queue: deque[str] = deque()
        self._news = threading.Condition()

    @contextmanager
    def turn(self, who: str) -> Iterator[float]:
        """Wait for those who came before, and give for how many seconds; raises if let go."""
        since = time.perf_counter()
        with self._news:
            self._queue.append(who)
            self._news.wait_for(lambda: who not in self._queue or self._queue[0] == who)
            if who not in self._queue:
                raise RunError(GIVEN_UP)
        try:
            yield time.perf_counter() - since
        finally:
            with self._news:
                self._queue.remove(who)
                self._news.notify_all()

    def let_go(self, who: str) -> None:
        """Somebody waits no more; whose turn it is has his."""
        with self._news:
            if who in self._queue and self._queue[0] != who:
                self._queue.remove(who)
                self._news.notify_all()
