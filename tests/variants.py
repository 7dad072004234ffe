"""Which variants of a test every run has, and which only long runs have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def variants(values: Iterable[Any], always: int = 1) -> list[Any]:
    """All of them, of which every run has the first few: the others tell the same story again."""
    given = list(values)
    return [*given[:always], *(_long(value) for value in given[always:])]


def _long(value: Any) -> Any:
    """A tuple is one value for each of several parameters."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
