"""Bounds beside the formulas of textbooks, block by block, where these have nothing to add to.

Blocks come in pairs that are as far above their due as below it. Then there is no skew and no long
tail, and an interval is the textbook's to the last digit that its table of Student's t has.
"""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pyarrow as pa
import pytest

from millstream.ops.estimating.answers import Answers
from millstream.ops.estimating.estimates import Confidence, Estimates, mean, total, variance
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE, radius, sequence, stretched
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from millstream.ops.estimating.ranks import Ranks
from tests.ops.estimating.study import measures

ALL, READ = 200, 60
T = 2.0010  # Student's t with 59 degrees of freedom, 97.5 %, from a table


def pairs(size: float = 50.0) -> tuple[np.ndarray, np.ndarray]:
    """What 60 blocks hold of one group, as rows and their total."""
    rng = np.random.default_rng(2)
    off = rng.uniform(1, 9, READ // 2)
    rows = np.full(READ, size)
    return rows, 3.0 * rows + np.concatenate([off, -off])


def kept(factors: tuple[str, ...], values: dict[str, np.ndarray]) -> tuple[Moments, Blocks]:
    moments, blocks = Moments(factors), Blocks(ALL, ALL * 1000.0)
    blocks.add(np.full(READ, 1000.0))
    moments.add(np.zeros(READ, np.int64), {**values, SIZE: np.full(READ, 1000.0)}, 1)
    return moments, blocks


def test_a_total_has_cochrans_interval() -> None:
    rows, sums = pairs()
    moments, blocks = kept((COUNT, TOTAL, SIZE), {COUNT: rows, TOTAL: sums})
    found = total(moments, TOTAL, blocks, Confidence(0.95, POINTWISE))
    # Sampling Techniques 6.3: N² (1 - f) / n times the mean square of y - R x.
    ratio = sums.sum() / (READ * 1000.0)
    left = [y - ratio * 1000.0 for y in sums]
    square = sum(d * d for d in left) / (READ - 1)
    error = ALL * sqrt((1 - READ / ALL) / READ * square)
    assert found.value[0] == pytest.approx(ratio * ALL * 1000.0)
    assert found.upper[0] - found.value[0] == pytest.approx(T * error, rel=1e-4)
    assert found.value[0] - found.lower[0] == pytest.approx(T * error, rel=1e-4)


def test_blocks_that_are_smaller_than_others_count_by_their_size() -> None:
    """Royall and Cumberland's form: as many times wider as the blocks read are too small."""
    rows, sums = pairs()
    moments = Moments((COUNT, TOTAL, SIZE))
    moments.add(
        np.zeros(READ, np.int64), {COUNT: rows, TOTAL: sums, SIZE: np.full(READ, 1000.0)}, 1
    )
    blocks = Blocks(ALL, ALL * 1250.0)  # those that are left are larger
    blocks.add(np.full(READ, 1000.0))
    found = total(moments, TOTAL, blocks, Confidence(0.95, POINTWISE))
    ratio = sums.sum() / (READ * 1000.0)
    square = sum((y - ratio * 1000.0) ** 2 for y in sums) / (READ - 1)
    unread = 1 - READ * 1000.0 / (ALL * 1250.0)
    error = ALL * 1250.0 / 1000.0 * sqrt(unread / READ * square)
    assert found.value[0] == pytest.approx(ratio * ALL * 1250.0)
    assert found.upper[0] - found.value[0] == pytest.approx(T * error, rel=1e-4)


def test_a_mean_is_a_ratio_of_totals() -> None:
    rows, sums = pairs()
    moments, blocks = kept((COUNT, TOTAL), {COUNT: rows, TOTAL: sums})
    found = mean(moments, blocks, Confidence(0.95, POINTWISE))
    middle = sums.sum() / rows.sum()
    square = sum((y - middle * n) ** 2 for y, n in zip(sums, rows, strict=True)) / (READ - 1)
    error = sqrt((1 - READ / ALL) / READ * square) / rows.mean()  # Cochran 2.11, 6.4
    assert found.value[0] == pytest.approx(middle)
    assert found.upper[0] - found.value[0] == pytest.approx(T * error, rel=1e-4)


def test_a_variance_is_as_sure_as_leaving_out_each_block_says() -> None:
    """The linearised error beside the jackknife's, which knows no derivative."""
    rng = np.random.default_rng(4)
    values = rng.normal(10, 2, (READ, 400))
    of = {
        COUNT: np.full(READ, 400.0),
        TOTAL: values.sum(axis=1),
        SQUARES: (values**2).sum(axis=1),
    }
    moments, blocks = kept((COUNT, TOTAL, SQUARES), of)
    found = variance(moments, blocks, Confidence(0.95, POINTWISE))
    without = [np.delete(values, at, axis=0).var(ddof=1) for at in range(READ)]
    spread = (READ - 1) / READ * sum((one - np.mean(without)) ** 2 for one in without)
    error = sqrt((1 - READ / ALL) * spread)
    assert found.value[0] == pytest.approx(values.var(ddof=1))
    for bound in (found.lower[0], found.upper[0]):
        assert 0.95 < abs(bound - found.value[0]) / (T * error) < 1.4


@pytest.mark.parametrize("far", [1e3, 1e5, 1e7])
def test_groups_may_lie_far_apart(far: float) -> None:
    """Third powers of numbers that large have no digits left for how they differ."""
    values = np.random.default_rng(1).normal(0, 1, (2, READ, 200))
    values[1] += far
    group, block = np.repeat([0, 1], READ), np.tile(np.arange(READ), 2)
    middle = values.mean(axis=2).ravel()
    about = ((values - values.mean(axis=2, keepdims=True)) ** 2).sum(axis=2).ravel()
    n = np.full(2 * READ, 200.0)
    columns: dict[str, np.ndarray] = {}
    for one in measures(0.5):
        states = {"n": n, "sum": n * middle, "mean": middle, "m2": about}
        columns |= {f"state.{one.state}.{name}": column for name, column in states.items()}
    answers = Answers(("g",), measures(0.5), np.arange(ALL), np.ones(ALL))
    answers.add(pa.table({"key.0": group, **columns, "block": block}))
    answers.read(np.arange(READ))
    found = answers.estimates(Confidence(0.95, POINTWISE))
    for name, error in (("mean", 1.0), ("var", sqrt(2))):
        wide = 2 * T * error * sqrt((1 - READ / ALL) / (READ * 200))
        assert (found[name].upper - found[name].lower) / wide == pytest.approx(1, abs=0.35)


def test_at_all_times_together_it_is_the_mixture_of_robbins() -> None:
    """Howard and others, Time-uniform Chernoff bounds, 2021: the two-sided normal mixture."""
    for draws in (30.0, 100.0, 1e4):
        v, rho, risk = draws, 4.0, 0.05
        bound = sqrt((v + rho) * log((v + rho) / (rho * risk**2)))
        assert sequence(risk, draws) == pytest.approx(bound / draws)
    rows, sums = pairs()
    moments, blocks = kept((COUNT, TOTAL, SIZE), {COUNT: rows, TOTAL: sums})
    found = total(moments, TOTAL, blocks, Confidence(0.95, ANYTIME))
    deviation = sqrt(sum((y - sums.mean()) ** 2 for y in sums) / (READ - 1))
    draws = READ / (1 - READ / ALL)
    known = ALL * deviation * float(sequence(0.05, draws))
    assert 1.0 < (found.upper[0] - found.value[0]) / known < 1.1  # the deviation is not known


def test_sequences_hold_along_whole_paths() -> None:
    """Draws without replacement, looked at after each of them from the thirtieth on."""
    rng = np.random.default_rng(9)
    outside = 0
    for _ in range(400):
        values = rng.permutation(rng.normal(size=ALL))
        values = (values - values.mean()) / values.std(ddof=1)
        at = np.arange(30, ALL)
        draws = at / (1 - at / ALL)
        off = np.abs(np.cumsum(values)[at - 1] / at)
        outside += bool((off > sequence(0.05, draws)).any())
    assert outside <= 0.06 * 400


def test_a_small_risk_shared_by_many_groups_is_no_reason_to_say_nothing() -> None:
    """Places of a ranking need bounds of all groups together, at some ten thousandths of risk."""
    few = np.array([4.0, 11.0, 20.0, 59.0])  # degrees of freedom
    for risk in (0.05, 1e-3, 1e-4, 1e-6):
        wide = radius(ANYTIME, risk, 72.0, few)
        assert (np.diff(wide) <= 0).all()
        assert wide[0] < 5 * sequence(risk, 72.0)
        assert wide[-1] < 1.2 * sequence(risk, 72.0)


@pytest.mark.parametrize("skew", [0.2, 1.0, 2.5])
def test_a_long_tail_is_taken_out_as_hall_does(skew: float) -> None:
    """The bound is where his transformation of the studentised mean is the quantile."""
    times, n = np.array([1.99]), 60
    long = float(stretched(times, np.array([skew]), n)[0])
    t, rate = -long, skew / sqrt(n)
    taken_out = t + rate * t**2 / 3 + rate**2 * t**3 / 27 + rate / 6  # Hall 1992, (2.1)
    assert taken_out == pytest.approx(-1.99)


def test_a_quantile_has_woodruffs_interval() -> None:
    rng = np.random.default_rng(8)
    values = rng.normal(size=(READ, 100))
    ranks, blocks = Ranks(0.5), Blocks(ALL, float(ALL))
    blocks.add(np.ones(READ))
    where = np.repeat(np.arange(READ), 100)
    ranks.add(np.zeros(READ * 100, np.int64), where, values.ravel(), np.ones(READ * 100))
    found = ranks.estimates(1, blocks, Confidence(0.95, POINTWISE))
    middle = np.sort(values.ravel())[READ * 50 - 1]
    shares = (values <= middle).mean(axis=1)
    off = T * sqrt((1 - READ / ALL) / READ) * shares.std(ddof=1)
    ordered = np.sort(values.ravel())
    low, high = (int((0.5 + side * off) * READ * 100) for side in (-1, 1))
    assert found.value[0] == middle
    # The bounds are order statistics: those of the textbook, or the next ones outside.
    assert found.lower[0] in ordered[low - 3 : low + 1]
    assert found.upper[0] in ordered[high - 1 : high + 3]


def test_a_variance_of_more_values_is_smaller_though_all_blocks_be_alike() -> None:
    values = np.arange(50.0)
    of = {COUNT: 50.0, TOTAL: values.sum(), SQUARES: (values**2).sum()}
    moments, blocks = kept(
        (COUNT, TOTAL, SQUARES), {name: np.full(READ, one) for name, one in of.items()}
    )
    found = variance(moments, blocks, Confidence(0.95, POINTWISE))
    true = np.tile(values, ALL).var(ddof=1)
    assert found.lower[0] <= true <= found.upper[0]
    assert found.upper[0] - found.lower[0] < 0.001 * true


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
def test_while_a_large_block_is_left_nothing_is_bounded(promise: str) -> None:
    """A file that cannot be cut has half of the input: the others do not say what is in it."""
    sizes = np.ones(2 * ALL)
    sizes[-1] = 2 * ALL
    answers = Answers(("g",), measures(0.5), np.arange(2 * ALL), sizes)
    rng = np.random.default_rng(3)

    def read(blocks: np.ndarray) -> dict[str, Estimates]:
        n = np.full(len(blocks), 50.0)
        middle = rng.normal(10, 1, len(blocks))
        states = {"n": n, "sum": n * middle, "mean": middle, "m2": n}
        columns = {
            f"state.{one.state}.{name}": column
            for one in measures(0.5)
            for name, column in states.items()
        }
        key = {"key.0": np.zeros(len(blocks), np.int64), "block": blocks}
        answers.add(pa.table({**key, **columns}))
        answers.add_values("quantile", pa.table({**key, "value": middle, "weight": n}))
        answers.read(blocks)
        return answers.estimates(Confidence(0.95, promise))

    for name, one in read(np.arange(ALL)).items():
        assert np.isfinite(one.value).all() or name == "different"
        assert np.isnan(one.upper).all(), name
    found = read(np.array([2 * ALL - 1]))
    assert all(np.isfinite(found[name].upper).all() for name in ("rows", "total", "mean"))


def test_blocks_that_are_all_alike_leave_a_doubt_about_those_not_read() -> None:
    """Records of one length: the block with the header has two of them less, and was not read."""
    rows = np.full(READ, 50.0)
    moments, blocks = kept((COUNT, SIZE), {COUNT: rows})
    found = total(moments, COUNT, blocks, Confidence(0.95, POINTWISE))
    assert found.value[0] == pytest.approx(50.0 * ALL)
    assert found.lower[0] < 50.0 * ALL - 2 < 50.0 * ALL < found.upper[0] < 50.0 * ALL + 10
