"""Ctrl-C in a program of one's own: the batch under way is committed, unless it comes twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms


@pytest.fixture(autouse=True)
def as_in_a_program(spark: Any) -> Iterator[None]:
    """Without the handler of a session opened here, which cancels all jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def waiting(place: Path) -> ms.Flow:
    """A flow whose function says that it was called, and does not return before it is told to."""
    (place / "in.csv").write_text("x\n1\n")
    begun, go = str(place / "begun"), str(place / "go")

    def wait(record: dict[str, Any]) -> dict[str, Any]:
        Path(begun).touch()
        end = time.monotonic() + 60
        while not Path(go).exists() and time.monotonic() < end:
            time.sleep(0.05)
        return record

    flow = ms.Flow("waiting")
    flow.source(ms.Files(str(place / "in.csv"), format="csv", schema="x int")).map(wait).sink(
        ms.Jsonl(str(place / "out"))
    )
    return flow


def while_it_runs(place: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something once the function has been called."""

    def wait() -> None:
        while not (place / "begun").exists():
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)  # for whoever does not wait any longer


@pytest.mark.parametrize("quiet", [True, False])
def test_the_batch_under_way_is_committed(tmp_path: Path, quiet: bool) -> None:
    def act() -> None:
        interrupt()
        (tmp_path / "go").touch()

    while_it_runs(tmp_path, act)
    progress = waiting(tmp_path).run(checkpoint=tmp_path / "ck", quiet=quiet)
    assert (progress.batch, progress.rows) == (0, 1)
    assert [part.read_text() for part in (tmp_path / "out").glob("part-*")] == ['{"x":1}\n']


def test_who_asks_twice_does_not_wait(tmp_path: Path) -> None:
    def act() -> None:
        interrupt()
        interrupt()

    handle = waiting(tmp_path).start(checkpoint=tmp_path / "ck")
    while_it_runs(tmp_path, act)
    try:
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert handle.running
    finally:
        (tmp_path / "go").touch()
    assert handle.wait().batch == 0
