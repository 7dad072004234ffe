"""Flows that run together: what is said when they end."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from millstream.cli import display
from millstream.cli.several import _board, _Lines, _watch
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
    _watch(both, Mock(), stopping, [])
    assert capsys.readouterr().err == ""  # the end says it
    with pytest.raises(RunError, match=r"2 of 2 flows failed. 'a': a broke; 'b': b broke"):
        both._raise_failures()
    one = Handles({"a": ended(RunError("a broke")), "b": ended(None), "c": ended(None, True)})
    _watch(one, Mock(), stopping, [])
    assert capsys.readouterr().err == "error: flow 'a' failed; 1 other still runs: a broke\n"


def test_one_that_failed_before_its_first_batch_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(display, "_WAITING", 0.0)
    both: Any = Handles({"a": ended(RunError("a broke")), "b": ended(None, True)})
    said = StringIO()
    lines = _Lines(Console(file=said, width=80), [])
    lines.flows = {name: display.Lines(lines.console, name, []) for name in "ab"}
    monkeypatch.setattr(lines.flows["a"], "note", lambda text: pytest.fail(text))
    lines.update(both)
    assert said.getvalue().count("no batch is committed yet") == 1

    drawn = StringIO()
    with _board(
        Console(file=drawn, width=80, force_terminal=True, color_system=None), [], quiet=False
    ) as table:
        table.update(both)
    shown = drawn.getvalue().splitlines()
    assert any("a  failed" in line for line in shown)
    assert any("b  starting" in line for line in shown)
