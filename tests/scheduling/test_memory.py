"""A budget of memory: how large batches may be by what earlier ones took, and whose it is."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.operators.batch import Control
from millstream.run.pressure import memory
from millstream.run.pressure.memory import Memory, of_machine, resident
from millstream.run.spark.session import _configuration, _heap
from millstream.state.memory import memory_folder
from millstream.testing import run_in_process

MB = 1 << 20


class Machine(Memory):
    """Batches that take so many times the bytes of their rows, and give little back."""

    def __init__(self, budget: int, floor: int, factor: float, kept: float) -> None:
        super().__init__(budget)
        self.floor, self.factor, self.kept = floor, factor, kept
        self.stays = 0.0

    def batch(self, wanted: float) -> tuple[float, float]:
        """The bytes of rows it took, and the memory at its peak."""
        size = min(wanted, self.room)
        top = max(self.stays, self.factor * size)
        self.stays = self.kept * top
        assert self.floor is not None
        self._peak = int(self.floor + top)
        self.learn(size, [])
        return size, self._peak


@given(
    st.integers(100, 900),
    st.floats(1, 30),
    st.floats(0, 1),
    st.lists(st.floats(0, 4000), min_size=1, max_size=40),
)
def test_memory_stays_in_the_budget_whatever_is_wanted(
    floor: int, factor: float, kept: float, wanted: list[float]
) -> None:
    machine = Machine(2048 * MB, floor * MB, factor, kept)
    for megabytes in wanted:
        size, peak = machine.batch(megabytes * MB)
        assert peak <= 2048 * MB
        assert size >= min(megabytes * MB, MB)  # and it gets on


def test_a_backlog_uses_most_of_the_budget() -> None:
    machine = Machine(2048 * MB, 1024 * MB, 5.0, 0.9)
    for _ in range(20):
        size, peak = machine.batch(10_000 * MB)
    assert peak > 0.7 * 2048 * MB
    assert machine.tight and size > 90 * MB


def test_with_less_than_spark_itself_takes_it_goes_on_in_small_batches() -> None:
    machine = Machine(512 * MB, 900 * MB, 5.0, 0.9)
    machine.batch(20 * MB)
    assert machine.batch(100 * MB)[0] == MB
    assert "most of the budget of 0.54 GB" in str(machine.cramped)
    assert Memory(2048 * MB).cramped is None


def test_what_starting_takes_is_not_taken_for_rows() -> None:
    machine = Memory(2048 * MB)
    machine.floor, machine._peak = 500 * MB, 900 * MB
    machine.learn(100_000, [])  # few bytes, while the JVM warms up
    assert machine.floor == 900 * MB and machine.room == 32 * MB
    assert machine.pressure == 0 and machine.share > 0.4
    machine._peak = 1000 * MB
    machine.learn(20 * MB, [])
    assert machine.floor == 900 * MB and machine.room == 40 * MB  # twice, and it would fit


def test_what_workers_that_have_just_started_take_is_not_taken_for_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, has = Memory(2048 * MB), 300 * MB

    def batch(size: float, processes: int, idle: int, peak: int) -> None:
        monkeypatch.setattr(machine, "look", lambda: idle)
        with machine.watching():
            monkeypatch.setattr(memory, "_tree", (0.0, list(range(processes))))
            machine._peak = peak
        machine.learn(size, [])

    monkeypatch.setattr(memory, "_tree", (0.0, [1, 2]))
    batch(20 * MB, 4, has, 900 * MB)  # two workers have started
    assert machine.tight and machine.room == 32 * MB  # and it is not known what for
    batch(20 * MB, 4, 800 * MB, 900 * MB)
    assert machine.floor == 800 * MB and machine.room == 40 * MB
    assert machine.pressure == 100 / 1248 and not machine.tight
    batch(100 * MB, 4, 850 * MB, 1300 * MB)  # what an earlier batch has left is no floor
    assert machine.floor == 800 * MB
    assert machine.room == pytest.approx(0.5 * 1248 * MB / 7.7)  # from 8 on its way to 5


def test_the_first_batches_are_not_believed_that_rows_take_little() -> None:
    machine = Machine(2048 * MB, 900 * MB, 1.0, 0.0)
    for _ in range(5):
        machine.batch(10_000 * MB)
    machine.factor = 8.0
    machine.batch(10_000 * MB)
    assert machine.used <= 2048 * MB


def test_what_a_burst_left_behind_is_not_taken_for_what_small_batches_take() -> None:
    """It is given back by and by; the next burst gets as much room as the one before had."""
    machine = Machine(2048 * MB, 600 * MB, 5.0, 0.9)
    for _ in range(20):
        machine.batch(1_000 * MB)
    room = machine.room
    for _ in range(50):
        machine.batch(0.5 * MB)
    assert machine.room >= 32 * MB
    machine.stays = 400 * MB  # some of what the burst left behind is never given back
    for wanted in (10, 20, 40, 1_000, 1_000, 1_000, 1_000):
        machine.batch(wanted * MB)
    assert machine.room >= 0.9 * room


def test_a_peak_is_over_also_if_what_comes_after_is_too_short_to_be_seen() -> None:
    machine = Machine(1 << 40, 100 * MB, 5.0, 0.9)
    machine._peak = 900 << 30
    machine.learn(100 * MB, [])
    assert machine.share > 0.8
    machine._peak = 0
    machine.learn(0.1 * MB, [])
    assert machine.share < 0.1  # that of this very process


def test_what_processes_below_have_counts() -> None:
    watched = Memory(1 << 40)
    code = "x = bytearray(80_000_000); print('ready', flush=True); input()"
    before = watched.look()
    assert before > resident() - 10 * MB  # which may grow between the two
    assert before > 10 * MB
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory._tree = (-1e9, [])
        seen = watched.look()  # others below this one may have ended since
        assert process.pid in memory._tree[1] and resident(process.pid) > 75 * MB
        assert seen > resident(process.pid) + 10 * MB
        process.communicate(b"\n")


def test_what_lies_in_memory_counts_once_whichever_flow_keeps_it(tmp_path: Path) -> None:
    """Also what other flows of this process keep, and however many processes have it mapped."""
    watched = Memory(1 << 40)
    folders = [memory_folder(str(tmp_path / name)) for name in ("one", "two")]
    if None in folders:
        pytest.skip("no file system in memory")
    before = watched.look()
    try:
        for folder in folders:
            assert folder is not None
            (folder.within("warm") / "segment").write_bytes(bytes(40 * MB))
        assert 75 * MB < watched.look() - before < 90 * MB
        with (folders[0].path / "warm" / "segment").open("rb") as file:  # type: ignore[union-attr]
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert sum(mapped[::4096]) == 0  # which has every page of it in this process
        assert 75 * MB < watched.look() - before < 90 * MB
        mapped.close()
    finally:
        for folder in folders:
            assert folder is not None
            folder.release()
    assert abs(watched.look() - before) < 10 * MB


def test_workers_of_other_machines_say_what_they_have() -> None:
    watched = Memory(1000 * MB)
    watched.floor, watched._peak = 0, 100 * MB
    here = socket.gethostname()
    controls = [
        Control(0, 0, "a", resident=("there", 1, 50 * MB)),
        Control(1, 0, "b", resident=("there", 1, 70 * MB)),
        Control(0, 1, "c", resident=("there", 2, 30 * MB)),
        Control(0, 2, "d", resident=(here, os.getpid(), 500 * MB)),  # seen anyway
    ]
    watched.learn(10 * MB, controls)
    assert watched.used == (100 + 70 + 30) * MB
    assert watched.share == 0.2


@pytest.mark.parametrize(
    ("given", "says"),
    [("2", "expected a size like"), (0, "expected a size"), ("1MB", "give at least 256MB")],
)
def test_a_budget_that_makes_no_sense_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ms.ConfigError, match=says):
        ms.Settings(memory=given)


def test_the_jvm_gets_a_quarter_of_a_budget() -> None:
    assert _heap(ms.Settings()) == {}
    assert _heap(ms.Settings(memory="2GB")) == {"spark.driver.memory": "512m"}
    assert _heap(ms.Settings(memory="1GB")) == {"spark.driver.memory": "512m"}  # Spark wants 450
    assert _heap(ms.Settings(memory="64GB")) == {"spark.driver.memory": "2048m"}
    assert 0 < of_machine() < 1 << 50


@pytest.mark.parametrize(
    ("memory", "given", "frugal"),
    [
        ("2GB", "", True),
        ("2GB", "-Dx=y", True),
        ("2GB", "-XX:+UseG1GC", False),
        ("16GB", "", False),
        (None, "", False),
    ],
)
def test_the_jvm_keeps_little_of_a_small_budget(
    memory: str | None, given: str, frugal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    settings = ms.Settings(memory=memory, spark={"spark.driver.extraJavaOptions": given})
    told = _configuration("x", settings).get("spark.driver.extraJavaOptions", "").split()
    assert ("-XX:+UseSerialGC" in told) == frugal
    assert {*given.split()} <= {*told}


def test_a_small_budget_makes_small_batches_and_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z,{n % 7}\n" for n in range(3000)]
    (tmp_path / "in.csv").write_text("".join(["ts,k\n", *sorted(lines)]))
    monkeypatch.setattr(memory, "_FIRST", 4_000)  # bytes
    monkeypatch.setattr(memory, "_LEAST", 4_000)
    monkeypatch.setattr("millstream.run.pressure.scheduler.LEAST", 10)

    def run(where: str) -> tuple[list[tuple[int, ...]], int]:
        flow, out = ms.Flow("small"), ms.Memory()
        rows = flow.source(ms.Files(tmp_path / "in.csv", time="ts"))
        rows.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).sink(out)
        run_in_process(flow, tmp_path / where, parallelism=2)
        batches = len(list((tmp_path / where / "manifests").glob("*.json")))
        found = sorted((row["k"], row["window_start"].timestamp(), row["n"]) for row in out.rows)
        return found, batches

    small, many = run("small")
    monkeypatch.setattr(memory, "_FIRST", 1 << 30)
    large, few = run("large")
    assert small == large and sum(row[2] for row in small) == 3000
    assert many > few


def test_one_thread_looks_for_all_who_have_a_batch_under_way() -> None:
    two = [Memory(1 << 40), Memory(1 << 40)]
    before = threading.active_count()
    with two[0].watching(), two[1].watching():
        started = threading.active_count() - before
        while not all(one._peak for one in two):
            time.sleep(0.01)
    assert started <= 1
    with two[0].watching():
        pass
    assert not two[0]._peak  # too short to be seen
