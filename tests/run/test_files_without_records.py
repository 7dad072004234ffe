"""Followed files that have no record yet: they take part from their listing on.

One that has been listed holds the watermark until it has a first record, or has been silent for
the idle timeout. So what it then brings is not late for a window that left meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.files.recognising import Recogniser
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint


class Live:
    """A flow over followed files in windows of ten seconds, whose clock the test owns."""

    def __init__(self, tmp: Path, **options: Any) -> None:
        self.tmp, self.options = tmp, {"idle_timeout": "10s", "lateness": "0s", **options}
        self.now, self.memory, self.late = 1000.0, ms.Memory(), ms.Memory()
        (tmp / "in").mkdir()

    def open(self) -> None:
        flow = ms.Flow("live")
        timing = {"schema": "ts bigint, n bigint", "time": "ts", "follow": True, **self.options}
        stream = flow.source(ms.Files(self.tmp / "in", "csv", **timing))
        counted = stream.key_by().window(ms.tumbling("10s")).agg(n=ms.count())
        counted.sink(self.memory)
        counted.late().sink(self.late, name="late")
        plan = plan_flow(flow)
        place = Checkpoint(self.tmp / "ck")
        place.lock()
        self.engine = Engine(plan, place, Settings(), clock=lambda: self.now)
        self.engine.open(1)
        self.executor = InProcess(plan)

    def write(self, name: str, data: str) -> None:
        with open(self.tmp / "in" / name, "a") as out:
            out.write(data)

    def step(self, seconds: float = 0) -> list[int]:
        """Let time pass, and all be done that there is to do; gives all windows so far."""
        self.now += seconds
        (tracker,) = self.engine.trackers.values()
        tracker._next_look = 0.0  # type: ignore[attr-defined]
        while self.engine.step(self.executor):
            pass
        rows = sorted(self.memory.rows, key=lambda row: row["window_start"])
        return [row["n"] for row in rows]


@pytest.fixture(autouse=True)
def nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files here begin alike, and would be taken for copies for a while."""
    monkeypatch.setattr(Recogniser, "COPYING", 0.0)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path)
    yield made
    made.engine.close()


def lines(start: int, stop: int) -> str:
    return "".join(f"{n},{n}\n" for n in range(start, stop))


HEAD = "ts,n\n"


@pytest.mark.parametrize("first", ["", "ts,", HEAD, HEAD + "5,"])
def test_its_records_are_not_late_within_the_timeout(live: Live, first: str) -> None:
    live.write("a.csv", first)
    live.write("b.csv", HEAD + lines(0, 100))
    live.open()
    assert live.step() == []
    assert live.step(9) == []
    live.write("a.csv", (HEAD + lines(5, 50))[len(first) :])
    assert live.step() == [15, 20, 20, 20]  # a is at 49
    assert live.late.rows == []


@pytest.mark.parametrize("first", ["", "ts,", HEAD, HEAD + "5,"])
def test_after_the_timeout_it_holds_nothing(live: Live, first: str) -> None:
    for name in range(20):
        live.write(f"{name}.csv", first)
    live.write("b.csv", HEAD + lines(0, 100))
    live.open()
    live.step()
    live.write("b.csv", lines(100, 120))
    live.step(9)  # b is heard of
    assert live.step(2) == [10] * 11
    live.write("3.csv", (HEAD + lines(5, 50) + lines(115, 125))[len(first) :])
    live.step()
    assert (
        len(live.late.rows) == 45
    )  # their windows have left: the one case in which timing decides


def test_it_holds_where_the_watermark_stood(live: Live) -> None:
    live.write("b.csv", HEAD + lines(0, 51))
    live.open()
    assert live.step() == [10] * 5
    live.write("a.csv", "")
    live.step()
    live.write("b.csv", lines(51, 91))
    assert live.step() == [10] * 5
    live.write("a.csv", HEAD + lines(45, 71))
    assert live.step() == [10, 10, 10, 10, 10, 20, 20]
    assert len(live.late.rows) == 5  # 45 to 49 had left before it was there


def test_every_change_is_a_sign_of_life(live: Live) -> None:
    live.write("a.csv", "")
    live.write("b.csv", HEAD + lines(0, 51))
    live.open()
    for sign in "ts,n":
        live.write("a.csv", sign)
        assert live.step(8) == []
    live.write("a.csv", "\n" + lines(0, 51))
    assert live.step() == [20] * 5


def test_for_ever_without_a_timeout(tmp_path: Path) -> None:
    live = Live(tmp_path, idle_timeout=None)
    live.write("a.csv", "")
    live.write("b.csv", HEAD + lines(0, 51))
    live.open()
    assert live.step() == []
    assert live.step(10**6) == []
    (tmp_path / "in" / "a.csv").unlink()
    assert live.step() == [10] * 5
    live.engine.close()


def test_empty_files_that_follow_each_other_do_not_hold_it_for_ever(live: Live) -> None:
    live.open()
    for turn in range(20):
        live.write(f"{turn}.done", "")
        live.write("b.csv", ("" if turn else HEAD) + lines(turn * 10, turn * 10 + 10))
        found = live.step(5)
        assert len(found) >= turn - 5
    assert live.late.rows == []


def test_after_a_start_it_holds_again(live: Live) -> None:
    live.write("a.csv", "")
    live.write("b.csv", HEAD + lines(0, 51))
    live.open()
    live.step()
    live.engine.close()
    live.now += 3600
    live.open()
    assert live.step() == []
    live.write("a.csv", HEAD + lines(0, 51))
    assert live.step() == [20] * 5


def test_bounded_files_that_are_empty_hold_nothing(tmp_path: Path) -> None:
    live = Live(tmp_path, follow=False, idle_timeout=None)
    live.write("a.csv", "")
    live.write("b.csv", HEAD)
    live.write("c.csv", HEAD + lines(0, 51))
    live.open()
    assert live.step() == [10, 10, 10, 10, 10, 1]
    live.engine.close()
