"""Kinds of inputs for the coverage of intervals: orders, skews and cuts as files have them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ops.estimating.inputs import ORDERS, Input, make

ROWS = 20_000


def _zipf(rng: np.random.Generator, rows: int, groups: int, power: float) -> np.ndarray:
    share = 1 / np.arange(1, groups + 1) ** power
    return rng.choice(groups, rows, p=share / share.sum())


def _cut(
    rng: np.random.Generator, group: np.ndarray, value: np.ndarray, blocks: int, uneven: float = 0.2
) -> Input:
    """Blocks of different numbers of rows, and sizes that follow these only roughly."""
    width = rng.lognormal(0.0, uneven, blocks)
    cuts = np.unique((np.cumsum(width)[:-1] / width.sum() * len(group)).astype(np.int64))
    bounds = np.concatenate([[0], cuts[(cuts > 0) & (cuts < len(group))], [len(group)]])
    sizes = np.add.reduceat(rng.integers(15, 45, len(group)), bounds[:-1]).astype(float)
    return Input(group, value, bounds, sizes)


def shuffled(rng: np.random.Generator) -> Input:
    """Nothing special: a dozen groups, values with a moderate tail."""
    group = _zipf(rng, ROWS, 12, 0.7)
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS) * (1 + group % 4), 250)


def sorted_by_group(rng: np.random.Generator) -> Input:
    """A group's rows lie together, in four files one after the other."""
    group = np.concatenate([np.sort(_zipf(rng, ROWS // 4, 12, 0.9)) for _ in range(4)])
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS), 250)


def sorted_by_value(rng: np.random.Generator) -> Input:
    """All rows by what they hold."""
    value = np.sort(rng.gamma(2.0, 3.0, ROWS))
    return _cut(rng, _zipf(rng, ROWS, 12, 0.9), value, 250)


def many_groups(rng: np.random.Generator) -> Input:
    """Zipf's law over 150 groups, most of which have a few rows only."""
    group = _zipf(rng, ROWS, 150, 1.3)
    return _cut(rng, group, rng.exponential(2.0, ROWS), 250)


def heavy_tails(rng: np.random.Generator) -> Input:
    """Pareto with a finite variance and no third moment."""
    return _cut(rng, _zipf(rng, ROWS, 8, 0.8), rng.pareto(2.5, ROWS) + 1, 250)


def heavier_tails(rng: np.random.Generator) -> Input:
    """A logarithmic normal distribution over several powers of ten."""
    return _cut(rng, _zipf(rng, ROWS, 8, 0.8), rng.lognormal(0, 1.7, ROWS), 250)


def unequal_blocks(rng: np.random.Generator) -> Input:
    """Many small files and some large ones: blocks that differ by a factor of fifty."""
    group = _zipf(rng, ROWS, 12, 0.8)
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS), 250, uneven=1.0)


def alike_in_files(rng: np.random.Generator) -> Input:
    """Twenty-five files, each with its own level of values and its own mixture of groups."""
    parts = []
    for _ in range(25):
        rows, share = ROWS // 25, rng.dirichlet(np.full(10, 0.5))
        parts.append((rng.choice(10, rows, p=share), rng.gamma(2.0, rng.lognormal(1, 0.5), rows)))
    group, value = (np.concatenate(one) for one in zip(*parts, strict=True))
    return _cut(rng, group, value, 250)


def tiny_groups(rng: np.random.Generator) -> Input:
    """Three large groups, and forty of 1 to 40 rows, each of them in one place or two."""
    group = rng.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    for tiny in range(40):
        for at in rng.integers(0, ROWS - 50, rng.integers(1, 3)).tolist():
            group[at : at + int(rng.integers(1, 20))] = 3 + tiny
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS), 250)


def strewn_groups(rng: np.random.Generator) -> Input:
    """The same, strewn all over."""
    group = rng.choice(3, ROWS, p=[0.5, 0.3, 0.2])
    for tiny in range(40):
        group[rng.integers(0, ROWS, rng.integers(1, 40))] = 3 + tiny
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS), 250)


def mostly_zero(rng: np.random.Generator) -> Input:
    """Of a hundred values three are not zero, and these have a tail."""
    value = np.where(rng.random(ROWS) < 0.03, rng.lognormal(1.0, 1.0, ROWS), 0.0)
    return _cut(rng, _zipf(rng, ROWS, 8, 0.8), value, 250)


def bursts(rng: np.random.Generator) -> Input:
    """Mostly small values, and twelve stretches in which they are fifty times as large."""
    value = rng.exponential(1.0, ROWS)
    for at in rng.choice(np.arange(0, ROWS - 400, 400), 12, replace=False).tolist():
        value[at : at + 250] *= 50
    return _cut(rng, _zipf(rng, ROWS, 6, 0.8), value, 250)


def both_signs(rng: np.random.Generator) -> Input:
    """Gains and losses that nearly cancel."""
    value = rng.standard_t(4, ROWS) + 0.05
    return _cut(rng, _zipf(rng, ROWS, 10, 0.8), value, 250)


def trend(rng: np.random.Generator) -> Input:
    """Values and groups that change slowly along the input, with a daily wave."""
    time = np.linspace(0, 1, ROWS)
    value = rng.gamma(2.0, 1.0, ROWS) * (1 + 4 * time) * (1.3 + np.sin(time * 40))
    group = np.minimum((rng.random(ROWS) * 6 + time * 6).astype(np.int64), 11)
    return _cut(rng, group, value, 250)


def few_blocks(rng: np.random.Generator) -> Input:
    """Forty blocks of shuffled rows, as forty compressed files."""
    group = _zipf(rng, ROWS, 8, 0.8)
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS), 40)


def few_sorted_blocks(rng: np.random.Generator) -> Input:
    """Sixty blocks, each with a level of its own."""
    group = _zipf(rng, ROWS, 6, 0.8)
    level = np.repeat(rng.lognormal(0, 0.6, 60), -(-ROWS // 60))[:ROWS]
    return _cut(rng, group, rng.gamma(2.0, 3.0, ROWS) * level, 60)


def _as_before(order: str) -> Callable[[np.random.Generator], Input]:
    """The inputs by which constants of the first estimators were chosen."""
    return lambda rng: make(order, int(rng.integers(2**31)))


KINDS: dict[str, Callable[[np.random.Generator], Input]] = {
    one.__name__.replace("_", " "): one
    for one in (
        shuffled,
        sorted_by_group,
        sorted_by_value,
        many_groups,
        heavy_tails,
        heavier_tails,
        unequal_blocks,
        alike_in_files,
        tiny_groups,
        strewn_groups,
        mostly_zero,
        bursts,
        both_signs,
        trend,
        few_blocks,
        few_sorted_blocks,
    )
} | {f"first: {order}": _as_before(order) for order in ORDERS}
