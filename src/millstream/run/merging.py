"""How much of which file to read next, so that all files come equally far in time.

Three logs of three hosts are so read side by side, and files that follow each other in time one
after the other. Results never depend on it; how much state there is does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LEAST_PACE = 1e-3  # microseconds a byte or row: files that stand still in time are read as well
_STEPS = 64


def share(
    reached: Sequence[int], left: Sequence[float], pace: Sequence[float], budget: float
) -> list[int]:
    """What to read of each file: all up to the latest time for which the budget is enough.

    `reached`: how far each is; `left`: what there is of it; `pace`: time that a byte (row) covers.
    """
    there = np.asarray(left, np.float64)
    if there.sum() <= budget:
        return [int(one) for one in there]
    at = np.asarray([when - min(reached) for when in reached], np.float64)
    rate = np.maximum(np.asarray(pace, np.float64), _LEAST_PACE)
    low, high = 0.0, float((at + there * rate).max())
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if np.minimum(there, np.maximum(0.0, middle - at) / rate).sum() <= budget:
            low = middle
        else:
            high = middle
    found = np.minimum(there, np.maximum(0.0, low - at) / rate).astype(np.int64)
    if not found.any():
        first = int(at.argmin())
        found[first] = max(1, int(min(there[first], budget)))
    return [int(one) for one in found]
