"""Policies rank as the paper says, and are refused where they cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.scheduling import beta_cdf

QUEUE = ms.Queue("q", "operator", head=1_000, input_size=100.0, output_size=30.0, selectivity=2.0)
REQUEST = ms.Request(0, memory=0.0, draw=0.5)


def test_the_oldest_head_is_first() -> None:
    ranks = [ms.ODF().rank(replace(QUEUE, head=at), REQUEST) for at in (5, 7, None)]
    assert ranks == [-5, -7, math.inf]


def test_the_most_bytes_freed_in_a_second_are_first() -> None:
    assert ms.MEM().rank(replace(QUEUE, seconds=0.5), REQUEST) == (100 - 2 * 30) / 0.5
    assert ms.MEM().rank(replace(QUEUE, seconds=0.5, selectivity=10.0), REQUEST) == -400
    source = replace(QUEUE, kind="source", seconds=0.5)  # what waits there is in no memory yet
    assert ms.MEM().rank(source, REQUEST) == -2 * 30 / 0.5


def simpson(x: float, alpha: float, beta: float, steps: int = 2_000) -> float:
    """The same by its definition: the density, integrated."""
    scale = math.gamma(alpha + beta) / math.gamma(alpha) / math.gamma(beta)

    def density(t: float) -> float:
        return float(scale * t ** (alpha - 1) * (1 - t) ** (beta - 1))

    width = x / steps
    inner = sum((4 if n % 2 else 2) * density(n * width) for n in range(1, steps))
    return (density(0.0) + inner + density(x)) * width / 3


@given(st.floats(0.01, 0.99), st.integers(2, 8), st.integers(2, 8))
def test_the_distribution_is_the_integral_of_its_density(x: float, alpha: int, beta: int) -> None:
    assert beta_cdf(x, alpha, beta) == pytest.approx(simpson(x, alpha, beta), abs=1e-9)


@given(st.floats(0, 1), st.floats(0.2, 50))
def test_with_beta_1_it_is_a_power(x: float, alpha: float) -> None:
    assert beta_cdf(x, alpha, 1.0) == pytest.approx(x**alpha, abs=1e-12)
    assert beta_cdf(x, 1.0, alpha) == pytest.approx(1 - (1 - x) ** alpha, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.5, 3.0, 1e4, 1e6, 1e7, 1e8])
def test_beta_is_even_where_both_parameters_are_the_same(alpha: float) -> None:
    assert beta_cdf(0.5, alpha, alpha) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("memory", "chance"), [(0, 0), (0.49, 0), (0.5, 0), (0.75, 0.5**2.5), (1, 1), (1.3, 1)]
)
def test_the_less_memory_is_left_the_more_often_mem_is_drawn(memory: float, chance: float) -> None:
    hybrid = ms.Hybrid()
    assert hybrid.chance(memory) == pytest.approx(chance)
    for draw in (0.0, 0.1, 0.5, 0.999):
        drawn = ms.MEM() if draw < chance else ms.ODF()
        request = ms.Request(3, memory, draw)
        assert hybrid.rank(QUEUE, request) == drawn.rank(QUEUE, request)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threshold": 1}, "threshold=1"),
        ({"threshold": -0.1}, "from 0 to below 1"),
        ({"alpha": 0}, "alpha=0"),
        ({"beta": math.inf}, "beta=inf"),
        ({"beta": "1"}, "a number above 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ms.ConfigError, match=says):
        ms.Hybrid(**options)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("fifo", "scheduler='fifo': a text names one of odf, mem, hybrid"),
        ("odd", "did you mean 'odf'"),
        (ms.ODF, r"give an instance, ODF\(\)"),
        (3, "a method rank"),
        (None, "a method rank"),
    ],
)
def test_what_is_no_policy_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ms.ConfigError, match=says):
        ms.Settings(scheduler=given)


def test_a_policy_may_be_named() -> None:
    assert ms.Settings(scheduler="ODF").policy == ms.ODF()
    assert ms.Settings().policy == ms.Hybrid(0.5, 2.5, 1)
