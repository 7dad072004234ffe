"""What a group that was in no block can hold, against the hypergeometric distribution."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from millstream.ops.estimating.moments import COUNT, SIZE, TOTAL, Blocks, Moments
from millstream.ops.estimating.sparse import sparse_total, unseen_total
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


def test_gains_and_losses_that_cancel_say_nothing_of_other_groups() -> None:
    """What they come to is next to nothing, and what lies together would seem to be without end."""
    count, read, size = 200, 50, 100.0
    blocks = Blocks(count, count * size)
    blocks.add(np.full(read, size))
    gains = np.random.default_rng(6).normal(0, 30, read)
    gains += (1e-6 - gains.sum()) / read
    bounds = []
    for groups in (1, 2):  # the first is in five blocks, the second in all of them
        moments = Moments((COUNT, TOTAL, SIZE))
        rows = 5 + read * (groups - 1)
        of = np.concatenate([np.zeros(5, np.int64), np.ones(read, np.int64)])[:rows]
        n = np.concatenate([np.full(5, 2.0), np.full(read, 10.0)])[:rows]
        total = np.concatenate([np.arange(5.0) + 1, gains])[:rows]
        moments.add(of, {COUNT: n, TOTAL: total, SIZE: np.full(rows, size)}, groups)
        bounds.append([one[0] for one in sparse_total(moments, TOTAL, blocks, 0.05)])
    assert bounds[0] == pytest.approx(bounds[1])
    assert np.abs(gains).max() < unseen_total(moments, TOTAL, blocks, 0.05)
    assert unseen_total(moments, TOTAL, blocks, 0.05) < (count - read) * np.abs(gains).max()
