"""Server-sent changes: complete, in order, resumable, and bounded for those who are slow."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from millstream.serve.events import Listeners, Stream, slate_events
from millstream.serve.following import Follower
from millstream.serve.guard import Rules
from millstream.serve.status import Served
from tests.serve.conftest import Serve
from tests.serve.writing import GONE, Put, Writer

Event = tuple[str, str, Any]  # event, id, data


def events(answer: httpx.Response) -> Iterator[Event]:
    """Parsed as a browser does."""
    kind, last, data = "message", "", ""
    for line in answer.iter_lines():
        if not line:
            if data:
                yield kind, last, json.loads(data)
            kind, data = "message", ""
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            last = value
        elif name == "data":
            data += value


def until_batch(stream: Iterator[Event], batch: int) -> list[Event]:
    """Events up to the end of a batch."""
    seen = []
    for event in stream:
        seen.append(event)
        if event[0] == "batch" and event[2]["batch"] >= batch:
            return seen
    raise AssertionError("the stream has ended")


def told(seen: list[Event]) -> dict[str, Any]:
    """The last slate told of every key."""
    return {data["key"]: data["slate"] for kind, _, data in seen if kind == "slate"}


def test_changes_come_as_they_are_committed(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {"n": 1}))
    client = serve(writer.path)
    with client.stream("GET", "/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = events(answer)
        writer.commit(Put("b\n\nevent: evil", {"n": 2}, ts=1_000_000), Put("a", GONE))
        seen = until_batch(stream, 1)
    slates = [data for kind, _, data in seen if kind == "slate"]
    assert sorted(slates, key=lambda one: one["key"]) == [
        {"updater": "counts", "key": "a", "slate": None, "ts": "1970-01-01T00:00:00Z", "batch": 1},
        {
            "updater": "counts",
            "key": "b\n\nevent: evil",
            "slate": {"n": 2},
            "ts": "1970-01-01T00:00:01Z",
            "batch": 1,
        },
    ]
    assert seen[-1] == ("batch", "1", {"batch": 1})


def test_a_listener_goes_on_where_it_was_cut_off(writer: Writer, serve: Serve) -> None:
    for number in range(5):
        writer.commit(Put("a", {"n": number}), Put(f"k{number}", {"n": number}))
    client = serve(writer.path)
    with client.stream("GET", "/events", headers={"last-event-id": "2"}) as answer:
        seen = until_batch(events(answer), 4)
    assert told(seen) == {"a": {"n": 4}, "k3": {"n": 3}, "k4": {"n": 4}}
    assert {last for kind, last, _ in seen if kind == "slate"} == {"2"}  # cut off, it comes again
    with client.stream("GET", "/events", params={"since": 3}) as answer:
        assert told(until_batch(events(answer), 4)) == {"a": {"n": 4}, "k4": {"n": 4}}
    with client.stream("GET", "/events", params={"since": -1}) as answer:
        everything = told(until_batch(events(answer), 4))
    assert everything == {"a": {"n": 4}} | {f"k{i}": {"n": i} for i in range(5)}


def test_filters(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("ab", {}), Put("ac", {}), Put("b", {}))
    client = serve(writer.path)
    params = {"since": -1, "updater": "counts", "prefix": "a"}
    with client.stream("GET", "/events", params=params) as answer:
        assert told(until_batch(events(answer), 0)).keys() == {"ab", "ac"}


def test_what_cannot_be_told_any_more_is_a_reset(writer: Writer, serve: Serve) -> None:
    for number in range(20):
        writer.commit(Put("a", {"n": number}))
    client = serve(writer.path)
    for since in ("1", "500"):
        with client.stream("GET", "/events", headers={"last-event-id": since}) as answer:
            assert next(events(answer)) == ("reset", "19", {"batch": 19})
    with client.stream("GET", "/events", headers={"last-event-id": "<x>"}) as answer:
        writer.commit(Put("a", {"n": 20}))
        assert told(until_batch(events(answer), 20)) == {"a": {"n": 20}}


def test_a_stream_adds_up_to_the_state(writer: Writer, serve: Serve) -> None:
    """What a listener was told is what is there, whatever was merged or collected meanwhile."""
    writer.commit(Put("a", {"n": 0}))
    client = serve(writer.path)
    known: dict[str, Any] = {"a": {"n": 0}}

    def write() -> None:
        for number in range(1, 60):
            key = f"k{number % 7}"
            writer.commit(
                Put(key, GONE if number % 3 == 0 else {"n": number}), Put("a", {"n": number})
            )

    work = threading.Thread(target=write)
    with client.stream("GET", "/events") as answer:
        work.start()
        for kind, _, data in events(answer):
            if kind == "slate":
                known[data["key"]] = data["slate"]
            elif data["batch"] == 59:
                break
    work.join()
    now = {slate["key"]: slate["slate"] for slate in client.get("/slates/counts").json()["slates"]}
    assert {key: slate for key, slate in known.items() if slate is not None} == now


def test_heartbeats_and_a_listener_that_takes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "ck")
    writer.commit(Put("a", {"n": 1}))
    view, rules = Served(Follower(writer.path, eager=True)), Rules(stalled=0.2)

    async def talk(takes: int) -> list[bytes]:
        listeners, got = Listeners(1), []
        listeners.heartbeat = 0.01

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                if len(got) >= takes:
                    await asyncio.sleep(3600)
                got.append(message["body"])

        async def receive() -> Any:
            await asyncio.sleep(3600)

        stream = Stream(view, listeners, rules, partial(slate_events, listeners, None, ""), None)
        await asyncio.wait_for(stream({"type": "http"}, receive, send), 60)
        assert listeners.count == 0
        return got

    got = asyncio.run(talk(4))
    assert got[0].startswith(b"retry:")
    assert got[1:] == [b": still here\n\n"] * 3


def test_a_listener_that_leaves_is_forgotten(writer: Writer, serve: Serve) -> None:
    writer.commit(Put("a", {"n": 1}))
    client = serve(writer.path, listeners=1)
    url = client.base_url

    def listens() -> bool:
        with socket.create_connection((url.host, url.port), timeout=60) as wire:
            wire.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return wire.recv(4096).startswith(b"HTTP/1.1 200")

    for _ in range(6):  # each gets the place of the one before, as soon as it is seen to be gone
        until = time.monotonic() + 60
        while not listens():
            assert time.monotonic() < until, "its place is not free again"
            time.sleep(0.02)
