"""The engine, its tasks and what they tell each other know no kind of operator.

So a new one touches nothing of them: what it is stands behind `operators/protocol.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import millstream

ROOT = Path(millstream.__file__).parent
LOOP = ("engine", "footing", "intake", "outlook", "pacing", "batching", "attempts", "committing")
PARTS = (
    *(f"run/batches/{name}" for name in LOOP),
    *(f"run/tasks/{name}" for name in ("executors", "task", "entering", "onward", "clocks")),
    "operators/batch",
)
FILES = [ROOT / f"{name}.py" for name in PARTS]
KINDS = r"\b(pane|slate|timer|updater|window|session|tagger|dedup|distinct|interval join)s?\b"
SHARED = {"batch", "protocol", "published"}  # what all operators have in common


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_names_no_kind_of_operator(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert [line for line in lines if re.search(KINDS, line, re.IGNORECASE)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_imports_only_what_all_operators_share(file: Path) -> None:
    taken = re.findall(r"^ *from millstream\.operators\.([\w.]+) import", file.read_text(), re.M)
    assert set(taken) <= SHARED
