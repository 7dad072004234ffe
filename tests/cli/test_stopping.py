"""SIGTERM and Ctrl-C end a run in time, wherever a user's function hangs, and nothing survives."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.chaos.support import wait_gone

STOP = 4  # seconds, the stop_timeout of the apps
SLACK = 40  # for an overloaded machine; functions hang for 600 s
APP = """
import signal, subprocess, sys, time
from pathlib import Path
import millstream as ms

PLACE = "{place}"

def hang(*_):
    child = subprocess.Popen(["sleep", "600"])
    Path("hanging.new").write_text(str(child.pid))
    Path("hanging.new").rename("hanging")
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

def at(place):
    if PLACE == place:
        hang()

def rows():
    for n in range(200):
        if n == 50:
            at("generator")
        yield {{"ts": n, "n": n}}

def read(file):
    yield 0, {{"ts": 0, "n": 0}}
    at("reader")

class Total(ms.Aggregate):
    def zero(self):
        return 0
    def add(self, state, value):
        at("aggregate")
        return state + value
    def combine(self, left, right):
        return left + right
    def result(self, state):
        return state

def reduced(key, rows, window):
    at("reduce")
    return {{"n": len(rows)}}

def updated(event, slate, ctx):
    at("updater")

flow = ms.Flow("stuck")
if PLACE == "reader":
    Path("one.bin").write_text("x")
    source = ms.Files("one.bin", reader=read, schema="ts bigint, n bigint", time="ts")
else:
    source = ms.Generator(rows, time="ts")
stream = flow.source(source, name="in")
keyed = stream.key_by("n")
match PLACE:
    case "reduce":
        stream = keyed.window(ms.tumbling("10s")).reduce(reduced)
    case "aggregate":
        stream = keyed.window(ms.tumbling("10s")).agg(total=Total("n"))
    case "updater":
        stream = keyed.update(updated)
stream.sink(ms.Call(lambda row: at("call")), name="to")

if __name__ == "__main__" and {command}:  # as `millstream run` does, which takes no time-out
    from millstream.api.config import Application
    from millstream.cli.running import run_flow
    options = {{"master": "local[2]", "stop_timeout": {stop}}}
    again = lambda: Application(flow)
    run_flow(flow, Path("ck"), options, quiet=True, file=Path("app.py"), load=again)
elif __name__ == "__main__":
    told = hang if PLACE == "on_progress" else None
    flow.run("ck", on_progress=told, stop_timeout={stop}, master="local[2]")
"""
PLACES = ["generator", "reader", "aggregate", "reduce", "updater", "call", "on_progress"]
IN_THE_DRIVER = ["generator", "call", "on_progress"]
CASES = [
    (place, number, command)
    for place in PLACES
    for number in (signal.SIGTERM, signal.SIGINT)
    for command in (False, True)
    if place != "on_progress" or not command
]
BRIEFLY = [("call", signal.SIGTERM, True)]  # the others are campaigns; a map is in test_run.py


def names_of(processes: list[psutil.Process]) -> list[str]:
    """Of those that still run."""
    found = []
    for one in wait_gone(processes, 0):
        with suppress(psutil.NoSuchProcess):
            found.append(one.name())
    return found


@pytest.mark.spark
@pytest.mark.parametrize(
    ("place", "number", "command"),
    [pytest.param(*case, marks=[] if case in BRIEFLY else [pytest.mark.long]) for case in CASES],
)
def test_a_run_ends_in_time_wherever_a_function_hangs(
    tmp_path: Path, place: str, number: signal.Signals, command: bool
) -> None:
    (tmp_path / "app.py").write_text(APP.format(place=place, stop=STOP, command=command))
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "app.py"],
            cwd=tmp_path,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    family: list[psutil.Process] = []
    try:
        marker, deadline = tmp_path / "hanging", time.monotonic() + 120
        while not marker.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert int(marker.read_text()) in {one.pid for one in family}
        begun = time.monotonic()
        process.send_signal(number)
        process.wait(STOP + SLACK)
        took = time.monotonic() - begun
        # What the user's function started in the user's own process is the user's.
        left, deadline = ["sleep"] if place in IN_THE_DRIVER else [], time.monotonic() + 60
        while (names := names_of(family)) != left and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    print(f"{place}, {number.name}, {command=}: {took:.1f} s, exit {process.returncode}")
    print((tmp_path / "said").read_text()[-400:])
    assert names == left
