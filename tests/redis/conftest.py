"""A real redis-server on a port of its own, in a directory of the test."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import free_port

redis = pytest.importorskip("redis")


class Server:
    """A Redis a test can stop, kill and start again. It keeps nothing unless `save` is called."""

    def __init__(self, directory: Path, password: str | None = None) -> None:
        self.directory, self.password = directory, password
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self.directory)]
        if self.password:
            command += ["--requirepass", self.password]
        with open(self.directory / "redis.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 100
        while True:
            try:
                if self.client().ping():
                    return
            except redis.exceptions.ConnectionError:
                assert time.monotonic() < deadline, (self.directory / "redis.log").read_text()
                time.sleep(0.02)

    def client(self) -> Any:
        return redis.Redis(port=self.port, password=self.password)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (`make test` installs it on Debian as root)")
    one = Server(tmp_path / "redis")
    yield one
    one.kill()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Server]:
    """The same with a password."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (`make test` installs it on Debian as root)")
    one = Server(tmp_path / "locked", password="s3cret-word")
    yield one
    one.kill()
