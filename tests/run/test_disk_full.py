"""A full disk, a real one: the run pauses, says so, and goes on when there is room."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.batches.engine import Engine
from millstream.run.batches.patience import Patience
from millstream.run.planning import plan_flow
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine

ROWS = 40_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Use up the room but for some bytes."""
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    ballast = place / "ballast"
    ballast.write_bytes(bytes(max(0, free - leave)))
    return ballast


def flow_on(data: Path, out: Path) -> ms.Flow:
    if not data.exists():
        data.write_text("".join(f'{{"ts": {i // 10}, "n": {i}}}\n' for i in range(ROWS)))
    flow = ms.Flow("full")
    rows = flow.source(ms.Files(data, schema="ts bigint, n bigint", time="ts", lateness="1m"))
    rows.sink(ms.Jsonl(out / "rows"))
    windowed = rows.select("n", "n % 1000 AS k").key_by("k").window(ms.tumbling("1h"))
    windowed.agg(n=ms.count(), total=ms.sum("n")).sink(ms.Jsonl(out / "sums"))
    return flow


class Running:
    """A flow on a thread, without Spark."""

    def __init__(self, flow: ms.Flow, checkpoint: Path, **options: Any) -> None:
        plan = plan_flow(flow)
        place = Checkpoint(checkpoint)
        place.lock()
        self.engine = Engine(plan, place, Settings(batch_rows=2_000, **options))
        self.pauses: list[str | None] = []
        self.engine.patience.on_pause = lambda: self.pauses.append(self.engine.patience.paused)
        self.error: BaseException | None = None
        self.executor = InProcess(plan)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            self.engine.open(1)
            while not self.engine.done:
                if not self.engine.step(self.executor):
                    time.sleep(0.01)
        except BaseException as error:
            self.error = error
        finally:
            self.engine.close()


def check_all(out: Path) -> None:
    rows = b"".join(p.read_bytes() for p in (out / "rows").glob("part-*"))
    assert sorted(map(int, (line.split(b":")[2][:-1] for line in rows.splitlines()))) == list(
        range(ROWS)
    )
    sums = b"".join(p.read_bytes() for p in (out / "sums").glob("part-*"))
    counts = [int(line.split(b'"n":')[1].split(b",")[0]) for line in sums.splitlines()]
    assert sum(counts) == ROWS


@pytest.mark.parametrize("leave", [40_000, 70_000, 150_000, 300_000, 500_000])
def test_it_pauses_and_goes_on(tmp_path: Path, small: Path, leave: int) -> None:
    """Wherever it gets stuck: in the registry, a segment, an output or a manifest."""
    flow = flow_on(tmp_path / "in.jsonl", small / "out")
    ballast = fill(small, leave)
    running = Running(flow, small / "ck", disk_full_wait=60)
    deadline = time.monotonic() + 50
    while not running.pauses and running.thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.thread.is_alive(), running.error
    assert "No space left on device; free some space" in str(running.pauses[0])
    ballast.unlink()
    running.thread.join(60)
    assert running.error is None, running.error
    assert running.engine.patience.paused is None
    check_all(small / "out")


def test_without_room_it_stops_with_nothing_lost(tmp_path: Path, small: Path) -> None:
    flow = flow_on(tmp_path / "in.jsonl", small / "out")
    ballast = fill(small, 400_000)
    running = Running(flow, small / "ck", disk_full_wait=0.5)
    running.thread.join(60)
    assert isinstance(running.error, ms.RunError)
    message = str(running.error)
    assert "the disk is full" in message
    assert "was not committed and nothing is lost: free some space and start again" in message
    assert examine(small / "ck")[1]
    ballast.unlink()
    running = Running(flow, small / "ck")
    running.thread.join(60)
    assert running.error is None, running.error
    check_all(small / "out")


@pytest.mark.spark
def test_on_spark_the_pause_is_shown(tmp_path: Path, small: Path, spark: object) -> None:
    flow = flow_on(tmp_path / "in.jsonl", small / "out")
    ballast = fill(small, 300_000)
    shown: list[Any] = []
    handle = flow.start(
        small / "ck", batch_rows=10_000, disk_full_wait=300, on_progress=shown.append
    )
    deadline = time.monotonic() + 200
    while handle.progress.paused is None and handle.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "No space left on device; free some space" in str(handle.progress.paused)
    ballast.unlink()
    assert handle.wait(200).done
    assert any(progress.paused for progress in shown)
    check_all(small / "out")


def test_a_checkpoint_on_a_full_disk(small: Path) -> None:
    fill(small, 0)
    with pytest.raises(ms.CheckpointError, match=r"cannot be written \(No space left"):
        Checkpoint(small / "ck")


def test_a_quota_that_is_used_up_is_waited_for_as_a_full_disk_is() -> None:
    error, tries = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), list[int]()

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise error if len(tries) == 1 else ms.RunError(f"{error}: 'segment'")  # of a task
        return "done"

    patience, told = Patience(60.0), list[str | None]()
    patience.on_pause = lambda: told.append(patience.paused)
    assert patience.keep_trying(work, 0, lambda: None) == "done"
    assert len(told) == 2 and all("Disk quota exceeded" in str(one) for one in told)
