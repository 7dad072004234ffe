"""Workers of a cluster that come, go and slow down while a flow runs: the answer is the same."""

from __future__ import annotations

import random
import signal
import statistics
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.run.spark.session import _configuration, check_java
from tests.chaos.apps.elastic import BATCH_ROWS
from tests.chaos.support import finish, spawn, wait_for
from tests.chaos.test_cluster import (
    daemon,
    kill,
    master_arguments,
    wait_for_text,
    worker_arguments,
)
from tests.prepared import Started
from tests.services import free_port

APP = Path(__file__).parent / "apps" / "elastic.py"
RECORDS = 3_000_000
# As if each were a machine: Spark never runs a backup where the task itself runs, by host.
UNDISTURBED, ONE_MORE, ONE_LESS = "undisturbed", "one more", "one less"
ONE_OF_THREE, ONE_OF_TWO = "one of three at a tenth", "one of two at a tenth"
ONE_ALONE = "one alone"
HOSTS = {"first": "127.0.0.2", "second": "127.0.0.3", "third": "127.0.0.4"}


def test_tasks_are_backed_up_where_there_are_several_executors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    cluster = _configuration("x", ms.Settings(master="spark://host:7077"))
    assert cluster.get("spark.speculation") == "true"
    own = ms.Settings(master="yarn", spark={"spark.speculation": "false"})
    assert _configuration("x", own).get("spark.speculation") == "false"
    local = _configuration("x", ms.Settings(master="local[4]"))
    assert local.get("spark.speculation", "false") == "false"


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.spark
def test_workers_come_go_and_slow_down(tmp_path: Path) -> None:
    check_java()
    told = run_with_changes(tmp_path)
    for phase, batches in told.batches.items():
        seconds = statistics.median(one.seconds for one in batches)
        print(f"{phase}: median {seconds:.2f} s of {batches}")
    print(f"batches until the slowed worker had tasks again: {told.until_back}")
    assert told.exact
    # A batch has 15,000 records for each core that keeps up: a worker at a tenth is not counted.
    assert told.batches[ONE_OF_THREE][-1].rows < 2.5 * BATCH_ROWS
    assert told.batches[ONE_OF_TWO][-1].rows < 1.5 * BATCH_ROWS
    assert told.until_back is not None


@dataclass(frozen=True)
class Done:
    """A batch."""

    seconds: float
    rows: int


@dataclass(frozen=True)
class Told:
    """What became of a flow whose workers came and went."""

    batches: dict[str, list[Done]]  # of each phase
    until_back: int | None  # from when the slowed worker was well to when it had tasks again
    exact: bool


def run_with_changes(work: Path) -> Told:
    """A flow on two workers: a third comes, one of them is slowed down for a while, one goes, and

    of the two that are left one is slowed down, and goes.
    Every batch of a phase begins and ends in it: while workers come, none is begun.
    """
    answer = make_data(work / "data")
    port, done = free_port(), dict[str, list[Done]]()
    with ExitStack() as stack:
        stack.enter_context(daemon(work / "spark", "master", *master_arguments(port)))
        wait_for_text(work / "spark" / "master.log", "I have been elected leader")

        def add(name: str) -> psutil.Process:
            arguments = worker_arguments(port, work / "spark" / name, HOSTS[name])
            process = stack.enter_context(daemon(work / "spark", name, *arguments))
            log = work / "spark" / f"{name}.log"
            wait_for_text(log, "Successfully registered with master")
            return psutil.Process(process.pid)

        first, second = add("first"), add("second")
        driver = spawn(work / "data", work / "work", f"spark://127.0.0.1:{port}", app=APP)
        stack.callback(driver.kill)
        flow = Driven(driver, work / "work")
        done[UNDISTURBED] = flow.batches(10)[4:]
        flow.hold()
        add("third")
        flow.go_on(executors=3)
        done[ONE_MORE] = flow.batches(8)
        flow.hold()
        with slowed(second):
            flow.go_on()
            done[ONE_OF_THREE] = flow.batches(8)
            flow.hold()
        flow.go_on()
        back = (n for n in range(35) if flow.batches(1)[0].rows > 2.5 * BATCH_ROWS)
        until_back = next(back, None)
        flow.hold()
        flow.go_on()
        for one in [*first.children(recursive=True), first]:
            kill(one)
        done[ONE_LESS] = flow.batches(8)
        flow.hold()
        with slowed(second):
            flow.go_on()
            done[ONE_OF_TWO] = flow.batches(8)
            flow.hold()
        for one in [*second.children(recursive=True), second]:
            kill(one)
        flow.go_on(executors=1)
        done[ONE_ALONE] = flow.batches(6)
        assert finish(driver, 300) == 0, flow.said()
    return Told(done, until_back, counted(work / "work" / "out") == answer)


class Driven:
    """The process of the flow, which tells of its batches and can be held between two."""

    def __init__(self, driver: Started, work: Path) -> None:
        self._driver, self._hold, self._stderr = driver, work / "hold", work / "stderr.txt"

    def said(self) -> str:
        return self._stderr.read_text()[-3000:]

    def _next(self, word: str) -> list[str]:
        line = wait_for(self._driver, word)
        assert line is not None, f"it ended too early: {self.said()}"
        return line.split()

    def batches(self, count: int) -> list[Done]:
        """The next ones."""
        lines = [self._next("batch") for _ in range(count)]
        return [Done(float(line[2]), int(line[3])) for line in lines]

    def hold(self) -> None:
        """Begin no more batches; returns when the last one is over."""
        self._hold.touch()
        self._executors = int(self._next("held")[1])

    def go_on(self, executors: int | None = None) -> None:
        """Begin batches again, once there are so many executors."""
        while executors is not None and self._executors != executors:
            self._executors = int(self._next("held")[1])
        self._hold.unlink()


def make_data(path: Path) -> Counter[tuple[int, int, int, int]]:
    """Files of events, and the answer worked out beside them."""
    path.mkdir()
    dice, groups = random.Random(63), dict[tuple[int, int], list[int]]()
    for number in range(4):
        with open(path / f"{number}.csv", "w") as out:
            out.write("ts,key,value\n")
            for i in range(number * RECORDS // 4, (number + 1) * RECORDS // 4):
                at, key, value = i * 10, dice.randrange(40), dice.randrange(1000)
                out.write(f"{at},{key},{value}\n")
                count = groups.setdefault((key, at // 60_000), [0, 0])
                count[0] += 1
                count[1] += value
    return Counter((key, minute, n, total) for (key, minute), (n, total) in groups.items())


def counted(out: Path) -> Counter[tuple[int, int, int, int]]:
    rows: Counter[tuple[int, int, int, int]] = Counter()
    for part in out.glob("part-*.parquet"):
        for row in pq.read_table(part).to_pylist():
            minute = int(row["window_start"].timestamp()) // 60
            rows[row["key"], minute, row["n"], row["total"]] += 1
    return rows


class slowed:
    """Lets a process and its children run for a tenth of the time."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self._over = process, threading.Event()
        self._thread = threading.Thread(target=self._turns)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _turns(self) -> None:
        while not self._over.is_set():
            self._send(signal.SIGSTOP)
            self._over.wait(0.09)
            self._send(signal.SIGCONT)
            self._over.wait(0.01)

    def _send(self, number: int) -> None:
        with suppress(psutil.Error):
            for one in self.process.children(recursive=True):
                with suppress(psutil.Error):
                    one.send_signal(number)
