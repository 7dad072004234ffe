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
from millstream.run.session import _configuration, check_java
from tests.chaos.support import finish, spawn, wait_for
from tests.chaos.test_cluster import (
    daemon,
    free_port,
    kill,
    master_arguments,
    wait_for_text,
    worker_arguments,
)
from tests.prepared import Started

APP = Path(__file__).parent / "apps" / "elastic.py"
RECORDS = 1_000_000
# As if each were a machine: Spark never runs a backup where the task itself runs, by host.
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
    for phase, seconds in told.seconds.items():
        print(f"{phase}: median {statistics.median(seconds):.2f} s of {seconds}")
    print(f"tasks in each batch: {told.tasks}")
    assert told.exact


@dataclass(frozen=True)
class Told:
    """What became of a flow whose workers came and went."""

    seconds: dict[str, list[float]]  # of batches undisturbed, with one more, one less, one slowed
    tasks: list[int]  # that gave results, in each batch
    exact: bool


def run_with_changes(work: Path) -> Told:
    """A flow on two workers: a third comes, the first goes, and the second is slowed down."""
    answer = make_data(work / "data")
    port, took = free_port(), dict[str, list[float]]()
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
        said = work / "work" / "stderr.txt"
        took["undisturbed"] = batches(driver, 10, said)[4:]
        add("third")
        took["one more"] = batches(driver, 6, said)
        for one in [*first.children(recursive=True), first]:
            kill(one)
        took["one less"] = batches(driver, 6, said)
        with slowed(second):
            took["one at a tenth"] = batches(driver, 6, said)
        assert finish(driver, 300) == 0, said.read_text()[-3000:]
    tasks: dict[int, int] = {}
    for part in (work / "work" / "out").glob("part-*"):
        _, batch, _, number = part.stem.split("-")
        tasks[int(batch)] = max(tasks.get(int(batch), 0), int(number) + 1)
    exact = counted(work / "work" / "out") == answer
    return Told(took, [tasks[batch] for batch in sorted(tasks)], exact)


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


def batches(driver: Started, count: int, said: Path) -> list[float]:
    """The seconds of the next batches."""
    found: list[float] = []
    while len(found) < count:
        line = wait_for(driver, "batch")
        assert line is not None, f"it ended too early: {said.read_text()[-3000:]}"
        found.append(float(line.split()[2]))
    return found


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
