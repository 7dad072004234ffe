"""What workers print is shown; where nobody takes it, Spark must not wait for that."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

import pytest

from millstream.run.spark.session import _Said


def closed() -> Any:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("screen", [io.BytesIO(), closed(), None], ids=["bytes", "closed", "none"])
def test_all_is_read_though_nobody_takes_it(monkeypatch: pytest.MonkeyPatch, screen: Any) -> None:
    said = _Said()
    said.shown = True
    monkeypatch.setattr(sys, "stderr", screen)
    reading, writing = os.pipe()
    said.follow(os.fdopen(reading, "rb"))
    (thread,) = [one for one in threading.enumerate() if one.name == "spark-output"][-1:]
    with os.fdopen(writing, "wb") as pipe:  # more than a pipe holds
        pipe.writelines(f"line {number}\n".encode() for number in range(20_000))
    thread.join(60)
    assert said.lines[-1] == "line 19999"


def test_what_is_taken_is_not_kept(capsys: pytest.CaptureFixture[str]) -> None:
    said = _Said()
    said.shown = True
    said._read(io.BytesIO("größer\n".encode()))
    assert capsys.readouterr().err == "größer\n" and not said.lines
