"""What tests of agents share: a place with the files of two of them, and a port."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.agent import agent as agents
from millstream.run.sources.files import tracker as files
from tests.agent.centre import free_port, write


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks at files does so at every step, however long the last look took."""
    monkeypatch.setattr(files, "_BETWEEN", 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before the next try."""
    monkeypatch.setattr(agents, "_AGAIN", 0.0)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in "ab":
        write(tmp_path, name, 1, 2, 11, 12)
    return tmp_path
