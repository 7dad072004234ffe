"""A driver in which nothing of Python can run any more is ended in time."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import millstream as ms
from millstream.cli.guarding import calls_functions

HELD = """
import re, sys, threading
from millstream.cli.running import Stopping
with Stopping(lambda: print("asked", flush=True), 0.2 if sys.argv[1] == "held" else 600):
    print("here", flush=True)
    if sys.argv[1] == "held":  # in a thread, as in the driver: the main one cannot run any more
        held = threading.Thread(target=re.match, args=("(a+)+$", "a" * 60 + "b"))
        held.start()
        held.join()
    sys.stdin.readline()
print("by itself", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_cannot_end_itself_is_ended(number: signal.Signals) -> None:
    command = [sys.executable, "-c", HELD, "held"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(number)
        said, error = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert "by itself" not in said and "lets nothing else run; it was ended" in error


def test_one_that_ends_by_itself_is_left_alone() -> None:
    command = [sys.executable, "-c", HELD, "quiet"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        said, error = process.communicate("\n", timeout=60)
        assert (process.returncode, said, error) == (0, "by itself\n", "")


def test_only_flows_with_functions_in_the_driver_are_guarded() -> None:
    flow = ms.Flow("plain")
    stream = flow.source(ms.Rate(1), name="in")
    stream.sink(ms.Memory())
    assert not calls_functions(flow)
    stream.sink(ms.Call(print))
    assert calls_functions(flow)
    made = ms.Flow("made")
    made.source(ms.Generator(tuple), name="in").sink(ms.Memory())
    assert calls_functions(made)
