"""Who may use all cores next: one at a time, and who has waited longest comes first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock that is given in the order in which it was asked for."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._news = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Wait for those who came before; gives for how many seconds."""
        me, since = object(), time.perf_counter()
        with self._news:
            self._queue.append(me)
            self._news.wait_for(lambda: self._queue[0] is me)
        try:
            yield time.perf_counter() - since
        finally:
            with self._news:
                self._queue.remove(me)
                self._news.notify_all()
