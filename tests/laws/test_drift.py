"""Rounding of running values stays bounded however long they run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.operators.windows import sliding
from millstream.ops.chunks import Chunk
from millstream.ops.times.spans import NOTHING_CLOSED, Span
from millstream.ops.windows.closing import close
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import merge_panes, prepare
from millstream.ops.windows.results import results
from millstream.ops.windows.running import PRESENCE, advance, recompute

PANES = 50
BITS = 90  # every value is a whole multiple of 2^-90: exact sums are sums of whole numbers
BOUND = 1e-9


def mixed(chance: random.Random) -> Iterator[float]:
    """Sizes from 1e-6 to 1e9, now mixed, now by turns for longer than a window."""
    while True:
        calm = 10 ** chance.uniform(-6, 9) if chance.random() < 0.7 else None
        for _ in range(chance.randint(1, 400)):
            size = 10 ** chance.uniform(-6, 9) if calm is None else calm
            if chance.random() < 0.01:
                size = 1e9
            yield chance.uniform(0.1, 1.0) * size


def shifted(chance: random.Random) -> Iterator[float]:
    """Small differences on a level that jumps."""
    while True:
        level = 10 ** chance.uniform(0, 5)
        for _ in range(chance.randint(50, 400)):
            yield level + chance.uniform(-1.0, 1.0)


def exact(values: list[float]) -> Iterator[tuple[float, float, float]]:
    """Sum, mean and variance of every window, rounded once."""
    whole = [int(math.ldexp(value, BITS)) for value in values]
    total = squares = 0
    for at, value in enumerate(whole):
        total, squares = total + value, squares + value * value
        if at >= PANES:
            gone = whole[at - PANES]
            total, squares = total - gone, squares - gone * gone
        n = min(at + 1, PANES)
        unit = 1 << BITS
        spread = n * squares - total * total
        yield total / unit, total / (unit * n), spread / (unit * unit * n * max(n - 1, 1))


def slid(values: list[float]) -> Iterator[tuple[float, float, float]]:
    """The same by running values, refreshed as the engine does; begins with a full window."""
    measures = tuple(
        agg.measure(name)
        for name, agg in (("sum", ms.sum("x")), ("mean", ms.mean("x")), ("var", ms.var("x")))
    )
    job = WindowJob("job", (), Span(PANES, 1), measures)
    family = Family("all", (job,), (PRESENCE,))
    count = len(values)
    chunk = Chunk(pa.table({"x": values}), np.arange(count), np.arange(count), 0)
    panes = merge_panes(family, prepare(family, chunk, {"job": NOTHING_CLOSED}, 1).panes)
    closed = PANES
    running = recompute(job, panes.slice(0, PANES), closed)
    chance = random.Random(1)
    while closed < count:
        until = min(count, closed + chance.randint(1, 40))
        near = panes.slice(closed - PANES, PANES + until - closed)
        advanced = None
        if closed // sliding._REFRESH == until // sliding._REFRESH:
            advanced = advance(job, running, near, None, closed, until)
        if advanced is not None and advanced.sure:
            found, _ = results(job, 0, advanced.found, advanced.answers)
            running = advanced.running
        else:
            found, *_ = close(job, near, None, closed, until, 0)
            running = recompute(job, near, until)
        for row in found.table.to_pylist():
            yield row["sum"], row["mean"], row["var"]
        closed = until


def worst(values: Callable[[random.Random], Iterator[float]], slides: int) -> tuple[float, ...]:
    """The largest relative error of sum, mean and variance over so many slides."""
    source = values(random.Random(7))
    numbers = [next(source) for _ in range(slides + PANES)]
    errors = [0.0, 0.0, 0.0]
    expected = list(exact(numbers))[PANES:]
    for found, right in zip(slid(numbers), expected, strict=True):
        for place in range(3):
            error = abs(found[place] - right[place]) / abs(right[place])
            errors[place] = max(errors[place], error)
    return tuple(errors)


@pytest.mark.parametrize("values", [mixed, shifted], ids=["mixed", "shifted"])
def test_rounding_stays_bounded(values: Callable[[random.Random], Iterator[float]]) -> None:
    assert max(worst(values, 2_000)) < BOUND


@pytest.mark.long
@pytest.mark.parametrize("values", [mixed, shifted], ids=["mixed", "shifted"])
def test_rounding_stays_bounded_at_length(
    values: Callable[[random.Random], Iterator[float]],
) -> None:
    assert max(worst(values, 1_000_000)) < BOUND
