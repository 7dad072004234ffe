"""Arrival time: when a record was received, whatever the clock and the batches do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.api.sources import Stdin
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.arrival import ArrivalClock
from millstream.run.sources.received import spool
from millstream.run.sources.received.lines import LineReceiver
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.run.tasks.executors import InProcess
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.directory import Directory
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from millstream.testing import Driver, run_in_process
from tests.run.pieces import pieces
from tests.security.hostile import flow_to, forge, newest

MUCH = 10**9
SECOND = 1_000_000
NOON = 1_800_000_000


class Clock:
    """A wall clock that can be set, and a steady one that cannot."""

    def __init__(self) -> None:
        self.passed, self.off = 0.0, 0.0

    def wall(self) -> float:
        return NOON + self.passed + self.off

    def steady(self) -> float:
        return 77.0 + self.passed


def arrival(clock: Clock) -> ArrivalClock:
    return ArrivalClock(clock.wall, clock.steady)


# -- the clock ------------------------------------------------------------------------------------


def test_it_is_the_wall_clock() -> None:
    clock = Clock()
    ours = arrival(clock)
    for clock.passed in (1, 2, 3600, 86_400):
        assert ours.now() == (NOON + clock.passed) * SECOND
    clock.off = 20  # a correction forth
    assert ours.now() == (NOON + 86_420) * SECOND


def test_it_waits_for_a_clock_that_was_set_back_a_little() -> None:
    clock = Clock()
    ours = arrival(clock)
    clock.passed, clock.off = 10, -5
    assert ours.now() == (NOON + 5) * SECOND
    clock.off = -30
    assert ours.now() == (NOON + 5) * SECOND
    clock.passed = 40
    assert ours.now() == (NOON + 10) * SECOND


def test_it_goes_on_when_the_clock_was_set_back_far() -> None:
    clock = Clock()
    ours = arrival(clock)
    clock.passed, clock.off = 10, -86_400
    assert ours.now() == (NOON + 10) * SECOND
    clock.passed = 20
    assert ours.now() == (NOON + 20) * SECOND


def test_a_moment_in_another_century_is_not_believed() -> None:
    clock = Clock()
    ours = arrival(clock)
    clock.passed, clock.off = 1, 80 * 365 * 86_400
    assert ours.now() == (NOON + 1) * SECOND
    clock.passed = 9
    assert ours.now() == (NOON + 9) * SECOND
    clock.passed, clock.off = 10, 0
    assert ours.now() == (NOON + 10) * SECOND
    clock.passed, clock.off = 15, 80 * 365 * 86_400  # again, and not long either
    assert ours.now() == (NOON + 15) * SECOND


def test_a_clock_that_stays_ahead_is_believed() -> None:
    """A machine may start with a wrong clock and be corrected by hours."""
    clock = Clock()
    ours = arrival(clock)
    clock.passed, clock.off = 1, 7200
    ours.now()
    clock.passed = 12
    assert ours.now() == (NOON + 12 + 7200) * SECOND


@pytest.mark.parametrize("year", [-1, 1969, 3001, 5139, 60_000])
def test_a_year_that_cannot_be_is_never_believed(year: int, tmp_path: Path) -> None:
    """A manifest with a time beyond its range could not be read again."""
    clock = Clock()
    ours, there = arrival(clock), (year - 1970) * 31_556_952 + 1_000
    for clock.passed in (1, 5, 20, 3600):
        clock.off = there - NOON - clock.passed
        assert ours.now() == (NOON + clock.passed) * SECOND
        assert ours.wrong is not None
        assert ours.wrong.startswith(f"the clock of this machine shows the year {year}, expected")
    clock.off = 0
    assert ours.now() == (NOON + 3600) * SECOND and ours.wrong is None
    clock.off = there - NOON - clock.passed
    with pytest.raises(ms.ConfigError, match=f"shows the year {year}, expected .* set it and"):
        arrival(clock)


def test_a_run_goes_on_beside_an_absurd_clock_and_says_so(tmp_path: Path) -> None:
    flow, clock = ms.Flow("absurd"), Clock()
    (tmp_path / "in").mkdir()
    source = ms.Files(tmp_path / "in", schema="ts bigint", format="json", time="ts", follow=True)
    flow.source(source, name="in").sink(ms.Memory())
    plan, place = plan_flow(flow), Checkpoint(tmp_path / "ck")
    place.lock()
    running = Engine(plan, place, Settings())
    running.outlook._steady = arrival(clock)
    running.open(1)
    for clock.passed, clock.off in ((1, 0), (2, 1e11), (30, 1e11)):
        (tmp_path / "in" / f"{clock.passed}").write_text('{"ts": 1}\n')
        while not running.step(InProcess(plan)):
            time.sleep(0.01)
    running.close()
    assert [note for note in running.notes if "shows the year 5195" in note] == running.notes
    assert len(running.notes) == 1
    found = Checkpoint(tmp_path / "ck").latest()
    assert found is not None and found.batch == 2 and found.at == NOON + 30


def test_a_checkpoint_from_beyond_the_calendar_is_refused_not_continued(tmp_path: Path) -> None:
    """Each batch would write a later time, until one that cannot be read."""
    flow = flow_to(tmp_path)
    run_in_process(flow, tmp_path / "ck")
    (tmp_path / "ck" / "published").unlink()
    forge(newest(tmp_path), lambda content: content.update(at=99_999_999_999.0, complete=False))
    with pytest.raises(ms.CheckpointError, match="after the year 2999; run with a new checkpoint"):
        run_in_process(flow, tmp_path / "ck")


def test_it_never_goes_back_behind_what_was_there_before() -> None:
    clock = Clock()
    ours = arrival(clock)
    ours.raise_to((NOON + 30) * SECOND)
    assert ours.now() == (NOON + 30) * SECOND
    ours.raise_to((NOON + 40) * SECOND)
    clock.passed = 35
    assert ours.now() == (NOON + 40) * SECOND
    clock.passed = 50
    assert ours.now() == (NOON + 50) * SECOND


# -- pieces ---------------------------------------------------------------------------------------


class Fed(LineReceiver):
    """A receiver that is fed by the test and has its clock."""

    def __init__(self, directory: Path, clock: Clock, **options: Any) -> None:
        super().__init__("fed", Stdin(**options), open_storage(directory))
        self.clock = arrival(clock)

    def start(self) -> None:
        """No thread."""


def horizon(source: SpoolTracker) -> int | None:
    return source.horizon(0).clock


def test_windows_wait_for_what_was_received_and_not_read(tmp_path: Path) -> None:
    clock = Clock()
    receiver = Fed(tmp_path, clock)
    source = SpoolTracker(0, receiver, SourceState())
    for clock.passed in (1, 2, 3):
        receiver.feed(b"x\n" * 10)
        receiver.seal()
    clock.passed = 60
    source.poll()
    assert horizon(source) == (NOON + 1) * SECOND
    source.take(10, MUCH, 1)
    assert horizon(source) == (NOON + 2) * SECOND
    source.take(MUCH, MUCH, 1)
    assert horizon(source) == (NOON + 60) * SECOND
    clock.passed = 70  # nobody has looked since: something may have come
    assert horizon(source) == (NOON + 60) * SECOND


def test_a_piece_that_is_being_written_holds_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    receiver = Fed(tmp_path, clock)
    writing, written = threading.Event(), threading.Event()
    real = Directory.put

    def slowly(self: Directory, name: str, data: bytes, **options: Any) -> None:
        writing.set()
        written.wait(60)
        real(self, name, data, **options)

    monkeypatch.setattr(Directory, "put", slowly)
    clock.passed = 1
    receiver.feed(b"x\n")
    sealing = threading.Thread(target=receiver.seal)
    sealing.start()
    assert writing.wait(60)
    clock.passed = 60
    assert receiver.received() == ([], (NOON + 1) * SECOND)
    written.set()
    sealing.join()
    (piece,), clear = receiver.received()
    assert (piece.arrival, clear) == ((NOON + 1) * SECOND, (NOON + 60) * SECOND)


def test_arrival_is_kept_over_a_restart_and_a_clock_set_back(tmp_path: Path) -> None:
    clock = Clock()
    source = SpoolTracker(0, Fed(tmp_path, clock), SourceState())
    receiver = source.receiver
    assert isinstance(receiver, Fed)
    clock.passed = 10
    receiver.feed(b"x\n")
    source.poll()
    clock.passed = 20
    source.take(MUCH, MUCH, 1)
    source.poll()
    state = SourceState()
    source.save(state)  # windows up to here may have left
    clock.passed = 25
    receiver.feed(b"y\n")
    receiver.seal()
    clock.off = -15
    again = SpoolTracker(0, Fed(tmp_path, clock), state)
    assert isinstance(again.receiver, Fed)
    assert horizon(again) == (NOON + 25) * SECOND
    again.receiver.feed(b"z\n")
    again.poll()
    assert [piece.arrival for piece in pieces(again.take(MUCH, MUCH, 1))] == [
        (NOON + 25) * SECOND
    ] * 2
    clock.off = -86_400  # set back by a day, with nothing in the spool
    again.save(state)
    again.committed()
    third = SpoolTracker(0, Fed(tmp_path, clock), state)
    assert isinstance(third.receiver, Fed)
    third.receiver.feed(b"z\n")
    third.poll()
    (split,) = third.take(MUCH, MUCH, 1)
    assert split.arrival >= (NOON + 25) * SECOND


# -- flows ----------------------------------------------------------------------------------------


def counted(tmp: Path, source: Any, **options: Any) -> tuple[int, dict[str, int]]:
    flow, memory = ms.Flow("counting"), ms.Memory()
    rows = flow.source(source, name="in")
    rows.key_by().window(ms.tumbling("10ms")).agg(n=ms.count()).named("per").sink(memory)
    ledger = run_in_process(flow, tmp / "ck", poll=0.001, **options)
    return sum(row["n"] for row in memory.rows), ledger["per"]


@pytest.mark.parametrize("lateness", [None, "0s", "20ms"])
def test_nothing_is_late_by_arrival_from_a_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lateness: str | None
) -> None:
    """It is far ahead of an engine with small batches."""
    monkeypatch.setattr(spool.Receiver, "worth", 20_000)

    def rows() -> Iterator[Any]:
        for n in range(40):
            yield pa.table({"n": list(range(500))})
            if n % 4 == 3:
                time.sleep(0.012)

    source = ms.Generator(rows, lateness=lateness)
    total, ledger = counted(tmp_path, source, batch_rows=1_000)
    assert total == 20_000
    assert ledger["late"] == 0


def test_nothing_is_late_by_arrival_from_files(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{n}\n" for n in range(20_000)))
    total, ledger = counted(tmp_path, ms.Files(lines, "text", lateness="0s"), batch_rows=1_000)
    assert total == 20_000
    assert ledger["late"] == 0


def test_files_by_arrival_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """It goes back before every second batch, and while the flow is down."""
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{n:05d}\n" for n in range(20_000)))
    flow, memory = ms.Flow("counting"), ms.Memory()
    rows = flow.source(ms.Files(lines, "text", lateness="0s"), name="in")
    rows.key_by().window(ms.tumbling("10ms")).agg(n=ms.count()).named("per").sink(memory)
    wall, steps, ledger = float(NOON), 0, {}
    plan = plan_flow(flow)

    def clock() -> float:
        nonlocal wall
        wall += 0.004
        return wall

    done = False
    while not done:
        place = Checkpoint(tmp_path / "ck")
        place.lock()
        engine = Engine(plan, place, Settings.from_options({"batch_rows": 200}), clock)
        engine.open(1)
        for _ in range(4):
            steps += engine.step(InProcess(plan, 1))
            wall -= 0.1 * (steps % 2)
        done, ledger = engine.done, engine.manifest.ledger
        engine.close()
        wall -= 0.5
    assert steps > 8
    assert sum(row["n"] for row in memory.rows) == 20_000
    assert ledger["per"]["late"] == 0


def test_a_moment_in_another_century_leaves_the_guard_on(tmp_path: Path) -> None:
    """The clock was wrong for one batch: times far ahead still do not move the watermark."""
    flow = ms.Flow("guarded")
    rows = flow.source(ms.Generator(tuple, time="ts", time_unit="s", lateness="0s"), name="in")
    rows.key_by().window(ms.tumbling("10s")).agg(n=ms.count()).named("per").sink(ms.Memory())
    with Driver(flow, now=NOON) as driver:
        driver.push("in", [{"ts": NOON}])
        driver.step()
        driver.now += 80 * 365 * 86_400
        driver.push("in", [{"ts": NOON + 5}])
        driver.step()
        driver.now = NOON + 20
        driver.push("in", [{"ts": NOON + 70 * 365 * 86_400}, {"ts": NOON + 15}])
        driver.step()
        driver.push("in", [{"ts": NOON + 25}])
        driver.step()
        assert driver.ledger["per"]["late"] == 0
