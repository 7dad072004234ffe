"""The places of a ranking by estimates, and which of them can no longer change.

A place is settled if whoever has it is surely behind all before it and surely ahead of all after
it, those included that were in no block yet. For that the bounds of all have to hold together: the
risk is shared out among them (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from millstream.ops.chunks import Floats, Int64


@dataclass(frozen=True)
class Places:
    """Rows in the order of their places, and whether each place is settled."""

    rows: Int64
    place: Int64  # from 1 on, in each owner
    settled: Any


def places(
    owner: Int64, value: Floats, lower: Floats, upper: Floats, beyond: float, k: int
) -> Places:
    """The first k of each owner by value; `beyond`: what a row that is not here may have at most.

    Rows with equal values keep their order. Bounds that are not known bound nothing.
    """
    value = np.nan_to_num(value, nan=-np.inf)
    low = np.where(np.isnan(lower), -np.inf, lower)
    high = np.where(np.isnan(upper), np.inf, upper)
    order = np.lexsort((np.arange(len(value)), -value, owner))
    rows, place, settled = [], [], []
    for part in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
        if not len(part):
            continue
        before = np.minimum.accumulate(np.concatenate([[np.inf], low[part][:-1]]))
        after = np.maximum.accumulate(np.concatenate([[beyond], high[part][:0:-1]]))[::-1]
        rows.append(part[:k])
        place.append(np.arange(1, len(part[:k]) + 1))
        settled.append(((high[part] < before) & (low[part] > after))[:k])
    if not rows:
        none = np.zeros(0, np.int64)
        return Places(none, none, none.astype(np.bool_))
    return Places(np.concatenate(rows), np.concatenate(place), np.concatenate(settled))
