"""A checkpoint with slates, served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from millstream.serve.following import Follower
from millstream.serve.guard import Rules
from millstream.serve.server import Server
from millstream.serve.status import Served
from tests.serve.writing import Writer

Serve = Callable[..., httpx.Client]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Commits batches to an empty checkpoint."""
    return Writer(tmp_path / "ck")


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Serves a checkpoint with some rules; gives a client."""
    open_ones: list[tuple[Server, httpx.Client]] = []

    def start(path: Path, **rules: object) -> httpx.Client:
        view = Served(Follower(path, eager=True))
        server = Server(view, "127.0.0.1", 0, Rules(**rules))  # type: ignore[arg-type]
        server.start()
        client = httpx.Client(base_url=server.url, timeout=60)
        open_ones.append((server, client))
        return client

    yield start
    for server, client in open_ones:
        client.close()
        server.stop()
