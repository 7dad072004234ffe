"""The end of a driver that cannot end itself: a function in it lets no other thread run.

A regular expression without end holds Python's lock, so that neither the handler of a signal nor
any thread comes to run. The handler that Python has in C still writes the number of the signal into
a pipe; at the other end is a small process that ends the driver if it has not ended in time.
Spark's JVM ends with its driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from millstream.api.flow import Flow
from millstream.api.sinks import Call
from millstream.api.sources import Generator
from millstream.graph.nodes import Sink, Source

_GRACE = 1.0  # seconds beyond the time for a stop, for who can end itself
_MESSAGE = (
    "error: the flow was asked to stop, and a function in the driver (of a Call sink or a "
    "generator) lets nothing else run; it was ended, and nothing is lost: run the same command "
    "again to go on after the last commit\n"
)
_WATCH = """
import os, select, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
driver, seconds, message = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
asked = False
while not asked:
    came = os.read(0, 64)
    if not came:
        sys.exit()
    asked = signal.SIGINT in came or signal.SIGTERM in came
end = time.monotonic() + seconds
while (left := end - time.monotonic()) > 0:
    if select.select([0], [], [], left)[0] and not os.read(0, 64):
        sys.exit()
if os.getppid() == driver:
    sys.stderr.write(message)
    sys.stderr.flush()
    os.kill(driver, signal.SIGKILL)
"""


def calls_functions(flow: Flow) -> bool:
    """Whether a flow calls users' functions in the driver."""
    return any(
        (isinstance(node, Sink) and isinstance(node.spec, Call))
        or (isinstance(node, Source) and isinstance(node.spec, Generator))
        for node in flow.nodes
    )


class Guard:
    """Ends this process so many seconds after SIGINT or SIGTERM, if it is still there then."""

    def __init__(self, seconds: float) -> None:
        there, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        command = [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, str(seconds + _GRACE), _MESSAGE], stdin=there, start_new_session=True
        )
        os.close(there)
        self._before = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)

    def close(self) -> None:
        """It has ended by itself."""
        signal.set_wakeup_fd(self._before)
        os.close(self._pipe)
        self._process.wait(10)
