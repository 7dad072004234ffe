"""The real command line in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).parent / "millstream")
TRADES = "ts,symbol,price,qty\n" + "".join(
    f"2026-01-05T09:{30 + i // 60:02d}:{i % 60:02d}Z,{'AB'[i % 2]},{10 + i % 7}.5,{i % 5 + 1}\n"
    for i in range(600)
)
APP = """
import millstream as ms

flow = ms.Flow("prices")
trades = flow.source(ms.Files("trades.csv", time="ts"))
{steps}
"""
STEPS = """
(trades.where("price > 0")
       .key_by("symbol")
       .window(ms.tumbling("1m"))
       .agg(avg=ms.mean("price"), n=ms.count())
       .sink(ms.Jsonl("out")))
"""


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float


class Here:
    """A directory with some trades, in which commands are run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "trades.csv").write_text(TRADES)

    def app(self, steps: str = STEPS, name: str = "app.py") -> str:
        """An app with these steps after `trades`."""
        return self.file(name, APP.format(steps=textwrap.dedent(steps)))

    def file(self, name: str, text: str) -> str:
        """A file with this text."""
        (self.path / name).write_text(textwrap.dedent(text))
        return name

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> Result:
        """`millstream ARGUMENTS`."""
        return self.call(COMMAND, *arguments, env=env)

    def call(self, *command: str, env: dict[str, str] | None = None) -> Result:
        """Any command."""
        started = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        took = time.monotonic() - started
        return Result(done.returncode, done.stdout, done.stderr, took)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """An empty place to work in."""
    return Here(tmp_path)
