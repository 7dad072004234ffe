"""Handing rows to users' functions in the driver: a call that hangs is given up, and named.

`run/outputs/publishing.py` hands the rows of a committed batch over here, one after another, on a
thread of its own that is the same from batch to batch. The thread that runs the engine waits beside
it and looks whether it comes on. A call cannot be ended, so one that takes longer than
`function_timeout` is left behind with its thread, and made again on another one, once.

What keeps all threads of Python from running (a regular expression without end) is ended by
faulthandler's own thread, and the driver with it: the rows are handed over at the next start.
"""

from __future__ import annotations

import faulthandler
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millstream.durations import text
from millstream.errors import RunError
from millstream.ops.records import describe, shown

_TRIES = 2
_LOOKS = 8  # at a call, within the timeout
_LONGEST_LOOK = 5.0  # seconds
_HELD = 30.0  # seconds beyond the timeout that code may keep all other threads from running
_AGAIN = "the batch is committed, and its rows are handed over again at the next start"
_STAYS = "what was committed stays valid"

T = TypeVar("T")


class _Hangs(RunError):
    """A call did not return in time."""


@dataclass
class _Work:
    """Rows on their way into a function."""

    fn: Callable[[Any], Any]
    rows: Sequence[Any]
    at: int = 0  # the row that is handed over
    error: BaseException | None = None
    given_up: bool = False  # nobody waits for it any more
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            while self.at < len(self.rows) and not self.given_up:
                self.fn(self.rows[self.at])
                if not self.given_up:
                    self.at += 1
        except BaseException as error:  # a user's function may raise anything
            self.error = error
        finally:
            self.over.set()


class Hands:
    """Calls users' functions in the driver, on a thread that is given up if one does not return."""

    def __init__(self, timeout: int | None = None) -> None:
        self.timeout = timeout  # microseconds
        self._works: queue.SimpleQueue[_Work | None] | None = None

    def hand(self, sink: str, fn: Callable[[Any], Any], rows: Sequence[Any]) -> None:
        """Hand all rows to a function in their order; raises what went wrong, and on which."""
        at = 0
        for _ in range(_TRIES):
            work = _Work(fn, rows, at)
            self._begin(work)
            if self._wait(work):
                if work.error is not None:
                    told = f"{describe(work.error)} on {shown(rows[work.at])}"
                    raise RunError(f"sink {sink!r}: {told}; {_AGAIN}") from work.error
                return
            at = work.at
        raise RunError(
            f"sink {sink!r} hangs: its function had not returned after {text(self.timeout or 0)} "
            f"on {shown(rows[at])}, {_TRIES} times; {_AGAIN}: look for a call without a timeout, a "
            "lock or an endless loop there, or give it longer with function_timeout="
        )

    def tell(self, what: str, fn: Callable[[Any], Any], value: Any) -> None:
        """Call a function that is only told something; raises what went wrong."""
        try:
            self.ask(what, lambda: fn(value))
        except _Hangs:
            raise
        except BaseException as error:  # a user's function may raise anything
            raise RunError(
                f"{what}: {describe(error)}; {_STAYS}: correct the function and start again"
            ) from error

    def ask(self, what: str, fn: Callable[[], T]) -> T:
        """What a function gives that asks others of the user's; raises what these raise."""
        found: list[T] = []
        work = _Work(lambda ask: found.append(ask()), [fn])
        self._begin(work)
        if not self._wait(work):
            raise _Hangs(
                f"{what} hangs: its function had not returned after {text(self.timeout or 0)}; "
                f"{_STAYS}: look for a call without a timeout, a lock or an endless loop there, or "
                "give it longer with function_timeout="
            )
        if work.error is not None:
            raise work.error
        return found[0]

    def close(self) -> None:
        """Let the thread end."""
        if self._works is not None:
            self._works.put(None)
            self._works = None

    def _begin(self, work: _Work) -> None:
        if self._works is None:
            self._works = queue.SimpleQueue()
            threading.Thread(
                target=_work_on, args=(self._works,), name="millstream-call", daemon=True
            ).start()
        self._works.put(work)

    def _wait(self, work: _Work) -> bool:
        """Whether all rows were handed over, or one raised; False if a call hangs."""
        if self.timeout is None:
            work.over.wait()
            return True
        seconds = self.timeout / 1e6
        at, since = work.at, time.monotonic()
        with _ended_if_held(seconds) as all_is_well:
            while not work.over.wait(min(seconds / _LOOKS, _LONGEST_LOOK)):
                all_is_well()
                if work.at != at:
                    at, since = work.at, time.monotonic()
                elif time.monotonic() - since >= seconds:
                    work.given_up = True
                    self._works = None  # its thread is left to the function
                    return False
        return True


def _work_on(works: queue.SimpleQueue[_Work | None]) -> None:
    while (work := works.get()) is not None:
        work.run()
        if work.given_up:
            return


_holding: list[float] = []  # seconds of all who wait: the process has one timer for all of them
_timer = threading.Lock()


@contextmanager
def _ended_if_held(seconds: float) -> Iterator[Callable[[], None]]:
    """End the process if no thread of it can run for so long; what is yielded says that one can."""
    with _timer:
        _holding.append(seconds)
        _set_timer()
    try:
        yield _set_timer
    finally:
        with _timer:
            _holding.remove(seconds)
            _set_timer()


def _set_timer() -> None:
    longest = max(_holding, default=None)
    if longest is None:
        faulthandler.cancel_dump_traceback_later()
    elif sys.__stderr__ is not None:
        with suppress(OSError, ValueError):  # it may be closed
            faulthandler.dump_traceback_later(longest + _HELD, exit=True, file=sys.__stderr__)
