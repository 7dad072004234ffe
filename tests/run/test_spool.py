"""Receivers: what was received is sealed whole, in order, and taken exactly once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.api.sources import Generator, Rate, Socket, Stdin
from millstream.errors import CheckpointError, RunError
from millstream.ops.chunks import OFFSET_BITS
from millstream.run.batches.engine import Engine
from millstream.run.planning import plan_flow
from millstream.run.sources.rate import RateTracker
from millstream.run.sources.received import lines, spool
from millstream.run.sources.received.generating import GeneratorReceiver
from millstream.run.sources.received.lines import LineReceiver, SocketReceiver
from millstream.run.sources.received.spool import Receiver
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.run.sources.resolving import resolve_format
from millstream.run.sources.standing import progress_of
from millstream.run.tasks.reading import read
from millstream.run.tasks.splits import ERROR, RAW, RateSplit, SpoolSplit
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.directory import Directory
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from millstream.testing import run_in_process
from tests.run.pieces import pieces

MUCH = 10**9


class Lines(LineReceiver):
    """A receiver that is fed by the test, on the test's own thread."""

    def __init__(self, directory: Path) -> None:
        super().__init__("lines", Stdin(), open_storage(directory))

    def start(self) -> None:
        """No thread."""

    def finish(self) -> None:
        self.break_line()
        self.seal()
        self.finished = True


def tracker(receiver: Receiver, state: SourceState | None = None) -> SpoolTracker:
    return SpoolTracker(0, receiver, state or SourceState())


def texts(splits: list[Any]) -> list[bytes]:
    return [Path(piece.spool, piece.name).read_bytes() for piece in pieces(splits)]


def saved(source: SpoolTracker) -> SourceState:
    state = SourceState()
    source.save(state)
    source.committed()
    return state


