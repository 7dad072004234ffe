"""Named crash points, so that tests can kill the driver exactly where it hurts.

`MILLSTREAM_CRASH_AT=<point>:<batch>` makes the process kill itself there, as `kill -9` would;
`MILLSTREAM_PAUSE_AT` makes it stop there until it gets a SIGCONT, like a machine that sleeps.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "batch-planned",
    "tasks-done",
    "dead-letters-written",
    "before-manifest",
    "after-manifest",
    "half-published",
    "published",
    "before-garbage",
)
BUNDLED = "bundled"  # larger files are staged, and no manifest has them yet (`outputs/bundling.py`)
SWITCHING = ("before-switch", "after-switch")  # while a program is replaced


def crash_point(point: str, batch: int) -> None:
    """Die here if a test asked for it: in this batch (`point:7`), or from one on (`point:7+`)."""
    for variable, sent in (
        ("MILLSTREAM_CRASH_AT", signal.SIGKILL),
        ("MILLSTREAM_PAUSE_AT", signal.SIGSTOP),
    ):
        asked, _, at = os.environ.get(variable, "").partition(":")
        if asked == point and (at == str(batch) or (at.endswith("+") and batch >= int(at[:-1]))):
            os.kill(os.getpid(), sent)
