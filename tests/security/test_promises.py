"""SECURITY.md names a test for each promise: all of them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[^`:]+)::([^`]+)`", (ROOT / "SECURITY.md").read_text())


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_promise_names_a_test(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text()


def test_promises_are_made() -> None:
    assert len(NAMED) > 10
