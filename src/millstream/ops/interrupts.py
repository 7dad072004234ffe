"""Ctrl-C while functions of users run in this process.

What a function raises is caught, whatever it is, and costs its record. An interrupt that somebody
asked for from outside is not the function's, and ends all of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_asked = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it a Ctrl-C is not taken for an error of a function."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield  # which gets no signals
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or not Python's
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        global _asked
        _asked = True
        before(number, frame)

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _asked = False


def pass_on(error: BaseException) -> None:
    """Raise an interrupt again that came from outside."""
    if _asked and isinstance(error, KeyboardInterrupt):
        raise error
