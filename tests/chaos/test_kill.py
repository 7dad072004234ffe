"""Killed at any moment and started again, a flow gives exactly what an unkilled one gives."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from millstream.run.faults import POINTS
from millstream.state.doctor import examine
from tests.chaos import support
from tests.chaos.support import (
    Data,
    Rows,
    check_readable,
    descendants,
    expected,
    finish,
    kill,
    make_data,
    outputs,
    spawn,
    wait_for,
    wait_gone,
)
from tests.prepared import Started

SPOOLED = support.APP.with_name("spooled.py")
SEED = 20261115


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_data(tmp_path_factory.mktemp("kill") / "data")


@pytest.fixture(scope="module")
def unkilled(data: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """The outputs of a run nobody disturbed; they are the right ones."""
    work = tmp_path_factory.mktemp("unkilled")
    assert finish(spawn(data.path, work)) == 0, (work / "stderr.txt").read_text()
    assert outputs(work / "out") == expected(data)
    assert int(max(p.stem for p in (work / "ck" / "manifests").iterdir())) >= 10
    return outputs(work / "out", latest=True)


def check_done(work: Path, unkilled: dict[str, Rows]) -> None:
    found = outputs(work / "out", latest=True)
    for name, rows in unkilled.items():
        assert found[name] == rows, f"{name}: {rows - found[name]} missing, {found[name] - rows}"
    lines, sound = examine(work / "ck")
    assert sound, lines
    assert not list((work / "ck").rglob("*.tmp"))


def failed(work: Path) -> str:
    return (work / "stderr.txt").read_text()[-2000:]


def test_killed_at_every_named_point(data: Data, unkilled: dict[str, Rows], tmp_path: Path) -> None:
    for batch, point in enumerate(POINTS, start=1):
        code = finish(spawn(data.path, tmp_path, crash_at=f"{point}:{batch}"))
        assert code == -signal.SIGKILL, f"{point}: {code} {failed(tmp_path)}"
        check_readable(tmp_path / "out")
        if point == "half-published":  # once more, in the middle of the recovery
            again = finish(spawn(data.path, tmp_path, crash_at=f"{point}:{batch}"))
            assert again == -signal.SIGKILL
            check_readable(tmp_path / "out")
    assert finish(spawn(data.path, tmp_path)) == 0, failed(tmp_path)
    check_done(tmp_path, unkilled)


@pytest.mark.long
def test_killed_at_the_first_and_the_last_batch(
    data: Data, unkilled: dict[str, Rows], tmp_path: Path
) -> None:
    for point in ("before-manifest", "after-manifest"):
        work = tmp_path / point
        assert finish(spawn(data.path, work, crash_at=f"{point}:0")) == -signal.SIGKILL
        assert finish(spawn(data.path, work)) == 0, failed(work)
        check_done(work, unkilled)
        last = int(max(p.stem for p in (work / "ck" / "manifests").iterdir()))
        shutil.rmtree(work)
        if finish(spawn(data.path, work, crash_at=f"{point}:{last}")) == -signal.SIGKILL:
            assert finish(spawn(data.path, work)) == 0, failed(work)
        check_done(work, unkilled)


def random_kills(
    data: Data, unkilled: dict[str, Rows], tmp_path: Path, wanted: int, seed: int
) -> int:
    """Kill at random moments, also while recovering, until enough kills have hit."""
    random_ = random.Random(seed)
    print(f"seed {seed}")
    kills = runs = 0
    while kills < wanted:
        work = tmp_path / f"run-{runs}"
        runs += 1
        for attempt in itertools.count():
            process = spawn(data.path, work)
            wait_for(process, "ready")
            if kills >= wanted:
                assert finish(process) == 0, failed(work)
                break
            time.sleep(random_.uniform(0, 0.45) * (1 + attempt / 10))  # slow machines arrive too
            if not kill(process):
                assert process.returncode == 0, failed(work)
                break
            kills += 1
            check_readable(work / "out")
        check_done(work, unkilled)
        shutil.rmtree(work)
    print(f"{kills} kills in {runs} runs")
    return kills


def test_killed_at_random_moments(data: Data, unkilled: dict[str, Rows], tmp_path: Path) -> None:
    assert random_kills(data, unkilled, tmp_path, wanted=4, seed=SEED) >= 4


@pytest.mark.long
def test_killed_very_often(data: Data, unkilled: dict[str, Rows], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    assert random_kills(data, unkilled, tmp_path, wanted=300, seed=seed) >= 300


# -- with Spark -----------------------------------------------------------------------------------


def run_watched(process: Started, seconds: float = 120) -> list[psutil.Process]:
    """Wait for the end and give every process that was started meanwhile."""
    seen: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        seen.update({child.pid: child for child in descendants(process.pid)})
        time.sleep(0.2)  # every look reads all of /proc
    return list(seen.values())


def kill_on_spark(
    data: Data, work: Path, random_: random.Random
) -> tuple[bool, list[psutil.Process]]:
    """Kill a driver some batches after its start; whether it hit, and what it had started."""
    process = spawn(data.path, work, "local[2]")
    for _ in range(random_.randrange(1, 4)):
        if wait_for(process, "batch") is None:
            break
    time.sleep(random_.uniform(0, 0.3))
    children = descendants(process.pid)
    return kill(process), children


@pytest.mark.spark
def test_killed_on_spark(data: Data, unkilled: dict[str, Rows], tmp_path: Path) -> None:
    random_ = random.Random(SEED)
    crashed = spawn(data.path, tmp_path, "local[2]", crash_at="tasks-done:1")
    orphans = run_watched(crashed)
    assert finish(crashed) == -signal.SIGKILL, failed(tmp_path)
    # Started again at once: the lock is free, whoever is still dying.
    hit, children = kill_on_spark(data, tmp_path, random_)
    assert not wait_gone(orphans, 0), "the JVM or a worker outlived its driver"
    assert hit, failed(tmp_path)
    assert len(children) >= 2  # the JVM and at least the daemon of its workers
    check_readable(tmp_path / "out")
    orphans = children
    last = spawn(data.path, tmp_path, "local[2]")
    left = wait_gone(orphans, 10)
    assert finish(last) == 0, failed(tmp_path)
    assert not left, "the JVM or a worker outlived its driver"
    check_done(tmp_path, unkilled)


@pytest.mark.spark
@pytest.mark.long
def test_killed_on_spark_often(data: Data, unkilled: dict[str, Rows], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    kills = 0
    for run in range(8):
        work = tmp_path / str(run)
        while True:
            hit, children = kill_on_spark(data, work, random_)
            kills += hit
            check_readable(work / "out")
            assert not wait_gone(children, 10)
            if not hit or kills > 3 * (run + 1):
                break
        assert finish(spawn(data.path, work, "local[2]")) == 0, failed(work)
        check_done(work, unkilled)
    assert kills >= 15


# -- sources that cannot be asked twice -----------------------------------------------------------


def ids(work: Path) -> list[int]:
    found = []
    for path in sorted((work / "out" / "rows").glob("part-*.jsonl")):
        found += [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
    return found


def seconds(work: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted((work / "out" / "seconds").glob("part-*.jsonl")):
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            found[row["window_start"]] += row["n"]
    return found


def test_a_replayable_generator_is_exact(tmp_path: Path) -> None:
    random_ = random.Random(SEED)
    kills = 0
    for _ in range(3):
        process = spawn(Path("generator"), tmp_path, app=SPOOLED)
        wait_for(process, "ready")
        time.sleep(random_.uniform(0.05, 0.3))
        kills += kill(process)
    assert kills >= 2
    assert finish(spawn(Path("generator"), tmp_path, app=SPOOLED)) == 0, failed(tmp_path)
    assert ids(tmp_path) == sorted(ids(tmp_path)) == list(range(4_000))
    assert set(seconds(tmp_path).values()) == {100}
    assert seconds(tmp_path).total() == 4_000


class Server:
    """Sends numbered lines to whoever connects; what each connection was sent is kept."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.next = 0
        self.sent: list[range] = []
        self.last = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            first = self.next
            with connection:
                self.send(connection, 3_000 if self.last.is_set() else 10**9)
            self.sent.append(range(first, self.next))

    def send(self, connection: socket.socket, most: int) -> None:
        try:
            for _ in range(0, most, 50):
                rows = [
                    {"id": self.next + i, "ts": 1_700_000_000_000 + self.next + i}
                    for i in range(50)
                ]
                self.next += 50
                connection.sendall(b"".join(json.dumps(r).encode() + b"\n" for r in rows))
                time.sleep(0.002)
        except OSError:
            pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self.listener.close()
        self.thread.join(60)


