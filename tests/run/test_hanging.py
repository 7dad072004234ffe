"""A function that does not return is noticed, named and ended; so is one that ends its worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import RunError
from millstream.run.batches.engine import Engine
from millstream.run.outputs.handing import Hands
from millstream.run.planning import plan_flow
from millstream.run.tasks.calls import Call, calling, described
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.watching import Attempt, Notes, Same, hung, leave_note, watched
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.testing import Driver, run_in_process

START = datetime(2024, 1, 1, tzinfo=UTC)


class Stopped:
    """Functions wait here, so that a test can look at the thread they are in."""

    def __init__(self) -> None:
        self.here, self.go = threading.Event(), threading.Event()
        self.thread = 0

    def wait(self) -> None:
        if not self.go.is_set():
            self.thread = threading.get_ident()
            self.here.set()
            self.go.wait(60)

    def __deepcopy__(self, memo: Any) -> Stopped:
        return self


class Waiting(ms.Aggregate):
    def __init__(self, stopped: Stopped, method: str) -> None:
        super().__init__("v")
        self.stopped, self.method = stopped, method

    def zero(self) -> int:
        if self.method == "zero":
            self.stopped.wait()
        return 0

    def add(self, state: int, value: int) -> int:
        if self.method == "add" and value == 1:
            self.stopped.wait()
        return state + value

    def combine(self, left: int, right: int) -> int:
        if self.method == "combine":
            self.stopped.wait()
        return left + right

    def result(self, state: int) -> int:
        if self.method == "result" and state == 1:
            self.stopped.wait()
        return state


class Job(ms.MapReduce):
    def __init__(self, stopped: Stopped) -> None:
        self.stopped = stopped

    def map(self, key: Any, value: Any, ts: Any) -> Any:
        if value["v"] == 1:
            self.stopped.wait()
        yield value["v"], 1

    def reduce(self, key: Any, values: list[Any], window: ms.Window) -> Any:
        yield key, len(values)


class Gathering:
    """A program in the form with `close`."""

    def __init__(self, stopped: Stopped) -> None:
        self.stopped = stopped

    def map(self, key: Any, value: Any) -> Any:
        yield value["v"], 1

    def setup(self) -> None:
        """Nothing is gathered."""

    def close(self) -> Any:
        self.stopped.wait()
        return ()

    def reduce(self, key: Any, values: Any) -> Any:
        yield key, len(list(values))


def steps(stopped: Stopped) -> dict[str, tuple[Any, str]]:
    """Every place where a user's function is called, waiting at v = 1, and what is said of it."""

    def mapped(row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == 1:
            stopped.wait()
        return row

    def timed(row: dict[str, Any]) -> Any:
        if row["v"] == 1:
            stopped.wait()
        return row["ts"]

    def generated(row: dict[str, Any]) -> Any:
        yield row
        if row["v"] == 1:
            stopped.wait()

    def processed(event: Any, ctx: Any) -> Any:
        if event.value["v"] == 1:
            stopped.wait()

    def batches(table: Any) -> Any:
        stopped.wait()
        return table

    def reduced(key: Any, rows: list[Any], window: ms.Window) -> Any:
        if key == 1:
            stopped.wait()
        return {"n": len(rows)}

    def updated(event: Any, slate: dict[str, Any], ctx: Any) -> Any:
        slate["n"] = 1
        if event.key == 1:
            stopped.wait()

    def parted(key: Any) -> int:
        if key == 1:
            stopped.wait()
        return 0

    def slow(v: int) -> int:
        if v == 1:
            stopped.wait()
        return v

    def in_sql(stream: ms.Stream) -> ms.Stream:
        stream.flow.function("slow", slow, "bigint")
        made = stream.flow.sql("SELECT slow(v) AS v FROM `in`")
        assert isinstance(made, ms.Stream)
        return made

    return {
        "agg zero": (lambda s: s.key_by("v").agg(x=Waiting(stopped, "zero")), "value 0"),
        "agg combine": (
            lambda s: s.key_by().window(ms.sliding("2s", "1s")).agg(x=Waiting(stopped, "combine")),
            "combine of ",
        ),
        "agg partition": (
            lambda s: s.key_by("v", partition=parted).agg(n=ms.count()),
            "partition of key 1",
        ),
        "updated partition": (
            lambda s: s.key_by("v", partition=parted).update(updated, name="updated"),
            "partition of key 1",
        ),
        "Gathering.map": (lambda s: s.map_reduce(Gathering(stopped)), "close()"),
        "map": (lambda stream: stream.map(mapped), '"v":1'),
        "select in SQL": (in_sql, "slow() of "),
        "at": (lambda stream: stream.at(timed), '"v":1'),
        "flat_map": (lambda stream: stream.flat_map(generated), '"v":1'),
        "processed": (lambda stream: stream.process(processed), '"v":1'),
        "map_batches": (lambda stream: stream.map_batches(batches), "a table of 3 records"),
        "reduce": (lambda stream: stream.key_by("v").reduce(reduced), "key 1"),
        "agg": (lambda s: s.key_by("v").agg(x=Waiting(stopped, "add")), "value 1"),
        "agg result": (
            lambda s: s.key_by("v").agg(x=Waiting(stopped, "result")),
            "'x' of 1",
        ),
        "updated": (lambda stream: stream.key_by("v").update(updated), "key 1"),
        "Job.map": (lambda stream: stream.map_reduce(Job(stopped)), '"v":1'),
    }


@pytest.mark.parametrize("place", steps(Stopped()))
def test_the_stack_says_operator_and_record_or_key(place: str) -> None:
    stopped = Stopped()
    flow = ms.Flow("hanging")
    stream = flow.source(ms.Generator(tuple, time="ts"), name="in")
    build, given = steps(stopped)[place]
    build(stream).sink(ms.Memory(), name="out")

    def run() -> None:
        with Driver(flow, now=START.timestamp()) as driver:
            rows = [{"ts": START + timedelta(seconds=v), "v": v} for v in range(3)]
            driver.push("in", rows).end()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert stopped.here.wait(30)
        same = Same()
        frame = sys._current_frames()[stopped.thread]
        assert not same.as_in(frame)  # nothing to compare with
        assert same.as_in(sys._current_frames()[stopped.thread])
        found = calling(frame)
        assert found is not None
        call = described(found[0])
    finally:
        stopped.go.set()
        thread.join()
    assert call.operator == place.split()[0]
    assert given in call.given


def test_the_stack_says_source_and_place_of_a_reader(tmp_path: Path) -> None:
    stopped = Stopped()

    def reader(file: Any) -> Any:
        for position, v in enumerate(range(3)):
            if v == 2:
                stopped.wait()
            yield position, {"v": v}

    (tmp_path / "one.bin").write_text("x")
    flow = ms.Flow("hanging")
    files = ms.Files(tmp_path / "one.bin", reader=reader, schema="v bigint")
    flow.source(files, name="odd").sink(ms.Memory())
    seen: list[Any] = []

    def look() -> None:
        assert stopped.here.wait(30)
        found = calling(sys._current_frames()[stopped.thread])
        seen.append(None if found is None else described(found[0]))
        stopped.go.set()

    looking = threading.Thread(target=look)
    looking.start()
    run_in_process(flow, tmp_path / "ck")
    looking.join()
    (call,) = seen
    assert call == Call("odd", f"file {tmp_path / 'one.bin'} after position 1")


def test_the_next_call_is_another_one() -> None:
    same, seen = Same(), list[bool]()

    def mapped(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(same.as_in(sys._getframe()))
        return row

    flow = ms.Flow("calls")
    flow.source(ms.Generator(tuple, time="ts"), name="in").map(mapped).sink(ms.Memory())
    with Driver(flow, now=START.timestamp()) as driver:
        driver.push("in", [{"ts": START, "v": v} for v in range(100)]).end()
    assert seen == [False] * 100


def test_notes_are_private_and_follow_no_links(tmp_path: Path) -> None:
    attempt = Attempt(str(tmp_path), "0-3", 0, 2_000_000)
    leave_note(attempt, Call("map", "key 1"))
    notes = Notes(str(tmp_path))
    (file,) = notes.path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(notes.path.stat().st_mode) == 0o700
    notes.remove()
    assert not notes.path.exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    notes.path.symlink_to(elsewhere)
    with pytest.raises(OSError):
        leave_note(attempt, Call("map", "key 1"))
    assert notes.calls("hung") == []
    notes.remove()
    assert [one.name for one in elsewhere.iterdir()] == ["kept"]


def test_a_backup_of_a_slow_task_writes_down_no_calls(tmp_path: Path) -> None:
    """It would take several times as long as the task that it is to overtake."""
    before, noted = sys.getprofile(), []
    for number in range(4):
        with watched(Attempt(str(tmp_path), "1-0", number, 2_000_000, noting=2)):
            noted.append(sys.getprofile() is not before)
    assert noted == [False, False, True, True]


def test_a_function_that_hung_twice_is_not_tried_a_third_time(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path))
    assert hung(notes, "*", 2_000_000) is None
    for number in range(2):
        attempt = Attempt(str(tmp_path), "1-0", number, 2_000_000)
        with watched(attempt):
            pass
        leave_note(attempt, Call("map", "record 1"))
    with pytest.raises(RunError) as caught, watched(Attempt(str(tmp_path), "1-0", 2, 2_000_000)):
        pass
    text = str(caught.value)
    assert text.startswith("'map' hangs: its function had not returned after 2s on record 1")
    assert "function_timeout=" in text and "\n" not in text
    with watched(Attempt(str(tmp_path), "1-1", 2, 2_000_000)):
        pass  # another task


HANGS = """
import sys, threading, time, re
from millstream.run.tasks import watching
from millstream.run.tasks.watching import Attempt, watched
from millstream.ops.records import apply
from millstream.ops.chunks import Chunk
import numpy as np, pyarrow as pa

def sleeps(row):
    while row["v"] == 1:
        try:
            time.sleep(600)
        except BaseException:
            pass
    return row

def forks(row):  # as a pool of processes does; the child lives on
    import os
    if row["v"] == 1 and os.fork():
        print("forked", flush=True)
    return sleeps(row)

def matches(row):  # does not let any other thread run
    return re.match("(a+)+$", "a" * (60 * row["v"]) + "b")

def dies(row):
    if row["v"] == 1:
        import os
        os._exit(3)
    return row

watching._HELD = 0.5
attempt = Attempt(sys.argv[1], "0-0", int(sys.argv[3]), 300_000)
chunk = Chunk(pa.table({"v": [0, 1, 2]}), np.zeros(3, np.int64), np.arange(3), 0)
with watched(attempt):
    apply(chunk, globals()[sys.argv[2]], "step", None)
"""


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_worker_in_a_function_that_hangs_ends_with_a_note(tmp_path: Path, attempt: int) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS, tmp_path, "sleeps", str(attempt)])
    assert ended.returncode == 70
    assert Notes(str(tmp_path)).calls("hung") == [Call("step", 'record {"v":1}')]


