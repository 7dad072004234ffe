"""A server of S3's protocol, a bucket for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.state.buckets import open_bucket
from tests.services import S3, unavailable

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[S3]:
    try:
        import flask_cors  # noqa: F401
        import moto  # noqa: F401
        import obstore  # noqa: F401
    except ImportError as error:
        unavailable(f"object stores cannot be tried ({error})")
    found = S3()
    yield found
    found.stop()


@pytest.fixture
def bucket(server: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of a bucket of its own, and an environment in which it can be reached."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    name = f"bucket-{next(_numbers)}"
    server.make_bucket(name)
    open_bucket.cache_clear()
    return f"s3://{name}"