def sealed(work: Path) -> set[int]:
    """The rows a dead process left behind durably: published ones, and those in its spool."""
    found = set(ids(work))
    for path in (work / "ck" / "spool" / "rows").glob("*.lines"):
        found |= {json.loads(line)["id"] for line in path.read_bytes().splitlines()}
    return found


def test_what_a_socket_source_sealed_is_neither_lost_nor_doubled(tmp_path: Path) -> None:
    server = Server()
    random_ = random.Random(SEED)
    source = Path(str(server.port))
    safe: set[int] = set()
    try:
        for _ in range(3):
            process = spawn(source, tmp_path, app=SPOOLED)
            wait_for(process, "ready")
            until = time.monotonic() + 100
            while not sealed(tmp_path) and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(random_.uniform(0.2, 0.5))
            assert kill(process), failed(tmp_path)
            now = sealed(tmp_path)
            assert safe <= now
            safe = now
        assert safe
        server.last.set()
        assert finish(spawn(source, tmp_path, app=SPOOLED)) == 0, failed(tmp_path)
    finally:
        server.close()
    got = ids(tmp_path)
    assert len(got) == len(set(got))
    assert safe <= set(got)
    for number, sent in enumerate(server.sent):  # of each connection a prefix, of the last all
        mine = [i for i in got if i in sent]
        assert mine == list(range(sent.start, sent.start + len(mine)))
        assert number < len(server.sent) - 1 or len(mine) == len(sent)
    counted: Counter[Any] = Counter(i // 1000 for i in got)
    assert sorted(seconds(tmp_path).values()) == sorted(counted.values())
