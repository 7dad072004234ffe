"""A server to attack, on this machine only, and the wires to do it with."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream.serve.following import Follower
from millstream.serve.guard import Rules
from millstream.serve.server import Server
from millstream.serve.status import Served

HEAD = b"host: localhost\r\n\r\n"
LAST = b"host: localhost\r\nconnection: close\r\n\r\n"


class Target:
    """A served checkpoint."""

    def __init__(self, path: Path, **rules: Any) -> None:
        self.view = Served(Follower(path, eager=True))
        self.server = Server(self.view, "127.0.0.1", 0, Rules(**rules))
        self.server.start()
        self.client = httpx.Client(base_url=self.server.url, timeout=30)
        self._wires: list[socket.socket] = []

    def wire(self, sent: bytes = b"", takes: int | None = None) -> socket.socket:
        """A connection on which something was sent; `takes`: the room for what comes back."""
        wire = socket.socket()
        if takes is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, takes)
        wire.settimeout(30)
        wire.connect(("127.0.0.1", self.server.port))
        wire.sendall(sent)
        self._wires.append(wire)
        return wire

    def raw(self, request: bytes) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON for bytes that a client library would not send."""
        wire = self.wire()
        with contextlib.suppress(ConnectionError):  # refused before all was sent
            wire.sendall(request)
        head, _, body = rest(wire).partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split()[1]), headers, json.loads(body)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self.client.close()
        self.server.stop()


Attack = Callable[..., Target]


@pytest.fixture
def attack() -> Iterator[Attack]:
    """Serves a checkpoint under some rules, for one test."""
    yield from attacked()


@pytest.fixture(scope="module")
def attack_all() -> Iterator[Attack]:
    """The same for all tests of a file."""
    yield from attacked()


def attacked() -> Iterator[Attack]:
    targets: list[Target] = []

    def start(path: Path, **rules: Any) -> Target:
        targets.append(Target(path, **rules))
        return targets[-1]

    yield start
    for target in targets:
        target.close()


def rest(wire: socket.socket) -> bytes:
    """All that still comes."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while piece := wire.recv(1 << 16):
            got += piece
    return got


def eventually(what: Callable[[], bool]) -> None:
    """Wait until something is so; the test ends by its own timeout if it never is."""
    while not what():
        time.sleep(0.01)