def test_nobody_is_idle_for_the_time_in_which_senders_were_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Lines(tmp_path)
    source, spec = tracker(receiver), Stdin(format="json", time="ts", schema="ts bigint")
    receiver.most_held = 10

    def is_silent(seconds: int) -> bool:
        now, state = receiver.clock.now() + seconds * 1_000_000, SourceState(heard=1.0)
        source._clear = now
        return progress_of(spec, state, source, now, 0, now).silent

    receiver.feed(b"few\n")
    source.poll()
    source.take(MUCH, MUCH, 1)
    source.committed()
    assert is_silent(0)  # it has had room all the time
    held_back = threading.Thread(target=receiver.feed, args=(b"more than 10\n",), daemon=True)
    held_back.start()
    while not source.pending():
        source.poll()
    source.take(MUCH, MUCH, 1)
    source.committed()
    held_back.join(30)
    assert not is_silent(9)
    assert is_silent(11)
    receiver.since = 0
    with monkeypatch.context() as full:
        full.setattr(type(receiver.spool), "put", no_space)
        receiver.feed(b"x\n")
        with pytest.raises(OSError, match="No space"):
            receiver.seal()
        assert receiver.since == 0
    receiver.seal()
    assert not is_silent(9)


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def all_sealed(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.lines")))


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# -- sealing and taking ---------------------------------------------------------------------------


def test_lines_are_sealed_whole_and_in_order(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    receiver.feed(b"one\ntw")
    source.poll()
    assert texts(source.take(MUCH, MUCH, 1)) == [b"one\n"]
    receiver.feed(b"o\nthree")
    source.poll()
    assert source.pending() == 4
    (split,) = source.take(MUCH, MUCH, 1)
    assert isinstance(split, SpoolSplit)
    assert (split.file, split.rows) == (1, 1)
    assert texts([split]) == [b"two\n"]
    assert not source.ended
    receiver.finish()
    source.poll()
    assert not source.ended  # there is still something to take
    assert texts(source.take(MUCH, MUCH, 1)) == [b"three\n"]
    assert source.ended


def test_pieces_are_taken_by_rows_but_at_least_one(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    for _ in range(5):
        receiver.feed(b"x\n" * 10)
        receiver.seal()
    source.poll()
    assert len(pieces(source.take(25, MUCH, 1))) == 2
    assert len(pieces(source.take(1, MUCH, 1))) == 1
    assert len(pieces(source.take(MUCH, MUCH, 1))) == 2


def test_what_was_not_committed_is_taken_again(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    for number in range(4):
        receiver.feed(b"%d\n" % number)
        receiver.seal()
    source.poll()
    source.take(2, MUCH, 1)
    state = saved(source)
    source.take(1, MUCH, 1)  # never committed
    again = tracker(Lines(tmp_path), state)
    again.poll()
    assert texts(again.take(MUCH, MUCH, 1)) == [b"2\n", b"3\n"]
    assert sorted(int(p.name.split("-")[0]) for p in tmp_path.glob("*.lines")) == [2, 3]
    again.receiver.feed(b"4\n")  # type: ignore[attr-defined]
    again.poll()
    assert texts(again.take(MUCH, MUCH, 1)) == [b"4\n"]
    saved(again)
    assert not list(tmp_path.glob("*.lines"))


def test_a_last_piece_sealed_after_the_look_is_not_lost(tmp_path: Path) -> None:
    """The receiver seals its last piece and finishes just after the tracker listed the spool."""
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    listed = receiver.received

    def listed_then_finished() -> Any:
        found = listed()
        receiver.feed(b"last\n")
        receiver.finish()
        receiver.received = listed  # type: ignore[method-assign]
        return found

    receiver.received = listed_then_finished  # type: ignore[method-assign]
    source.poll()
    assert not source.ended
    assert source.take(MUCH, MUCH, 1) == []
    assert not source.ended
    source.poll()
    assert texts(source.take(MUCH, MUCH, 1)) == [b"last\n"]
    assert source.ended


def test_a_piece_sealed_between_look_and_take_is_not_lost(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    receiver.feed(b"first\n")
    source.poll()
    receiver.feed(b"last\n")
    receiver.finish()
    assert texts(source.take(MUCH, MUCH, 1)) == [b"first\n"]
    assert not source.ended
    source.poll()
    assert texts(source.take(MUCH, MUCH, 1)) == [b"last\n"]
    assert source.ended


def test_a_missing_piece_is_noticed(tmp_path: Path) -> None:
    for victim in range(3):
        place = tmp_path / str(victim)
        receiver = Lines(place)
        source = tracker(receiver)
        for number in range(3):
            receiver.feed(b"%d\n" % number)
            receiver.seal()
        next(place.glob(f"{victim:010d}-*")).unlink()
        with pytest.raises(CheckpointError, match="should hold pieces 0 to 2 and holds"):
            tracker(Lines(place), saved(source))


def test_half_a_piece_left_by_a_crash_is_dropped(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    receiver.feed(b"1\n")
    receiver.seal()
    (tmp_path / ".0000000001-1-1-00000000.lines.tmp").write_bytes(b"2")
    source = tracker(Lines(tmp_path))
    assert texts(source.take(MUCH, MUCH, 1)) == [b"1\n"]
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    receiver.feed(b"1\n")
    room = False
    real = Directory.put

    def write(self: Directory, name: str, data: bytes, **options: Any) -> None:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, name, data, **options)

    monkeypatch.setattr(Directory, "put", write)
    with pytest.raises(OSError, match="No space left"):
        source.poll()
    receiver.feed(b"2\n")
    with pytest.raises(OSError, match="No space left"):
        source.poll()
    waiting = threading.Thread(target=receiver._seal_patiently)
    waiting.start()  # what the receiver's own thread does
    time.sleep(0.05)
    assert waiting.is_alive()
    room = True
    waiting.join(60)
    source.poll()
    assert texts(source.take(MUCH, MUCH, 1)) == [b"1\n", b"2\n"]


def no_room(self: Directory, name: str, data: bytes, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_room_for_pieces(
    self: Directory, name: str, data: bytes, *, durable: bool = True, real: Any = Directory.put
) -> None:
    if name.endswith(".arrow"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(self, name, data, durable=durable)


def test_what_a_full_disk_takes_at_the_stop_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    monkeypatch.setattr(Directory, "put", no_room)
    receiver.feed(b"1\n2\n")
    with pytest.raises(OSError, match="No space left"):
        source.poll()
    receiver.feed(b"3\n4")
    with pytest.raises(RunError) as caught:
        source.close()
    assert str(caught.value).startswith(
        "source 'lines': 3 records that were received are lost: they cannot be written to"
    )
    assert "No space left on device" in str(caught.value)


@pytest.mark.parametrize("replayable", [True, False])
def test_a_full_disk_at_the_end_of_a_run_is_never_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replayable: bool
) -> None:
    drawn = threading.Event()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        yield {"n": 2}
        drawn.set()
        time.sleep(0.3)

    flow = ms.Flow("full")
    flow.source(ms.Generator(rows, replayable=replayable), name="in").sink(ms.Memory())
    plan = plan_flow(flow)
    place = Checkpoint(tmp_path / "ck")
    place.lock()
    engine = Engine(plan, place, Settings(parallelism=1))
    monkeypatch.setattr(Directory, "put", no_room_for_pieces)
    engine.open(1)
    assert drawn.wait(60)
    if replayable:  # it is called again, and gives them again
        engine.close()
    else:
        with pytest.raises(RunError, match="source 'in': 2 records that were received are lost"):
            engine.close()
    again = Checkpoint(tmp_path / "ck")
    again.lock()  # it was given back
    again.close()


def test_many_hanging_generators_are_left_together(tmp_path: Path) -> None:
    never = threading.Event()
    flow = ms.Flow("hanging")
    streams = [
        flow.source(ms.Generator(lambda: iter(never.wait, True)), name=f"in{i}") for i in range(6)
    ]
    for stream in streams:
        stream.sink(ms.Memory())
    place = Checkpoint(tmp_path / "ck")
    place.lock()
    engine = Engine(plan_flow(flow), place, Settings(parallelism=1, stop_timeout=1))
    engine.open(1)
    waited: list[float] = []
    for one in engine.trackers.values():
        receiver = one.receiver  # type: ignore[attr-defined]
        receiver.join = lambda timeout: waited.append(timeout)
    engine.close()
    never.set()
    assert len(waited) == 6 and max(waited) <= 0.25


def test_a_receiver_far_ahead_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "worth", 10_000)  # ten rows, by the first guess
    monkeypatch.setattr(spool, "GATHER_BYTES", 20_000)
    made = 0

    def rows() -> Iterator[dict[str, int]]:
        nonlocal made
        for made in range(1, 5001):
            yield {"n": made}

    spec = Generator(rows, overload=ms.throttle(when=2_000))
    source = tracker(GeneratorReceiver("rows", spec, open_storage(tmp_path)))
    time.sleep(0.3)
    assert made < 2_500  # it was held back
    got = 0
    while not source.ended:
        source.poll()
        got += sum(split.rows for split in source.take(MUCH, MUCH, 1))
        saved(source)
    assert got == made == 5000
    source.close()


def test_the_tail_of_a_line_over_the_limit_is_not_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1_000)
    receiver = Lines(tmp_path)
    receiver.feed(b"first\n")
    for _ in range(50):
        receiver.feed(b"x" * 100)
        assert len(receiver._data) <= 1_010
        receiver.seal()
    receiver.feed(b"the tail\nnext\nla")
    receiver.feed(b"st\n")
    receiver.seal()
    assert all_sealed(tmp_path).split(b"\n") == [b"first", b"x" * 1_002, b"next", b"last", b""]


def test_a_broken_connection_ends_a_line_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    receiver = Lines(tmp_path)
    receiver.feed(b"x" * 20)
    receiver.break_line()
    receiver.feed(b"next\n")
    receiver.seal()
    assert all_sealed(tmp_path) == b"x" * 12 + b"\nnext\n"


def test_positions_go_on_from_piece_to_piece_and_over_a_restart(tmp_path: Path) -> None:
    """A million small pieces a day must not run out of numbers."""
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    for text in (b"one\n", b"three\n", b"five\n"):
        receiver.feed(text)
        receiver.seal()
    source.poll()
    assert [piece.base for piece in pieces(source.take(2, MUCH, 1))] == [0, 4]
    again = tracker(Lines(tmp_path), saved(source))
    assert [piece.base for piece in pieces(again.take(MUCH, MUCH, 1))] == [10]
    old = SourceState(extra={"next": 3, "rows": 3})  # of a version that counted by pieces
    assert tracker(Lines(tmp_path / "old"), old).position == 3 << OFFSET_BITS


def test_small_pieces_are_read_together_up_to_a_size(tmp_path: Path) -> None:
    receiver = Lines(tmp_path)
    source = tracker(receiver)
    for size in (10, 20, 600_000, 500_000, 2_000_000, 30, 40):
        receiver.feed(b"x" * (size - 1) + b"\n")
        receiver.seal()
    source.poll()
    taken = source.take(MUCH, MUCH, 1)
    assert [1 + len(split.more) for split in taken] == [3, 1, 1, 2]
    assert sum(split.rows for split in taken) == 7


@pytest.mark.parametrize("kind", ["lines", "posts", "arrow"])
@pytest.mark.parametrize("time", [None, "ts"])
def test_pieces_read_together_are_as_those_read_one_by_one(
    tmp_path: Path, kind: str, time: str | None
) -> None:
    """Positions, times and dead letters are those of the piece a record is in."""
    fmt = resolve_format("in", Socket("h", 1, format="json", schema="n int, ts int", time=time))
    splits = []
    for number in range(6):
        path = tmp_path / f"{number}.{kind}"
        rows = [{"n": 10 * number + i, "ts": 100 * number + i} for i in range(number)]
        if kind == "arrow":
            more = {"extra": [1] * number} if number == 3 else {}
            table = pa.table(
                {**pa.Table.from_pylist(rows or [{"n": 0, "ts": 0}])[:number].to_pydict(), **more}
            )
            if number == 4:
                table = pa.table({RAW: ["x"], ERROR: ["bad"]})
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        else:
            text = "".join(f"{json.dumps(row)}\n" for row in rows) + "\nbad\n" * (number == 4)
            path.write_text("[]\n" * (kind == "posts") + text)
        splits.append(
            SpoolSplit(0, number, str(tmp_path), path.name, 7_000 + number, number, 1_000 * number)
        )
    together = replace(splits[0], more=tuple(splits[1:]))
    one_by_one = [piece for split in splits for piece in read(fmt, split, 0)]
    at_once = list(read(fmt, together, 0))

    def told(found: list[Any]) -> list[Any]:
        rows = [
            (p, t, row.get("n"))
            for one in found
            for p, t, row in zip(
                one.chunk.pos, one.chunk.ts, one.chunk.table.to_pylist(), strict=True
            )
        ]
        return [rows, [dead for one in found for dead in one.dead], sum(o.offered for o in found)]

    assert told(at_once) == told(one_by_one)
    assert len(told(at_once)[0]) > 5
    assert len(told(at_once)[1]) == 1


# -- sealing by itself ----------------------------------------------------------------------------


def test_a_quiet_socket_is_sealed_without_a_batch(tmp_path: Path, listener: socket.socket) -> None:
    receiver, source = on(listener, tmp_path)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"one\ntwo\nhalf")
        until(lambda: all_sealed(tmp_path) == b"one\ntwo\n")
        assert not receiver.finished
    source.close()


def test_what_may_be_shed_comes_in_several_pieces_however_much_is_there(
    tmp_path: Path, listener: socket.socket
) -> None:
    """Pieces are shed whole or not at all: one as large as all that may wait could never be."""
    spec = Socket("127.0.0.1", listener.getsockname()[1], overload=ms.drop(when="64KB"))
    source = tracker(SocketReceiver("lines", spec, open_storage(tmp_path)))
    connection, _ = listener.accept()
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.sendall(b"a line of some length\n" * 500_000)
    until(lambda: source.poll() or source.pending() > 200_000)
    assert max(piece.size for piece in source.waiting) <= 64 << 10
    connection.close()
    source.close()


def test_a_generator_that_takes_long_is_sealed_meanwhile(tmp_path: Path) -> None:
    go_on = threading.Event()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        go_on.wait(60)
        yield {"n": 2}

    source = tracker(GeneratorReceiver("rows", Generator(rows), open_storage(tmp_path)))
    until(lambda: list(tmp_path.glob("*.arrow")))
    assert not source.receiver.finished
    go_on.set()
    until(lambda: source.receiver.finished)
    source.poll()
    assert [piece.rows for piece in pieces(source.take(MUCH, MUCH, 1))] == [1, 1]


def test_many_small_tables_share_a_file(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3]})
    receiver = GeneratorReceiver("rows", Generator(lambda: [table] * 1000), open_storage(tmp_path))
    receiver.run()
    assert [piece.rows for piece in receiver.received()[0]] == [3000]


def test_a_generator_of_large_rows_is_sealed_in_small_pieces(tmp_path: Path) -> None:
    rows = ({"text": f"{n}" * 20_000} for n in range(2_000))
    source = tracker(GeneratorReceiver("rows", Generator(lambda: rows), open_storage(tmp_path)))
    got: list[int] = []
    while not source.ended:
        source.poll()
        got += [piece.rows for piece in pieces(source.take(MUCH, MUCH, 1))]
        saved(source)
        time.sleep(0.01)
    assert sum(got) == 2_000
    assert max(got[5:], default=0) <= 2 * spool.GATHER_BYTES / 20_000


def test_a_generator_that_never_comes_back_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it drew before is kept; what it brings after the stop does not get into the spool."""
    go_on = threading.Event()

    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        go_on.wait(60)
        yield {"n": 2}

    receiver = GeneratorReceiver("rows", Generator(rows), open_storage(tmp_path))
    source = tracker(receiver)
    until(lambda: receiver._rows or list(tmp_path.glob("*.arrow")))
    monkeypatch.setattr(receiver, "join", lambda timeout: None)  # without waiting for so long
    source.close()
    assert len(list(tmp_path.glob("*.arrow"))) == 1
    go_on.set()
    until(lambda: receiver.finished)
    assert len(list(tmp_path.glob("*.arrow"))) == 1


def test_a_disk_that_cannot_be_written_ends_the_run(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: Directory, name: str, data: bytes, **options: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Directory, "put", write)
    receiver, _ = on(listener, tmp_path)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"one\n")
        until(lambda: receiver.finished)
    assert "what was received cannot be written" in str(receiver.error)
    with pytest.raises(RunError, match="1 record that was received is lost"):
        receiver.stop()


# -- sockets --------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def on(listener: socket.socket, tmp: Path, **options: Any) -> tuple[SocketReceiver, SpoolTracker]:
    spec = Socket("127.0.0.1", listener.getsockname()[1], **options)
    receiver = SocketReceiver("lines", spec, open_storage(tmp))
    return receiver, tracker(receiver)


def all_text(source: SpoolTracker) -> bytes:
    return b"".join(texts(source.take(MUCH, MUCH, 1)))


def test_a_socket_ends_with_its_connection(tmp_path: Path, listener: socket.socket) -> None:
    receiver, source = on(listener, tmp_path)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"one\ntwo")
    until(lambda: receiver.finished)
    source.poll()
    assert all_text(source) == b"one\ntwo\n"
    assert source.ended


def test_a_stopped_socket_does_not_seal_half_a_line(
    tmp_path: Path, listener: socket.socket
) -> None:
    receiver, source = on(listener, tmp_path)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"one\ntw")
        until(lambda: receiver._data.endswith(b"tw"))
        source.close()
    assert not receiver.is_alive()
    assert all_sealed(tmp_path) == b"one\n"


def test_a_broken_line_is_not_glued_to_the_next_connection(
    tmp_path: Path, listener: socket.socket
) -> None:
    _, source = on(listener, tmp_path, reconnect=True)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"one\ntw")
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"three\n")
        until(lambda: b"three" in all_sealed(tmp_path))
        source.poll()
    assert all_text(source) == b"one\ntw\nthree\n"
    assert not source.ended
    source.close()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as taken:  # nobody else listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        source = tracker(SocketReceiver("lines", Socket("127.0.0.1", port), open_storage(tmp_path)))
        with pytest.raises(RunError, match=f"127.0.0.1:{port} cannot be reached.*is the server"):
            until(lambda: source.poll())


def test_a_socket_end_to_end_with_bad_lines(tmp_path: Path, listener: socket.socket) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b'{"n": 1}\nnonsense\n{"n": "x"}\n{"n": 2}\n')

    thread = threading.Thread(target=serve)
    thread.start()
    flow, memory = ms.Flow("socket"), ms.Memory()
    spec = Socket("127.0.0.1", listener.getsockname()[1], format="json", schema="n bigint")
    flow.source(spec, name="in").sink(memory)
    ledger = run_in_process(flow, tmp_path / "ck", poll=0.01)
    thread.join()
    assert memory.rows == [{"n": 1}, {"n": 2}]
    assert ledger["in"] == {
        "offered": 4,
        "aggregated": 2,
        "dead": 2,
        "late": 0,
        "diverted": 0,
        "dropped": 0,
    }


# -- standard input -------------------------------------------------------------------------------


def test_standard_input_by_pipe(tmp_path: Path) -> None:
    code = """
import sys, millstream as ms
from millstream.testing import run_in_process
from tests.run.pieces import pieces
flow = ms.Flow("stdin")
flow.source(ms.Stdin(), name="in").sink(ms.Jsonl(sys.argv[1] + "/out"))
run_in_process(flow, sys.argv[1] + "/ck", poll=0.01)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(20):
            process.stdin.write(f"line {number}\nli".encode())
            process.stdin.flush()
            time.sleep(0.01)
            process.stdin.write(b"ne\n")
        process.stdin.write(b"the end")
    assert process.returncode == 0
    found = b"".join(p.read_bytes() for p in sorted((tmp_path / "out").glob("part-*")))
    wanted = [text for n in range(20) for text in (f"line {n}", "line")] + ["the end"]
    assert found.decode().splitlines() == [f'{{"value":"{text}"}}' for text in wanted]


# -- generators -----------------------------------------------------------------------------------


def rows_of(tmp: Path, fn: Callable[[], Any], **options: Any) -> tuple[list[Any], Any, list[Any]]:
    flow, memory = ms.Flow("generated"), ms.Memory()
    flow.source(ms.Generator(fn, **options), name="in").sink(memory)
    ledger = run_in_process(flow, tmp / "ck", poll=0.01, dead_letter_limit=1)
    dead = [
        line for p in sorted((tmp / "ck" / "dead").iterdir()) for line in p.read_text().splitlines()
    ]
    return memory.rows, ledger["in"], dead


def test_bad_rows_of_a_generator_become_dead_letters(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield {"n": 1}
        yield "not a dict"
        yield {"n": "two"}
        yield None
        yield {"n": 3}

    got, account, dead = rows_of(tmp_path, rows, schema="n bigint")
    assert got == [{"n": 1}, {"n": 3}]
    assert (account["offered"], account["dead"]) == (5, 3)
    assert sum("must yield dicts or Arrow tables" in line for line in dead) == 2
    assert sum("two" in line for line in dead) == 1


def test_tables_and_rows_mixed(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield {"n": 0}
        yield pa.table({"n": [1, 2]})
        yield pa.record_batch({"n": [3]})
        yield {"n": 4}

    got, account, _ = rows_of(tmp_path, rows)
    assert [row["n"] for row in got] == [0, 1, 2, 3, 4]
    assert account["offered"] == 5


def test_a_table_of_nulls_that_takes_no_bytes_is_not_lost(tmp_path: Path) -> None:
    got, account, _ = rows_of(tmp_path, lambda: iter([pa.table({"n": pa.nulls(3)})]))
    assert got == [{"n": None}] * 3
    assert account["offered"] == 3


def test_a_restart_skips_what_was_sealed_even_inside_a_table(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield {"n": 0}
        yield pa.table({"n": list(range(1, 6))})
        yield {"n": 6}

    spec = Generator(rows)
    for already in range(8):
        receiver = GeneratorReceiver("rows", spec, open_storage(tmp_path / str(already)))
        receiver.resume(0, already, 0)
        receiver.run()
        assert receiver.error is None
        found = []
        for piece in receiver.received()[0]:
            found += pa.ipc.open_file(receiver.spool.map(piece.name)).read_all()["n"].to_pylist()
        assert found == list(range(already, 7))


def test_not_replayable_means_nothing_is_skipped(tmp_path: Path) -> None:
    receiver = GeneratorReceiver(
        "rows", Generator(lambda: [{"n": 1}], replayable=False), open_storage(tmp_path)
    )
    receiver.resume(0, 5, 0)
    receiver.run()
    assert [piece.rows for piece in receiver.received()[0]] == [1]


def test_a_stopped_generator_keeps_what_it_drew(tmp_path: Path) -> None:
    """One that cannot be replayed must not lose the row it was asked for last."""
    numbers = iter(range(1000))
    taken: list[int] = []
    for run in range(3):
        asked = threading.Event()

        def rows(asked: threading.Event = asked) -> Iterator[Any]:
            for n in numbers:
                if n % 10 == 9:
                    asked.set()
                    time.sleep(0.05)
                yield {"n": n}

        spec = Generator(rows, replayable=False)
        receiver = GeneratorReceiver("rows", spec, open_storage(tmp_path / str(run)))
        source = tracker(receiver)
        assert asked.wait(60)
        source.close()
        for piece in receiver.received()[0]:
            taken += pa.ipc.open_file(receiver.spool.map(piece.name)).read_all()["n"].to_pylist()
    assert taken == list(range(len(taken)))
    assert next(numbers) == len(taken)


def test_a_generator_that_fails_gives_what_it_made_and_stops_the_run(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield {"n": 1}
        raise LookupError("no more")

    flow, memory = ms.Flow("failing"), ms.Memory()
    flow.source(ms.Generator(rows), name="in").sink(memory)
    with pytest.raises(RunError, match="source 'in' failed: LookupError: no more"):
        run_in_process(flow, tmp_path / "ck", poll=0.01)
    assert memory.rows == [{"n": 1}]


# -- rate -----------------------------------------------------------------------------------------


def test_rate_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("millstream.run.sources.rate.time.time", lambda: now)
    source = RateTracker(0, Rate(100, limit=250), SourceState())
    source.poll()
    assert source.pending() == 0
    now += 1
    source.poll()
    splits = source.take(60, MUCH, 2)
    assert [(s.start, s.end) for s in splits if isinstance(s, RateSplit)] == [(0, 30), (30, 60)]
    state = SourceState()
    source.save(state)
    source.take(MUCH, MUCH, 1)  # never committed
    again = RateTracker(0, Rate(100, limit=250), state)
    assert again.origin == source.origin
    now += 10
    again.poll()
    assert not again.ended
    (split,) = again.take(MUCH, MUCH, 1)
    assert isinstance(split, RateSplit)
    assert (split.start, split.end, split.interval) == (60, 250, 10_000.0)
    assert again.ended
    assert again.take(MUCH, MUCH, 1) == []
    again.learn(1)
    again.committed()
    again.close()


def test_rate_end_to_end(tmp_path: Path) -> None:
    flow, memory = ms.Flow("rate"), ms.Memory()
    flow.source(ms.Rate(2000, limit=300)).sink(memory)
    run_in_process(flow, tmp_path / "ck", poll=0.01)
    assert [row["value"] for row in memory.rows] == list(range(300))
