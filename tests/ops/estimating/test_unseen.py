"""What a group that was in no block can hold, against the hypergeometric distribution."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from millstream.ops.estimating.unseen import unseen


@pytest.mark.parametrize(("count", "read"), [(300, 30), (50, 1), (20, 19), (1000, 500)])
def test_a_group_in_more_blocks_would_have_been_seen(count: int, read: int) -> None:
    found = unseen(count, read, np.full(count - read, 1 / count), 0.05)
    missed = [comb(count - k, read) / comb(count, read) for k in range(count - read + 1)]
    assert found.blocks == max(k for k, p in enumerate(missed) if p >= 0.05)
    assert found.share == pytest.approx(found.blocks / count)


def test_its_blocks_may_be_the_largest() -> None:
    left = np.array([0.1, 0.3, 0.05, 0.2])
    found = unseen(8, 4, left, 0.05)
    assert found.share == pytest.approx(np.sort(left)[::-1][: found.blocks].sum())


def test_nothing_is_left_when_all_was_read() -> None:
    assert unseen(10, 10, np.zeros(0), 0.05).share == 0
