"""Records over HTTP: answered once they are durable, taken once for each key."""

from __future__ import annotations

import errno
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.run import runner
from millstream.run.sources.received import posting, taken
from millstream.run.sources.received.posts import PostReceiver
from millstream.run.sources.received.tracker import SpoolTracker
from millstream.run.spark import sharing
from millstream.state.directory import Directory
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from tests.prepared import start
from tests.run.pieces import pieces
from tests.services import free_port

MUCH = 10**9
TOKEN = "a-token-of-some-length"


def until(condition: Callable[[], object], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Input:
    """A receiver that runs, and a client of it."""

    def __init__(self, directory: Path, state: SourceState | None = None, **options: Any) -> None:
        self.spec = ms.Http(free_port(), **{"schema": "n bigint", **options})
        self.receiver = PostReceiver("in", self.spec, open_storage(directory))
        self.source = SpoolTracker(0, self.receiver, state or SourceState())

    def send(
        self, body: bytes | str, *, method: str = "POST", path: str = "/", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return request(self.spec.port, body, method, path, named)

    def texts(self) -> list[bytes]:
        """What has been sealed and was not taken yet."""
        self.source.poll()
        found = pieces(self.source.take(MUCH, MUCH, 1))
        texts = [Path(piece.spool, piece.name).read_bytes() for piece in found]
        return [line for text in texts for line in text.splitlines()[1:]]

    def commit(self) -> SourceState:
        state = SourceState()
        self.source.save(state)
        self.source.committed()
        return state

    def close(self) -> None:
        self.source.close()


def request(
    port: int, body: bytes | str, method: str = "POST", path: str = "/", headers: Any = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        if answer.status == 503:
            assert int(answer.headers["retry-after"]) > 0
        return answer.status, content
    finally:
        connection.close()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Input]:
    found = Input(tmp_path / "spool")
    yield found
    found.close()


# -- what is taken --------------------------------------------------------------------------------


def test_an_answer_means_that_it_is_durable(one: Input, tmp_path: Path) -> None:
    assert one.send('{"n": 1}\n{"n": 2}') == (200, {"records": 2})
    assert len(list((tmp_path / "spool").glob("*.posts"))) == 1  # without a batch
    assert one.send('{"n": 3}\r\n\n   \n{"n": 4}\n') == (200, {"records": 2})
    assert one.send("\ufeff".encode() + b'{"n": 5}') == (200, {"records": 1})
    assert one.send("") == (200, {"records": 0})
    found = [line for line in one.texts() if line.strip()]
    assert [json.loads(line)["n"] for line in found] == [1, 2, 3, 4, 5]


def test_not_answered_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: who sent it waits, and in the end is told to send it again."""
    full = threading.Event()
    real = Directory.put

    def write(self: Directory, name: str, data: bytes, **options: Any) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, name, data, **options)

    monkeypatch.setattr(Directory, "put", write)
    one = Input(tmp_path)
    full.set()
    with monkeypatch.context() as hurried:
        hurried.setattr(posting, "_DURABLE_SECONDS", 0.3)
        status, said = one.send('{"n": 1}', idempotency_key="a")
    assert (status, "durable" in said["error"]) == (503, True)
    full.clear()
    assert one.send('{"n": 1}', idempotency_key="a") == (200, {"records": 1})
    assert one.texts() == [b'{"n": 1}']
    one.close()


def test_two_clients_at_once(one: Input) -> None:
    answers: list[tuple[int, dict[str, Any]]] = []

    def client(number: int) -> None:
        for i in range(20):
            lines = "\n".join(json.dumps({"n": 1000 * number + 10 * i + k}) for k in range(3))
            answers.append(one.send(lines, idempotency_key=f"{number}-{i}"))

    threads = [threading.Thread(target=client, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(200, {"records": 3})] * 40
    found = [json.loads(line)["n"] for line in one.texts()]
    for number in (1, 2):  # each in its order, no request torn
        mine = [n for n in found if n // 1000 == number]
        assert mine == [1000 * number + 10 * i + k for i in range(20) for k in range(3)]


def test_requests_share_a_piece_while_the_disk_is_busy(
    one: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    real = Directory.put

    def slowly(self: Directory, name: str, data: bytes, **options: Any) -> None:
        writing.set()
        go_on.wait(60)
        real(self, name, data, **options)

    monkeypatch.setattr(Directory, "put", slowly)
    threads = [threading.Thread(target=one.send, args=('{"n": 0}',)) for _ in range(8)]
    threads[0].start()
    writing.wait(60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: one.receiver.amount() == 7)
    go_on.set()
    for thread in threads:
        thread.join()
    one.source.poll()
    assert [piece.rows for piece in pieces(one.source.take(MUCH, MUCH, 1))] == [1, 7]


# -- keys -----------------------------------------------------------------------------------------


def test_the_same_key_is_taken_once_also_after_a_restart(tmp_path: Path) -> None:
    one = Input(tmp_path)
    for _ in range(2):
        assert one.send('{"n": 1}\n{"n": 2}', idempotency_key="a") == (200, {"records": 2})
    assert one.texts() == [b'{"n": 1}', b'{"n": 2}']
    state = one.commit()
    assert one.send('{"n": 1}\n{"n": 2}', idempotency_key="a") == (200, {"records": 2})
    assert one.send('{"n": 3}', idempotency_key="b") == (200, {"records": 1})
    one.close()
    again = Input(tmp_path, state)
    assert again.send('{"n": 1}\n{"n": 2}', idempotency_key="a") == (200, {"records": 2})
    assert again.send('{"n": 3}', idempotency_key="b") == (200, {"records": 1})
    assert again.texts() == [b'{"n": 3}']  # sealed before, and not taken yet
    again.close()


def test_a_key_with_another_body_is_refused(one: Input) -> None:
    one.send('{"n": 1}', idempotency_key="a")
    status, said = one.send('{"n": 2}', idempotency_key="a")
    assert (status, "new key" in said["error"]) == (422, True)
    assert one.texts() == [b'{"n": 1}']


def test_keys_are_kept_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "MOST", 10)
    known = taken.TakenKeys(open_storage(tmp_path))
    for n in range(95):
        known.add([taken.Taken(str(n), "x", n)])
        known.log([taken.Taken(str(n), "x", n)])
    with open(tmp_path / "keys.9", "ab") as log:
        log.write(b'["half')
    again = taken.TakenKeys(open_storage(tmp_path))
    again.load()
    for one in (known, again):
        assert [n for n in range(95) if one.get(str(n))] == list(range(80, 95))
    assert len(list(tmp_path.iterdir())) == 2
    again.log([taken.Taken("95", "x", 95)])
    third = taken.TakenKeys(open_storage(tmp_path))
    third.load()
    assert third.get("95") == ("95", "x", 95)


def test_damaged_keys_are_not_overlooked(tmp_path: Path) -> None:
    (tmp_path / "keys.0").write_bytes(b'["a","x",1]\n[nonsense\n["b","x",1]\n')
    with pytest.raises(ms.CheckpointError, match=r"keys.0 is damaged.*taken once more"):
        taken.TakenKeys(open_storage(tmp_path)).load()


# -- what is refused ------------------------------------------------------------------------------


def test_refusals_say_what_to_do(one: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(status: int, words: str, *args: Any, **options: Any) -> None:
        got, said = one.send(*args, **options)
        assert (got, words in said["error"]) == (status, True), said

    refusal(405, "POST", "", method="GET")
    refusal(404, "posted to /", "x", path="/elsewhere")
    refusal(400, "Idempotency-Key", "x", idempotency_key="x" * 201)
    refusal(415, "Content-Encoding", "x", content_encoding="gzip")
    refusal(400, "Host", "x", host="elsewhere.example")
    refusal(403, "other sites", "x", origin="http://elsewhere.example")
    monkeypatch.setattr(posting, "MAX_BODY", 100)
    refusal(413, "in parts", "x" * 101)
    monkeypatch.setattr(one.receiver, "_held", 10**9)
    refusal(503, "behind", "x")
    assert one.texts() == []


def test_a_body_of_unknown_length_is_bounded_too(
    one: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "MAX_BODY", 100)

    def parts() -> Iterator[bytes]:
        yield b'{"n": 1}\n'
        yield b'{"n": 2}\n'

    assert one.send(parts()) == (200, {"records": 2})  # type: ignore[arg-type]
    assert one.send(iter([b"x" * 60] * 2))[0] == 413  # type: ignore[arg-type]


def test_who_sends_slowly_or_goes_away_leaves_nothing(
    one: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
    with (
        monkeypatch.context() as hurried,
        socket.create_connection(("127.0.0.1", one.spec.port), timeout=60) as slow,
    ):
        hurried.setattr(posting, "_BODY_SECONDS", 0.2)
        slow.sendall(head + b'{"n": 1}\n')
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
    with socket.create_connection(("127.0.0.1", one.spec.port), timeout=60) as gone:
        gone.sendall(head + b'{"n": 2}\n')
    assert one.send('{"n": 3}') == (200, {"records": 1})
    assert one.texts() == [b'{"n": 3}']


def test_a_token_is_asked_for_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("MILLSTREAM_INPUT_TOKEN", TOKEN)
    for number, options in enumerate([{}, {"token_file": str(tmp_path / "token")}]):
        one = Input(tmp_path / str(number), **options)
        assert TOKEN not in repr(one.spec)
        for wrong in ({}, {"authorization": "Bearer nonsense"}, {"authorization": TOKEN}):
            status, said = one.send('{"n": 1}', **wrong)
            assert (status, "Bearer TOKEN" in said["error"]) == (401, True)
        right = f"Bearer {TOKEN}"
        assert one.send('{"n": 1}', authorization=right) == (200, {"records": 1})
        one.close()


def test_beyond_this_machine_only_with_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ms.Http(free_port(), host="0.0.0.0", schema="n bigint")
    with pytest.raises(ConfigError, match="needs a token: set MILLSTREAM_INPUT_TOKEN"):
        PostReceiver("in", spec, open_storage(tmp_path))
    monkeypatch.setenv("MILLSTREAM_INPUT_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        PostReceiver("in", spec, open_storage(tmp_path))


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = ms.Http(server.getsockname()[1], schema="n bigint")
        receiver = PostReceiver("in", spec, open_storage(tmp_path))
        with pytest.raises(ConfigError, match=r"cannot listen there.*choose another port"):
            SpoolTracker(0, receiver, SourceState())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 0}, "from 1 to 65535"),
        ({"path": "/a?b"}, "expected a path"),
        ({"schema": None}, "give a schema"),
        ({"format": "parquet"}, "use text, json, csv or debezium"),
        ({"host": ""}, "expected an address"),
        ({"token_env": ""}, "name of an environment variable"),
    ],
)
def test_mistakes_are_found_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ms.Http(**{"port": 8400, "schema": "n bigint", **options})


# -- a flow that is killed ------------------------------------------------------------------------

APP = """
import sys, millstream as ms
from millstream.testing import run_in_process
flow = ms.Flow("posted")
source = ms.Http(int(sys.argv[1]), path="/in", schema="n bigint, ts bigint", time="ts")
flow.source(source, name="in").sink(ms.Jsonl(sys.argv[2] + "/out"))
run_in_process(flow, sys.argv[2] + "/ck", poll=float(sys.argv[3]))
"""


def test_nothing_answered_is_lost_by_a_kill_and_nothing_taken_twice(tmp_path: Path) -> None:
    """Killed between the answer and the batch, and after a batch; all is sent again each time."""
    port = free_port()
    sent: list[tuple[str, str]] = []
    (tmp_path / "app.py").write_text(APP)
    for life in range(4):
        poll = 30.0 if life % 2 == 0 and life < 3 else 0.01  # no batch before it is killed
        command = [str(tmp_path / "app.py"), str(port), str(tmp_path), str(poll)]
        process = start(*command, cwd=tmp_path, env=dict(os.environ))
        try:
            until(lambda: listens(port))
            for i in range(5):
                lines = f'{{"n": {10 * life + i}, "ts": {life}}}\n'
                sent.append((f"{life}-{i}", lines))
            for key, lines in sent:
                got = request(port, lines, path="/in", headers={"Idempotency-Key": key})
                assert got == (200, {"records": 1})
            if life == 3:
                until(lambda: len(written(tmp_path)) >= 20)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert sorted(written(tmp_path)) == [10 * life + i for life in range(4) for i in range(5)]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def written(tmp: Path) -> list[int]:
    files = (tmp / "out").glob("part-*") if (tmp / "out").exists() else ()
    return [json.loads(line)["n"] for path in files for line in path.read_text().splitlines()]


def test_ports_and_tokens_are_looked_at_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.delenv("MILLSTREAM_INPUT_TOKEN", raising=False)
    monkeypatch.setattr(sharing, "open_session", started)
    monkeypatch.setattr(runner, "check_java_and_master", lambda settings: None)

    def said(*specs: ms.Http) -> str:
        flow = ms.Flow("posted")
        for number, spec in enumerate(specs):
            flow.source(spec, name=f"in{number}").sink(ms.Memory())
        with pytest.raises(ConfigError) as caught:
            flow.start(tmp_path / "ck")
        return str(caught.value)

    port = free_port()
    same = [ms.Http(port, schema="n bigint"), ms.Http(port, schema="n bigint")]
    assert "choose another port" in said(*same)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "choose another port" in said(ms.Http(other.getsockname()[1], schema="n bigint"))
    assert "needs a token" in said(ms.Http(port, host="0.0.0.0", schema="n bigint"))
    assert "cannot be read" in said(
        ms.Http(port, schema="n bigint", token_file=str(tmp_path / "none"))
    )
    monkeypatch.setenv("MILLSTREAM_INPUT_TOKEN", TOKEN)
    assert "give an address" in said(ms.Http(port, host="192.0.2.1", schema="n bigint"))
    weak = ms.Http(port, schema="n bigint", token_env="WEAK")
    monkeypatch.setenv("WEAK", "short")
    assert "at least 16 printable" in said(weak)
