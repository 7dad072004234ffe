"""Following files end to end: appended lines, new files, a stop and another start."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.batches import engine
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: files that come and go may have the same inode."""
    return disk_path


def build(tmp: Path, path: str = "in") -> ms.Flow:
    flow = ms.Flow("follow")
    (tmp / "in").mkdir(exist_ok=True)
    source = ms.Files(
        tmp / path,
        format="csv",
        schema="ts bigint, n bigint",
        time="ts",
        lateness="2s",
        follow=True,
    )
    rows = flow.source(source, name="in")
    rows.sink(ms.Jsonl(tmp / "rows"))
    rows.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Jsonl(tmp / "windows"))
    return flow


class Thread:
    """`flow.start()` without Spark."""

    def __init__(self, flow: ms.Flow, checkpoint: Path) -> None:
        plan = plan_flow(flow)
        place = Checkpoint(checkpoint)
        place.lock()
        self.engine = Engine(plan, place, Settings(poll=0.01))
        self.executor = InProcess(plan)
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.engine.open(1)
        while not self.stopping.is_set():
            if not self.engine.step(self.executor):
                self.stopping.wait(0.01)
        self.engine.close()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(30)


def rows(tmp: Path) -> list[int]:
    paths = sorted((tmp / "rows").glob("part-*"))
    return [json.loads(line)["n"] for p in paths for line in p.read_bytes().splitlines()]


def windows(tmp: Path) -> list[int]:
    paths = (tmp / "windows").glob("part-*")
    found = [json.loads(line) for p in paths for line in p.read_bytes().splitlines()]
    return [row["n"] for row in sorted(found, key=lambda row: row["window_start"])]


def append(path: Path, text: str) -> None:
    with open(path, "a") as out:
        out.write(text)


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def lines(start: int, stop: int) -> str:
    """One record a second."""
    return "".join(f"{n},{n}\n" for n in range(start, stop))


def follow(tmp: Path, start: Callable[[ms.Flow], Any]) -> None:
    running = start(build(tmp))
    first = tmp / "in" / "a.csv"
    append(first, "ts,n\n" + lines(0, 15))
    until(lambda: rows(tmp) == list(range(15)) and windows(tmp) == [10])
    append(first, lines(15, 25) + "25,2")
    until(lambda: rows(tmp) == list(range(25)) and windows(tmp) == [10, 10])
    append(first, "5\n")
    until(lambda: rows(tmp) == list(range(26)))
    append(tmp / "in" / "b.csv", "ts,n\n" + lines(26, 35))
    until(lambda: len(rows(tmp)) == 35 and windows(tmp) == [10, 10, 10])
    running.stop()
    append(first, lines(35, 45))  # while nobody is looking
    append(tmp / "in" / "c.csv", "ts,n\n" + lines(45, 55))
    running = start(build(tmp))
    until(lambda: len(rows(tmp)) == 55 and windows(tmp) == [10, 10, 10, 10, 10])
    append(first, lines(55, 65))
    until(lambda: len(rows(tmp)) == 65 and len(windows(tmp)) == 6)
    running.stop()
    assert Counter(rows(tmp)) == Counter(range(65))
    assert windows(tmp) == [10] * 6


def test_follow_in_process(tmp_path: Path) -> None:
    follow(tmp_path, lambda flow: Thread(flow, tmp_path / "ck"))


@pytest.mark.spark
def test_follow_on_spark(tmp_path: Path, spark: object) -> None:
    seen: list[Any] = []
    follow(
        tmp_path,
        lambda flow: flow.start(
            tmp_path / "ck", master="local[2]", poll=0.02, on_progress=seen.append
        ),
    )
    assert seen[-1].rows == 65
    assert not seen[-1].done
    assert [p.batch for p in seen] == sorted(p.batch for p in seen)


# -- idle participants and restarts ---------------------------------------------------------------


def test_nobody_is_idle_for_having_been_silent_while_the_flow_was_down(tmp_path: Path) -> None:
    """After a long pause one node's backlog comes first; the other's must not become late."""
    from millstream.testing import Driver

    flow = ms.Flow("idle")
    source = ms.Files(
        tmp_path,
        format="json",
        schema="ts bigint, node string",
        time="ts",
        lateness="1s",
        follow=True,
        participant="node",
        participants=["a", "b"],
        idle_timeout="30s",
    )
    stream = flow.source(source, name="in")
    stream.key_by("node").window(ms.tumbling("10s")).agg(n=ms.count()).sink(ms.Memory())

    def records(node: str, start: int, stop: int) -> list[dict[str, Any]]:
        return [{"ts": t, "node": node} for t in range(start, stop)]

    with Driver(flow, now=1000.0) as driver:
        driver.push("in", records("a", 0, 10) + records("b", 0, 10)).step()
        driver.advance("1h").restart()
        driver.push("in", records("a", 10, 60)).step()
        driver.push("in", records("b", 10, 60)).step()
        assert driver.ledger["agg"]["late"] == 0
        driver.push("in", records("a", 60, 90)).step()
        before = driver.watermarks["agg"]
        driver.advance("31s")  # now b really is silent
        driver.push("in", records("a", 90, 91)).step()
        assert driver.watermarks["agg"] > before


