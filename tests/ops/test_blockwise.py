"""Records are made for windows when their turn comes, each once, and few at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.ops.windows import blockwise
from millstream.ops.windows.blockwise import InTurn


class Made:
    """Counts what is made."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, rows: pa.Table) -> list[Any]:
        found: list[int] = rows.column("n").to_pylist()
        self.rows += found
        return found


def windows(spans: list[tuple[int, int]], made: Made, count: int = 100) -> InTurn:
    low, high = (np.array([one[at] for one in spans], np.int64) for at in (0, 1))
    return InTurn(pa.table({"n": range(count)}), low, high, made)


spans = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=30)


@given(spans, st.booleans(), st.integers(1, 40), st.randoms(use_true_random=False))
def test_every_window_gets_its_records_whoever_is_first(
    some: list[tuple[int, int]], in_order: bool, block: int, dice: Any
) -> None:
    several = [(low, low + size) for low, size in (sorted(some) if in_order else some)]
    made = Made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "_BLOCK", block)
        found = windows(several, made)
        order = list(range(len(several)))
        dice.shuffle(order)
        for at in order:
            assert found[at] == list(range(*several[at]))
    assert len(made.rows) == len({*made.rows})  # each once
    assert not found._made  # and none is kept


def test_windows_side_by_side_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "_BLOCK", 20)
    made = Made()
    found = windows([(at, at + 5) for at in range(0, 100, 5)], made)
    most = 0
    for at in range(len(found)):
        assert len(found[at]) == 5
        most = max(most, *map(len, found._made.values()), 0)
    assert most == 20 and made.rows == list(range(100))


def test_some_or_all_at_once() -> None:
    found = windows([(0, 2), (2, 2), (2, 5)], Made())
    assert found[1:] == [[], [2, 3, 4]] and len(found) == 3
    assert list(windows([], Made())) == []
