"""Inputs whose exact answers are known, cut into unequal blocks, for the coverage of intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GROUPS = 20
ORDERS = ("shuffled", "sorted by group", "sorted by value", "skewed")


@dataclass(frozen=True)
class Input:
    """Records in the order in which they lie in files, and where blocks begin."""

    group: np.ndarray
    value: np.ndarray
    bounds: np.ndarray  # of blocks, with the end
    sizes: np.ndarray  # in bytes

    def block(self, number: int) -> slice:
        return slice(int(self.bounds[number]), int(self.bounds[number + 1]))


def make(order: str, seed: int, rows: int = 24_000, blocks: int = 300) -> Input:
    """Groups as Zipf has them, and values with a long tail."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, GROUPS + 1) ** 1.1
    group = rng.choice(GROUPS, rows, p=share / share.sum())
    value = rng.lognormal(0.0, 0.8, rows) * (1 + group % 3)
    if order == "sorted by group":
        at = np.argsort(group, kind="stable")
    elif order == "sorted by value":
        at = np.argsort(value, kind="stable")
    elif order == "skewed":  # groups come and go, and so does the level of values
        at = np.lexsort((rng.random(rows), rng.normal(group * 0.8, 1.0)))
        value = value * np.repeat(rng.lognormal(0, 0.7, 40), -(-rows // 40))[:rows]
    else:
        at = np.arange(rows)
    group = group[at]
    value = value if order == "skewed" else value[at]
    cuts = np.sort(rng.choice(np.arange(1, rows), blocks - 1, replace=False))
    cuts = (cuts + np.arange(1, blocks) * rows // blocks) // 2  # unequal by about a half
    bounds = np.concatenate([[0], np.unique(cuts), [rows]])
    width = rng.integers(18, 30, rows)
    sizes = np.add.reduceat(width, bounds[:-1]).astype(float)
    return Input(group, value, bounds, sizes)
