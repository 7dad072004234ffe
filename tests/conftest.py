"""What tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session with two cores, the same for all tests that ask for one."""
    from millstream.run.session import open_session
    from millstream.settings import Settings

    session, ours = open_session("tests", Settings(master="local[2]"))
    yield session
    if ours:
        session.stop()
