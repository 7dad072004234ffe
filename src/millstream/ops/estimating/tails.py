"""How long the tail of a column is: whether its values have a variance at all.

Sums and means have bounds by how much blocks differ, and where values have no variance, blocks that
were not read may differ by more than any that were. The largest values of each block tell: the
moment estimator of Dekkers, Einmahl and de Haan (1989), of which a half stands between tails with a
variance and tails without one.
"""

from __future__ import annotations

import numpy as np

from millstream.ops.chunks import Floats

PER_BLOCK = 8  # values that a task reports
_SHARE = 0.05  # of all values: those of the tail
_LEAST = 30  # values of it, or nothing is said
_NO_VARIANCE = 0.5


def furthest(values: Floats) -> Floats:
    """The largest distances from the mean of a block, descending."""
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.abs(values - values.mean())
    far = far[np.isfinite(far)]
    first = np.partition(far, -PER_BLOCK)[-PER_BLOCK:] if len(far) > PER_BLOCK else far
    return np.sort(first)[::-1]


class Tail:
    """The largest distances that blocks reported of one column."""

    def __init__(self) -> None:
        self._far: Floats = np.zeros(0)
        self._hidden = 0.0  # below that, blocks have values that were not reported

    def add(self, reports: list[list[float]]) -> None:
        """What blocks, or pieces of them, reported."""
        for one in reports:
            if len(one) == PER_BLOCK:
                self._hidden = max(self._hidden, one[-1])
        self._far = np.concatenate([self._far, *map(np.asarray, reports)])
        self._far = self._far[self._far > self._hidden]

    def heavy(self, count: float) -> bool:
        """Whether so many values look as if they had no variance."""
        far = np.sort(self._far)[::-1]
        most = min(int(_SHARE * count), len(far) - 1)
        if most < _LEAST or far[most] <= 0:
            return False
        logs = np.log(far[:most] / far[most])
        first, second = float(logs.mean()), float((logs**2).mean())
        if second <= first**2 * (1 + 1e-9):  # all the same
            return False
        return first + 1 - 0.5 / (1 - first**2 / second) > _NO_VARIANCE
