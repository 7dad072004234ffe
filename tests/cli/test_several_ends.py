"""Flows that run together: what is said when they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.cli.several import Board, _watch
from millstream.errors import RunError
from millstream.run.handles import Handles
from millstream.run.reporting import Progress


def ended(error: Exception | None, running: bool = False) -> Any:
    made = SimpleNamespace(url=None, progress=Progress(), error=error, running=running)
    made.overdue, made.warnings = running, ()
    return made


def test_who_failed_together_is_told_once_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    stopping: Any = SimpleNamespace(asked=False, told=False)
    both = Handles({name: ended(RunError(f"{name} broke")) for name in "ab"})
    _watch(both, Board(), stopping, [])
    assert capsys.readouterr().err == ""  # the end says it
    with pytest.raises(RunError, match=r"2 of 2 flows failed. 'a': a broke; 'b': b broke"):
        both._raise_failures()
    one = Handles({"a": ended(RunError("a broke")), "b": ended(None), "c": ended(None, True)})
    _watch(one, Board(), stopping, [])
    assert capsys.readouterr().err == "error: flow 'a' failed; 1 other still runs: a broke\n"
