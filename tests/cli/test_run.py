"""`millstream run`, `plan`, `doctor` as a user sees them, and how a run ends on a signal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.support import wait_gone
from tests.cli.conftest import COMMAND, STEPS

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_version_and_help(here: Any) -> None:
    assert re.fullmatch(r"millstream \d+\.\d+\.\d+\n", here.run("--version").out)
    assert "run" in here.run("--help").out
    for command in ("run", "plan", "doctor", "demo"):
        result = here.run(command, "--help")
        assert result.code == 0 and "Example:" in result.out
    told = " ".join(here.run("run", "--help").out.split())
    assert "the exit code is then 0" in told
    assert "in its table [run];" in told


def test_plan_prints_the_plan_without_java(here: Any) -> None:
    result = here.run("plan", here.app(), env={"PATH": str(here.path), "JAVA_HOME": "/nowhere"})
    assert result.code == 0, result.err
    assert result.out.startswith("flow prices\nstage 0: ") and "tumbling(1m)" in result.out


def test_plan_says_that_a_changed_program_cannot_go_on(here: Any) -> None:
    here.app()
    work = "import app; from millstream.testing import run_in_process as run; run(app.flow, 'ck')"
    subprocess.run([sys.executable, "-c", work], cwd=here.path, check=True)
    assert here.run("plan", "app.py", "--checkpoint", "ck").code == 0
    here.app(STEPS.replace("1m", "2m"))
    result = here.run("plan", "app.py", "--checkpoint", "ck")
    assert result.code == 2 and "tumbling(2m)" in result.out
    assert "the program has changed since batch 0" in result.err
    assert "was tumbling(1m), is tumbling(2m)" in result.err


def test_the_flow_is_found(here: Any) -> None:
    text = "import millstream as ms\n{} = ms.Flow('x')\nb = ms.Flow('y')\n"
    text += "for f in (b, {}): f.source(ms.Rate()).sink(ms.Console())\n"
    here.file("two.py", text.replace("{}", "flow"))
    assert here.run("plan", "two.py").out.startswith("flow x\n")
    assert here.run("plan", "two.py", "--flow", "b").out.startswith("flow y\n")
    assert here.run("plan", "two.py", "--flow", "y").out.startswith("flow y\n")


@pytest.mark.spark
def test_run_in_plain_lines(here: Any) -> None:
    """Not a terminal: no control codes, the summary, siblings in workers, no guard is entered."""
    here.file("beside.py", "def dear(row):\n    return row if row['price'] > 11 else None\n")
    steps = STEPS.replace('trades.where("price > 0")', "trades.map(keep)")
    here.app(
        f"""
from dataclasses import dataclass
import beside

@dataclass
class Limit:
    price: float

def keep(row):
    import beside as again
    return again.dear(row) if Limit(1.0).price < row["price"] else None

{steps}
if __name__ == "__main__":
    flow.run()
"""
    )
    result = here.run("run", "app.py")
    assert result.code == 0, result.err
    assert result.err == ""
    assert "\x1b" not in result.out and "\r" not in result.out
    first, *lines = result.out.splitlines()
    assert first == "prices: starting Spark"
    lines = [line for line in lines if not line.startswith("no batch is committed yet")]  # busy
    assert lines[0].startswith("batch 0  100%  600 records")
    assert re.match(r"complete after \d+\.\d s: 1 batch, 600 records, 20 results", lines[1])
    assert lines[2].split() == ["ledger", "offered", "aggregated", "dead", "late", "dropped"]
    assert [line.split()[0] for line in lines[3:]] == ["files", "map", "agg", "jsonl"]
    rows = written(here)
    assert sum(row["n"] for row in rows) == sum(10 + i % 7 + 0.5 > 11 for i in range(600))
    assert (here.path / ".millstream" / "prices").is_dir()


# -- signals ------------------------------------------------------------------------------------

ENDLESS = """
import millstream as ms

def slow(row):
    import time
    time.sleep(0.005)
    return {"value": row["value"], "k": row["value"] % 3}

flow = ms.Flow("endless")
(flow.source(ms.Rate(40))
     .map(slow)
     .sink(ms.Jsonl("out")))
"""


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ^C becomes a signal to the process group


class Terminal:
    """A command on a terminal of its own, as its foreground process group."""

    def __init__(self, cwd: Path, *command: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )
        os.close(theirs)
        self.seen = ""

    def read(self, seconds: float) -> None:
        """Take in what is shown."""
        if select.select([self.ours], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.ours, 1 << 16).decode("utf-8", "replace")
            except OSError:  # the other end is closed
                time.sleep(0.05)

    def until(self, pattern: str, seconds: float = 200) -> None:
        """Wait until something is shown."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text[-2000:]}"
            self.read(0.1)

    def end(self, seconds: float = 120) -> int:
        """Wait for the end; gives the exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
            self.read(0.1)
        self.read(0.1)
        return self.process.returncode

    @property
    def text(self) -> str:
        """What was shown, without control codes."""
        return CONTROL.sub("", self.seen)

    def family(self) -> list[psutil.Process]:
        """The command and everything it started: the JVM, Python daemons and workers."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]