# -- rotation -------------------------------------------------------------------------------------


def rotate(log: Path, how: str) -> None:
    """What logrotate does, by one who does not write meanwhile."""
    for old in sorted(log.parent.glob("app.csv.*"), key=lambda p: -int(p.name.split(".")[2])):
        number = int(old.name.split(".")[2])
        old.rename(log.parent / old.name.replace(f".{number}", f".{number + 1}"))
    first = Path(f"{log}.1")
    if how == "copytruncate":
        shutil.copy(log, first)
        os.truncate(log, 0)
        return
    log.rename(first)
    if how == "compress":
        with open(first, "rb") as source, gzip.open(f"{first}.gz", "wb") as out:
            shutil.copyfileobj(source, out)
        first.unlink()


@pytest.mark.parametrize(
    ("path", "restart"),
    [
        ("in", False),
        ("in", True),
        ("in/*.csv", False),
        ("in/*.csv", True),
        ("in/app.csv", False),
        ("in/app.csv", True),
    ],
)
def test_a_log_is_rotated_while_it_is_followed(tmp_path: Path, path: str, restart: bool) -> None:
    random_ = random.Random(3)
    (tmp_path / "in").mkdir()
    log, count = tmp_path / "in" / "app.csv", 0
    running = Thread(build(tmp_path, path), tmp_path / "ck")
    for turn in range(9):
        begun = count
        for _ in range(random_.randrange(1, 8)):
            wanted = range(count, count + random_.randrange(1, 60))
            header = "" if log.exists() and log.stat().st_size else "ts,n\n"
            append(log, header + "".join(f"{n},{n}\n" for n in wanted))
            count = wanted.stop
            time.sleep(random_.choice([0, 0.02]))
        if path != "in":  # a log whose rotated name is not listed must have been seen before
            until(lambda begun=begun: begun in rows(tmp_path))  # type: ignore[misc]
        rotate(log, ("rename", "compress", "copytruncate")[turn % 3])
        if restart and turn % 4 == 3:
            running.stop()
            running = Thread(build(tmp_path, path), tmp_path / "ck")
    append(log, f"ts,n\n{count},{count}\n")
    until(lambda: len(rows(tmp_path)) > count or not running.thread.is_alive())
    running.stop()
    assert sorted(rows(tmp_path)) == list(range(count + 1))


class Elsewhere(InProcess):
    """Tasks that begin while the log is on its way from one place to another."""

    def __init__(self, plan: Any, log: Path, times: int) -> None:
        super().__init__(plan)
        self.log, self.away, self.times = log, log.parent.parent / "away", times
        self.runs = 0

    def run(self, batch: Any, tasks: Any) -> Any:
        self.runs += 1
        if self.runs > self.times:
            return super().run(batch, tasks)
        self.log.rename(self.away)
        try:
            return super().run(batch, tasks)
        finally:
            self.log = Path(f"{self.log}.{self.runs}")
            self.away.rename(self.log)


@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_batch_whose_log_moved_before_it_was_read_is_planned_anew(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LOOKS", (0.0, 0.0))
    flow, log = build(tmp_path), tmp_path / "in" / "app.csv"
    append(log, "ts,n\n" + lines(0, 15))
    plan, place = plan_flow(flow), Checkpoint(tmp_path / "ck")
    place.lock()
    running = Engine(plan, place, Settings(poll=0.01))
    running.open(1)
    executor = Elsewhere(plan, log, times)
    if times == 99:  # it never is where it was seen
        with pytest.raises((ms.RunError, OSError), match="removed or replaced while it was read"):
            running.step(executor)
        assert executor.runs == 3 and running.manifest.batch == -1
    else:
        assert running.step(executor)
        append(executor.log, lines(15, 25))
        while len(rows(tmp_path)) < 25:
            running.step(executor)
        assert rows(tmp_path) == list(range(25)) and windows(tmp_path) == [10, 10]
    running.close()
