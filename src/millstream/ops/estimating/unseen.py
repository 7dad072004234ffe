"""What a group that was in no block so far can hold at most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from millstream.ops.chunks import Floats


@dataclass(frozen=True)
class Unseen:
    """At most so many blocks have a group that none so far had, and they are at most so large."""

    blocks: int
    share: float  # of the whole input


def unseen(count: int, read: int, left: Floats, risk: float) -> Unseen:
    """The bound for any one group.

    A group in k of N blocks is missed by t of them with the probability of (N-k over t) to (N over
    t), which for the k given is below the risk: with more it would have been seen. left: the sizes
    of the blocks that were not read, as shares of the whole input; its blocks may be the largest.
    """
    blocks, missed = 0, 0.0  # the logarithm of that probability
    while blocks < count - read:
        missed += math.log((count - read - blocks) / (count - blocks))
        if missed < math.log(risk):
            break
        blocks += 1
    return Unseen(blocks, float(np.sort(left)[::-1][:blocks].sum()))
