"""Clients that keep the server waiting: each is let go, and nobody else notices."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.serve.slates import Snapshot
from tests.security.conftest import HEAD, LAST, Attack, Target, eventually, rest
from tests.serve.writing import Put, Writer

QUICK = {"patience": 0.3, "idle": 0.3, "stalled": 0.5}
PAGE = b"GET /slates/counts?limit=1000 HTTP/1.1\r\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with slates of six megabytes."""
    writer = Writer(tmp_path_factory.mktemp("large"))
    writer.commit(*(Put(f"k{i:04d}", {"t": "x" * 6000}) for i in range(1000)))
    return writer.path


def ask(wire: socket.socket) -> None:
    wire.sendall(b"GET /slates HTTP/1.1\r\n" + HEAD)
    assert wire.recv(1 << 16).startswith(b"HTTP/1.1 200")


def silent(wire: socket.socket) -> None:
    pass


def half_a_head(wire: socket.socket) -> None:
    wire.sendall(b"GET /slates HTTP/1.1\r\nhost: local")


def a_drop_at_a_time(wire: socket.socket) -> None:
    def drip() -> None:
        try:
            wire.sendall(b"GET /slates HTTP/1.1\r\n")
            for _ in range(3000):
                wire.sendall(b"a: b\r\n")
                time.sleep(0.05)
        except OSError:
            return

    threading.Thread(target=drip, daemon=True).start()


def half_a_body(wire: socket.socket) -> None:
    wire.sendall(b"POST /slates HTTP/1.1\r\ncontent-length: 100\r\n" + HEAD + b"half")


def nothing_more(wire: socket.socket) -> None:
    ask(wire)


def half_a_second_request(wire: socket.socket) -> None:
    ask(wire)
    wire.sendall(b"GET /sla")


def half_a_pipelined_request(wire: socket.socket) -> None:
    wire.sendall(b"GET /slates HTTP/1.1\r\n" + HEAD + b"GET /sla")


def empty_lines(wire: socket.socket) -> None:
    ask(wire)
    wire.sendall(b"\r\n")


SLOW = [
    silent,
    half_a_head,
    a_drop_at_a_time,
    half_a_body,
    nothing_more,
    half_a_second_request,
    half_a_pipelined_request,
    empty_lines,
]


@pytest.mark.parametrize("slow", SLOW)
def test_who_does_not_ask_in_time_is_let_go(
    path: Path, attack: Attack, slow: Callable[[socket.socket], None]
) -> None:
    target = attack(path, **QUICK)
    wire = target.wire()
    slow(wire)
    rest(wire)  # comes to an end
    eventually(lambda: not target.server.crowd.open)
    assert target.client.get("/slates/counts/k0001").status_code == 200


UNREAD = {
    "a page": PAGE + HEAD,
    "the last page": PAGE + LAST,
    "a pipeline of small answers": (b"GET /slates/counts/k0001 HTTP/1.1\r\n" + HEAD) * 1000,
    "the script of the page, again and again": (b"GET /static/app.js HTTP/1.1\r\n" + HEAD) * 500,
    "changes": b"GET /events?since=-1 HTTP/1.1\r\n" + HEAD,
}


@pytest.mark.parametrize("request_", UNREAD.values(), ids=UNREAD)
def test_who_does_not_take_an_answer_is_let_go(path: Path, attack: Attack, request_: bytes) -> None:
    target = attack(path, **QUICK, page=8 << 20)
    wire = target.wire(request_, takes=4096)
    eventually(lambda: bool(target.server.crowd.open))
    eventually(lambda: not target.server.crowd.open)
    assert target.server.crowd.taking == {}
    assert b"k0999" not in rest(wire)
    assert target.client.get("/slates/counts/k0001").status_code == 200


def test_who_takes_a_page_by_the_spoon_is_let_go(path: Path, attack: Attack) -> None:
    target = attack(path, patience=30, stalled=0.5, page=8 << 20)
    wire = target.wire(PAGE + HEAD, takes=4096)
    eventually(lambda: bool(target.server.crowd.taking))
    got = 0
    while target.server.crowd.open:
        got += len(wire.recv(4096))
        time.sleep(0.01)
    assert got < 6_000_000


def test_unread_answers_have_a_bound_together(path: Path, attack: Attack) -> None:
    target = attack(path, page=1 << 20, unsent=3 << 20)
    held = [target.wire(PAGE + HEAD, takes=4096) for _ in range(12)]
    crowd = target.server.crowd
    eventually(lambda: len(crowd.open) == len(crowd.taking) <= 3)  # the others made room
    assert sum(crowd.taking.values()) <= 3 << 20
    page = target.client.get("/slates/counts", params={"limit": 1000})
    assert page.status_code == 200
    assert held


