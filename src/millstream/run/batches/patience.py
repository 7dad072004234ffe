"""Waiting for what can be mended from outside: a full disk, a receiver that is away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from millstream.errors import RunError
from millstream.state.storage import NO_ROOM

_PAUSE = 0.5  # seconds between looks at a full disk

T = TypeVar("T")


class Patience:
    """Why a run pauses, and who is told."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.paused: str | None = None
        self.on_pause: Callable[[], None] = lambda: None

    def pause(self, why: str | None) -> None:
        """Something is waited for, or no longer."""
        self.paused = why
        if why is not None:
            self.on_pause()

    def keep_trying(self, work: Callable[[], T], batch: int, undo: Callable[[], None]) -> T:
        """Do something that can be done again; wait and do it again while the disk is full."""
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                result = work()
            except (RunError, OSError) as error:
                if not _disk_full(error):
                    raise
                undo()
                if time.monotonic() > deadline:
                    raise RunError(
                        f"the disk is full ({error}); batch {batch} was not committed and nothing "
                        "is lost: free some space and start again"
                    ) from error
                self.pause(f"paused: {error}; free some space")
                time.sleep(_PAUSE)
            else:
                self.paused = None
                return result


def _disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    return any(os.strerror(one) in str(error) for one in NO_ROOM)  # of a task it is a text
