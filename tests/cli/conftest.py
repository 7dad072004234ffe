"""The real command line in processes of its own, whose imports are done beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.prepared import start

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
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            surroundings = {**os.environ, **(env or {})}
            running = start(
                "millstream", *arguments, cwd=self.path, env=surroundings, stdout=out, stderr=err
            )
            try:
                code = running.wait(180)
            finally:
                running.kill()
            out.seek(0)
            err.seek(0)
            return Result(code, out.read(), err.read())

    def call(self, *command: str) -> Result:
        """Any command, newly started."""
        done = subprocess.run(
            command,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """An empty place to work in."""
    return Here(tmp_path)