@pytest.fixture
def terminal(here: Any) -> Iterator[Any]:
    """Starts commands on terminals."""
    opened: list[Terminal] = []

    def start(*command: str) -> Terminal:
        opened.append(Terminal(here.path, *command))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        os.close(one.ours)


def written(here: Any) -> list[dict[str, Any]]:
    """All rows that came out."""
    files = here.path.glob("out/part-*")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def results(here: Any) -> list[int]:
    """The numbers that came out, in order."""
    return sorted(row["value"] for row in written(here))


def gone(family: list[psutil.Process]) -> bool:
    """Whether no process stayed behind."""
    return not wait_gone(family, 60)


@pytest.mark.spark
def test_ctrl_c_stops_after_the_batch_and_the_next_run_goes_on(here: Any, terminal: Any) -> None:
    here.file("app.py", ENDLESS)
    screen = terminal(COMMAND, "run", "app.py")
    screen.until(r"batch [1-9]\d*; ledger: [\d,]+ read")
    family = screen.family()
    names = {p.name() for p in family}
    assert "java" in names and len(family) >= 4, names  # with the daemon and a worker
    os.write(screen.ours, b"\x03")
    assert screen.end() == 0
    assert "stopping after the current batch (Ctrl-C again to abort)" in screen.text
    assert re.search(r"stopped after \d+\.\d s: \d+ batch", screen.text)
    assert "WARN" not in screen.text and "Traceback" not in screen.text
    assert gone(family)
    assert here.run("doctor", ".millstream/endless").code == 0
    first = results(here)
    assert first == list(range(len(first))) and first  # the last batch is whole and committed

    # Again, off a terminal, and SIGTERM to the whole process group.
    again = subprocess.Popen(
        [COMMAND, "run", "app.py"],
        cwd=here.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert again.stdout is not None
    assert any(line.startswith("batch ") for line in again.stdout)
    os.killpg(again.pid, signal.SIGTERM)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert err == "stopping after the current batch (Ctrl-C again to abort)\n", f"{err}\n{out}"
    assert "run the same command again to go on where it stopped" in out
    both = results(here)
    assert both == list(range(len(both))) and len(both) > len(first)


@pytest.mark.spark
def test_a_second_ctrl_c_aborts(here: Any, terminal: Any) -> None:
    here.file("app.py", ENDLESS.replace("time.sleep(0.005)", "open('begun', 'w'), time.sleep(3)"))
    screen = terminal(COMMAND, "run", "app.py")
    screen.until(r"starting Spark")
    deadline = time.monotonic() + 200
    while not (here.path / "begun").exists():  # a worker is at work on the first batch
        assert time.monotonic() < deadline
        screen.read(0.1)
    family = screen.family()
    os.write(screen.ours, b"\x03")
    screen.until("stopping after the current batch")
    os.write(screen.ours, b"\x03")
    assert screen.end() == 130
    assert "aborted; nothing is lost: the next run begins with the batch" in screen.text
    assert "Traceback" not in screen.text
    assert gone(family)
    assert results(here) == []


STUBBORN = """
import signal, subprocess, time
from pathlib import Path

def hang(row):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    Path("hanging").write_text(str(child.pid))
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""
STUBBORN_FLOW = """
name = "stubborn"
functions = ["stubborn.py"]

[source.numbers]
kind = "rate"
rows_per_second = 40

[step.stuck]
from = "numbers"
map = "stubborn:hang"

[sink.out]
from = "stuck"
kind = "jsonl"
path = "out"

[run]
stop_timeout = 4
"""


@pytest.mark.spark
def test_sigterm_ends_a_function_that_hangs_and_nothing_survives(here: Any) -> None:
    here.file("stubborn.py", STUBBORN)
    here.file("app.toml", STUBBORN_FLOW)
    process = subprocess.Popen(
        [COMMAND, "run", "app.toml"],
        cwd=here.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    marker = here.path / "hanging"
    while not (marker.exists() and marker.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert int(marker.read_text()) in {p.pid for p in family}
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    *_, line = err.splitlines()
    assert line.startswith("error: flow 'stubborn' was asked to stop and its batch was not done")
    assert "stop_timeout=4 s" in line and "Traceback" not in err
    assert gone(family)
    assert here.run("doctor", ".millstream/stubborn").code == 0