def test_a_page_ends_before_it_is_too_large(path: Path, attack: Attack) -> None:
    client = attack(path, page=1 << 20).client
    found: list[str] = []
    after: str | None = None
    while True:
        params = {"limit": 1000} | ({} if after is None else {"after": after})
        answer = client.get("/slates/counts", params=params)
        assert len(answer.content) < (1 << 20) + 100_000
        page: Any = answer.json()
        found += [slate["key"] for slate in page["slates"]]
        after = page["next"]
        if after is None:
            break
    assert found == [f"k{i:04d}" for i in range(1000)]


def test_the_silent_make_room_for_others(path: Path, attack: Attack) -> None:
    target = attack(path, connections=20)
    listener = target.wire(b"GET /events HTTP/1.1\r\n" + HEAD)
    assert listener.recv(100).startswith(b"HTTP/1.1 200")
    for number in range(60):
        target.wire(b"GET /sla" if number % 2 else b"")
        honest = target.wire(b"GET /slates/counts/k0001 HTTP/1.1\r\n" + LAST)
        assert b" 200 OK" in rest(honest)
    assert len(target.server.crowd.open) <= 20
    assert any("/events" in str(one.scope) for one in target.server.crowd.open if one.scope)


def test_when_all_are_at_work_a_further_connection_is_let_go(path: Path, attack: Attack) -> None:
    target = attack(path, connections=3)
    listen = b"GET /events HTTP/1.1\r\n" + HEAD
    held = [target.wire(listen) for _ in range(3)]
    assert all(wire.recv(100) for wire in held)
    assert rest(target.wire(listen)) == b""
    held.pop().close()
    eventually(lambda: len(target.server.crowd.open) == 2)
    assert target.client.get("/slates").status_code == 200


# -- work that takes long -----------------------------------------------------------------------


def others_are_answered(target: Target) -> None:
    for route in ("/slates/counts/k0001", "/slates", "/status", "/metrics", "/", "/static/app.js"):
        assert target.client.get(route).status_code == 200, route


def test_nobody_waits_for_listeners(
    path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, count = threading.Event(), []

    def slow(*given: Any) -> list[Any]:
        count.append(given)
        held.wait(30)
        return []

    monkeypatch.setattr("millstream.serve.events.find_changes", slow)
    target = attack(path)
    request = b"GET /events?since=-1&prefix=zzz HTTP/1.1\r\n" + HEAD
    wires = [target.wire(request) for _ in range(64)]
    assert all(wire.recv(100).startswith(b"HTTP/1.1 200") for wire in wires)
    eventually(lambda: bool(count))
    try:
        others_are_answered(target)
        assert target.client.get("/slates/counts").status_code == 200
        assert target.client.get("/events").status_code == 429
    finally:
        held.set()
    for wire in wires:
        heard = b""
        while b'{"batch":0}' not in heard:
            heard += wire.recv(4096)
    assert len(count) == 1  # for all of them


def test_nobody_waits_for_pages(
    path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = threading.Event(), threading.Event()
    page = Snapshot.page

    def slow(*given: Any) -> Any:
        begun.set()
        held.wait(30)
        return page(*given)

    monkeypatch.setattr(Snapshot, "page", slow)
    target = attack(path, requests=10)
    wires = [target.wire(b"GET /slates/counts?limit=1 HTTP/1.1\r\n" + LAST) for _ in range(10)]
    try:
        assert begun.wait(30)
        eventually(lambda: target.client.get("/slates/counts").status_code == 429)
        others_are_answered(target)
    finally:
        held.set()
    assert all(b" 200 OK" in rest(wire) for wire in wires)
    assert target.client.get("/slates/counts").status_code == 200


def test_short_pages_do_not_wait_for_long_ones(
    path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, page = threading.Event(), Snapshot.page

    def slow(*given: Any) -> Any:
        if given[4] > 100:
            held.wait(30)
        return page(*given)

    monkeypatch.setattr(Snapshot, "page", slow)
    target = attack(path)
    long = [target.wire(PAGE + LAST) for _ in range(64)]
    try:
        assert len(target.client.get("/slates/counts").json()["slates"]) == 100
        others_are_answered(target)
    finally:
        held.set()
    assert all(b" 200 OK" in rest(wire) for wire in long)
