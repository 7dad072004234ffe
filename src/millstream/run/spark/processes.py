"""The processes a run has started: Spark's JVM, and below it Python daemons and workers.

The JVM is started in a session of its own, and what it starts stays in that. So all of them are
found by their session, also those whose parent is gone, whatever functions do in them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LOOKS = 40
_PAUSE = 0.05  # seconds


def kill_session(leader: int) -> None:
    """End the processes of a session at once, its leader first; never those of our own."""
    with suppress(ProcessLookupError):
        if leader in (os.getpid(), os.getsid(0)):
            return
        os.kill(leader, signal.SIGKILL)
    for _ in range(_LOOKS):  # one that was just about to fork has a child by the next look
        alive = _members(leader)
        if not alive:
            return
        for process in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE)


def starting_spark() -> list[int]:
    """JVMs that this process started and does not know yet, because they are still starting."""
    found = []
    for process, _, parent, session in _all():
        if parent == os.getpid() and session == process:
            with suppress(OSError):
                if b"pyspark-shell" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
    return found


def _members(session: int) -> list[int]:
    return [one for one, state, _, belongs in _all() if belongs == session and state not in "ZX"]


def _all() -> Iterator[tuple[int, str, int, int]]:
    """Number, state, parent and session of all processes, where the system tells."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = entry.read_text("utf-8", "replace").rpartition(")")[2].split()
            yield int(entry.parent.name), fields[0], int(fields[1]), int(fields[3])