def test_a_worker_that_ends_hangs_up_though_a_child_of_it_lives(tmp_path: Path) -> None:
    spark, worker = socket.socketpair()
    command = [sys.executable, "-c", HANGS, tmp_path, "forks", "0"]
    with subprocess.Popen(
        command, pass_fds=[worker.fileno()], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        worker.close()
        assert process.stdout is not None and process.stdout.readline() == b"forked\n"
        spark.settimeout(30)
        assert spark.recv(1) == b""
        assert process.wait(30) == 70
        os.killpg(process.pid, signal.SIGKILL)  # the child
    spark.close()


def test_a_function_that_lets_no_thread_run_is_ended_and_named_when_tried_again(
    tmp_path: Path,
) -> None:
    for attempt in ("0", "1"):
        command = [sys.executable, "-c", HANGS, tmp_path, "matches", attempt]
        assert subprocess.run(command, timeout=60).returncode == 1
    with pytest.raises(RunError) as caught, watched(Attempt(str(tmp_path), "0-0", 2, 300_000)):
        pass
    assert str(caught.value).startswith("'step' hangs")
    assert 'after 300ms on record {"v":1}' in str(caught.value)


def test_a_worker_that_dies_when_tried_again_leaves_the_record(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", HANGS, tmp_path, "dies", "1"]).returncode == 3
    assert Notes(str(tmp_path)).calls("call") == [Call("step", 'record {"v":1}')]


def test_settings_refuse_what_makes_no_sense() -> None:
    assert ms.Settings(function_timeout=None).function_micros is None
    assert ms.Settings(function_timeout=timedelta(seconds=3)).function_micros == 3_000_000
    for given in ("1ms", "soon", 5):
        with pytest.raises(ms.ConfigError, match="function_timeout"):
            ms.Settings(function_timeout=given)  # type: ignore[arg-type]
    with pytest.raises(ms.ConfigError, match="stop_timeout"):
        ms.Settings(stop_timeout=-1)


# -- in the driver ---------------------------------------------------------------------------------


def handing(fn: Any, rows: int = 3) -> ms.Flow:
    flow = ms.Flow("handing")
    made = [{"ts": START + timedelta(seconds=v), "v": v} for v in range(rows)]
    flow.source(ms.Generator(lambda: iter(made), time="ts"), name="in").sink(ms.Call(fn), name="to")
    return flow


def test_a_call_that_hangs_is_made_again_once_and_then_named(tmp_path: Path) -> None:
    got: list[int] = []
    hang = threading.Event()

    def fn(row: dict[str, Any]) -> None:
        got.append(row["v"])
        if row["v"] == 1 and not hang.is_set():
            hang.wait(60)

    flow = handing(fn)
    with pytest.raises(RunError) as caught:
        run_in_process(flow, tmp_path / "ck", function_timeout="1s")
    text = str(caught.value)
    assert text.startswith("sink 'to' hangs: its function had not returned after 1s on {")
    assert "'v': 1}, 2 times" in text and "handed over again at the next start" in text
    assert got == [0, 1, 1]
    hang.set()
    run_in_process(flow, tmp_path / "ck")
    assert got == [0, 1, 1, 0, 1, 2]  # neither of the two that were given up goes on


def test_a_call_that_returns_the_second_time_is_no_error(tmp_path: Path) -> None:
    got, threads = list[int](), set[int]()
    never = threading.Event()

    def fn(row: dict[str, Any]) -> None:
        got.append(row["v"])
        threads.add(threading.get_ident())
        if got == [0, 1]:
            never.wait(60)

    run_in_process(handing(fn), tmp_path / "ck", function_timeout="1s")
    never.set()
    assert got == [0, 1, 1, 2]
    assert len(threads) == 2


def test_a_function_that_is_told_of_progress_hangs_or_fails_by_name() -> None:
    hang, hands = threading.Event(), Hands(1_000_000)
    with pytest.raises(RunError, match=r"^on_progress hangs: .* after 1s; what was committed"):
        hands.tell("on_progress", lambda _: hang.wait(60), 1)
    hang.set()
    with pytest.raises(RunError, match=r"^on_progress: SystemExit: 3; a function must not end"):
        hands.tell("on_progress", sys.exit, 3)
    got: list[int] = []
    hands.tell("on_progress", got.append, 1)
    hands.close()
    assert got == [1]


def test_all_calls_are_made_on_one_thread(tmp_path: Path) -> None:
    threads = set[int]()

    def fn(row: dict[str, Any]) -> None:
        threads.add(threading.get_ident())  # a connection to a database may belong to one

    flow = ms.Flow("handing")
    path = tmp_path / "in.jsonl"
    source = flow.source(ms.Files(write(path, 40), time="ts"))
    source.sink(ms.Call(fn), name="to")
    source.sink(ms.Call(fn), name="too")
    run_in_process(flow, tmp_path / "ck", batch_rows=10, batch_bytes=200)
    assert len(threads) == 1


def test_a_generator_that_gives_nothing_for_long_is_noticed_and_waited_for(tmp_path: Path) -> None:
    go = threading.Event()

    def rows() -> Any:
        yield {"v": 1}
        go.wait(30)
        yield {"v": 2}

    flow, got = ms.Flow("quiet"), ms.Memory()
    flow.source(ms.Generator(rows), name="in").sink(got, name="to")
    plan, place = plan_flow(flow), Checkpoint(tmp_path / "ck")
    place.lock()
    engine = Engine(plan, place, Settings(parallelism=1, function_timeout="100ms"))
    told: list[str] = []

    def notice() -> None:
        told.extend(engine.notes)
        assert list(engine.noticing.silent) == ["in"]
        go.set()

    engine.patience.on_pause = notice
    engine.open(1)
    while not engine.done:
        engine.step(InProcess(plan, 1))
        time.sleep(0.01)
    engine.close()
    (note,) = told
    assert note.startswith("source 'in': its generator has given nothing for 100ms")
    assert [row["v"] for table in got.tables for row in table.to_pylist()] == [1, 2]


# -- Spark -----------------------------------------------------------------------------------------


def write(path: Path, rows: int = 20) -> str:
    lines = [
        json.dumps({"ts": (START + timedelta(seconds=v)).isoformat(), "v": v}) for v in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.spark
def test_on_spark_a_hanging_and_a_dying_function_are_named_with_their_record(
    tmp_path: Path, spark: object
) -> None:
    def hangs(row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == 7:
            time.sleep(600)
        return row

    def dies(row: dict[str, Any]) -> dict[str, Any]:
        if row["v"] == 5:
            os._exit(1)
        return row

    for fn, expected in (
        (hangs, "'map' hangs: its function had not returned after 1s on record {"),
        (dies, "a Python worker died while it ran functions of 'map' on record {"),
    ):
        flow = ms.Flow(fn.__name__)
        source = flow.source(ms.Files(write(tmp_path / "in.jsonl"), time="ts"))
        source.map(fn).sink(ms.Memory())
        checkpoint = tmp_path / fn.__name__
        with pytest.raises(RunError) as caught:
            flow.run(checkpoint, master="local[2]", function_timeout="1s")
        text = str(caught.value)
        assert text.startswith(expected)
        assert f'"v":{7 if fn is hangs else 5}' in text and "\n" not in text
        assert not (checkpoint / "tasks").exists()


@pytest.mark.spark
def test_on_spark_a_reader_that_hangs_is_named_with_its_place(
    tmp_path: Path, spark: object
) -> None:
    def reader(file: Any) -> Any:
        yield 3, {"ts": START, "v": 1}
        time.sleep(600)

    (tmp_path / "one.bin").write_text("x")
    flow = ms.Flow("reading")
    files = ms.Files(tmp_path / "one.bin", reader=reader, schema="ts timestamp, v int", time="ts")
    flow.source(files, name="odd").sink(ms.Memory())
    with pytest.raises(RunError) as caught:
        flow.run(tmp_path / "ck", master="local[2]", function_timeout="1s")
    assert str(caught.value).startswith(
        "'odd' hangs: its function had not returned after 1s on file "
        f"{tmp_path / 'one.bin'} after position 3, and its worker was ended"
    )


def test_one_flow_that_is_done_does_not_end_the_watch_over_another() -> None:
    """The process has one timer for all of them."""
    program = """
from millstream.run.outputs import handing
handing._HELD = 0.5
with handing._ended_if_held(0.5):
    with handing._ended_if_held(0.2):
        pass
    handing.threading.Event().wait(30)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "Timeout" in ended.stderr
