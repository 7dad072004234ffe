"""A flow that serves itself while it runs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream as ms
from millstream.state.checkpoint import Checkpoint


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    """One more."""
    slate["n"] = slate.get("n", 0) + 1


def fail(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    """Never works."""
    raise ValueError("no")


def gone(url: str) -> bool:
    """Whether nobody answers any more."""
    try:
        httpx.get(f"{url}/status", timeout=1)
    except httpx.TransportError:
        return True
    return False


def asked(url: str, path: str, wanted: Any, seconds: float = 60) -> Any:
    """An answer once it is as wanted."""
    until = time.monotonic() + seconds
    while True:
        answer = httpx.get(f"{url}{path}", timeout=60)
        if answer.status_code == 200 and wanted(answer.json()):
            return answer.json()
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)


@pytest.mark.spark
def test_slates_and_status_of_a_running_flow(tmp_path: Path, spark: Any) -> None:
    more, end = threading.Event(), threading.Event()

    def events() -> Iterator[dict[str, Any]]:
        for number in range(100):
            yield {"user": f"u{number % 4}"}
        more.wait(120)
        for _ in range(20):
            yield {"user": "u1"}
        end.wait(120)

    flow = ms.Flow("served")
    users = flow.source(ms.Generator(events, schema="user string"), name="events").key_by("user")
    users.update(count, name="users", order="arrival")
    handle = flow.start(tmp_path / "ck", serve=0)
    try:
        url = handle.url
        assert url is not None
        first = asked(url, "/slates/users/u1", lambda one: one["slate"]["n"] == 25)
        # A batch is told as soon as it is committed; what the flow says of it comes a little later.
        status = asked(url, "/status", lambda one: sum(b["rows"] for b in one["history"]) == 100)
        assert status["operators"][0]["offered"] == 100
        assert status["running"] is True
        assert status["flow"] == "served"
        assert status["sources"][0]["rows"] == 100
        assert status["sources"][0]["pending_bytes"] == 0
        assert status["rates"]["batch_seconds"] > 0
        assert [node["name"] for node in status["graph"]["nodes"]] == ["events", "users"]
        more.set()
        last = asked(url, "/slates/users/u1", lambda one: one["slate"]["n"] == 45)
        assert last["batch"] > first["batch"]
        assert dict(ms.slates(tmp_path / "ck", "users"))["u0"] == {"n": 25}
        end.set()
        assert handle.wait(60).done
        assert gone(url)
    finally:
        more.set()
        end.set()
        handle.stop()


@pytest.mark.spark
def test_the_server_ends_with_a_flow_that_fails(tmp_path: Path, spark: Any) -> None:
    flow = ms.Flow("failing")
    source = ms.Generator(lambda: ({"k": i} for i in range(100)), schema="k bigint")
    flow.source(source).key_by("k").update(fail, name="bad", order="arrival")
    handle = flow.start(tmp_path / "ck", serve=0, dead_letter_grace=1)
    with pytest.raises(ms.RunError, match="dead letters"):
        handle.wait(120)
    assert handle.url is not None
    assert gone(handle.url)


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    flow = ms.Flow("refused")
    flow.source(ms.Rate(1, limit=1)).key_by("value").update(count, name="users")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ms.ConfigError, match=f"port {port} on 127.0.0.1 is taken"):
            flow.start(tmp_path / "ck", serve=port)
    with pytest.raises(ms.ConfigError, match="needs a token"):
        flow.start(tmp_path / "ck", serve="0.0.0.0:0")
    with pytest.raises(ms.ConfigError, match="expected a port"):
        flow.start(tmp_path / "ck", serve="somewhere")
    place = Checkpoint(tmp_path / "ck")
    place.lock()  # it was given back
    place.close()
