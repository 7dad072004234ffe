"""Another program that takes the cores changes how long batches take, not what they give."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import millstream as ms
from tests.chaos.test_elastic import counted, make_data

pytestmark = [pytest.mark.long, pytest.mark.spark]


def burn() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    others = [
        multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
        for _ in range(processes)
    ]
    for one in others:
        one.start()
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.join()


class Memory:
    """The most that this process and all below it had, without those that burn."""

    def __init__(self) -> None:
        self.most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            total = 0
            for one in psutil.Process().children(recursive=True):
                try:
                    if "spawn_main" not in " ".join(one.cmdline()):
                        total += one.memory_full_info().pss
                except psutil.Error:
                    continue
            self.most = max(self.most, total)


def test_an_outside_load_changes_latency_alone(spark: Any, tmp_path: Path) -> None:
    """Prints batch times, records per batch and memory of both runs."""
    answer = make_data(tmp_path / "data")
    told = {}
    for name, processes in (("alone", 0), ("beside others", os.cpu_count() or 1)):
        rows, seconds = list[int](), list[float]()

        def note(progress: Any, rows: Any = rows, seconds: Any = seconds) -> None:
            if progress.batch >= len(rows):
                rows.append(progress.rows)
                seconds.append(progress.batch_seconds)

        flow = ms.Flow("loaded")
        events = flow.source(ms.Files(tmp_path / "data" / "*.csv", time="ts", time_unit="ms"))
        windows = events.map(lambda event: event).key_by("key").window(ms.tumbling("1m"))
        windows.agg(n=ms.count(), total=ms.sum("value")).sink(ms.Parquet(tmp_path / name))
        begun = time.perf_counter()
        with busy(processes), Memory() as memory:
            flow.run(checkpoint=tmp_path / f"ck {name}", on_progress=note, quiet=True)
        sizes = [after - before for before, after in zip([0, *rows], rows, strict=False)]
        told[name] = (
            f"{name}: {time.perf_counter() - begun:.1f} s, {len(rows)} batches, median "
            f"{statistics.median(seconds):.2f} s and {statistics.median(sizes):,.0f} records, "
            f"workers and JVM at most {memory.most / 1e6:,.0f} MB"
        )
        assert counted(tmp_path / name) == answer
    print(*told.values(), sep="\n")
