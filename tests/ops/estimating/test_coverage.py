"""How often bounds contain the exact answer, on many kinds of inputs (`kinds.py`)."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.ops.estimating.estimates import Confidence, mean, variance
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import COUNT, SQUARES, TOTAL, Blocks, Moments
from tests.ops.estimating.campaign import campaign, exact
from tests.ops.estimating.kinds import KINDS

IN_FEW = ("few blocks", "few sorted blocks", "sorted by group", "first: sorted by group")
SHUFFLED = ("shuffled", "unequal blocks", "few blocks", "first: shuffled")
FRESH = 9_200_000  # seeds on which no variants were compared, and nothing was fitted
# Squares of Pareto's values with 2.5 have no variance: 93.3 % in these runs, 94.9 in 400 others.
BEYOND = {("heavy tails", "var"): 0.92}


def check(kind: str, runs: int, least: float = 0.94, start: int = 0) -> None:
    for (promise, name), score in campaign(kind, runs, start).items():
        wanted = BEYOND.get((kind, name), least)
        where = f"{name}, {kind}, {promise}, {runs} runs: {score.right} of {score.given} are right"
        assert score.given > 0 or (name == "var" and kind in IN_FEW), where
        assert score.right >= wanted * score.given, where
        if promise == ANYTIME:
            held = f"{where}; {score.right_paths} of {score.paths} whole paths"
            assert score.right_paths >= wanted * score.paths, held
        if kind in SHUFFLED:
            if name in ("count", "sum"):
                assert score.none == 0, f"{where}; {score.none} without bounds"
            if promise == POINTWISE and name in ("count", "sum", "mean"):
                assert score.wide <= 1.3, f"{where}; {score.wide:.2f} times as wide as from rows"


@pytest.mark.parametrize("kind", ["shuffled", "sorted by group", "tiny groups", "first: skewed"])
def test_intervals_contain_the_exact_answer(kind: str) -> None:
    check(kind, 6, least=0.9)  # so few runs are right to a few per cent themselves


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_contain_the_exact_answer_in_many_runs(kind: str) -> None:
    check(kind, 200, start=FRESH)


def test_a_narrower_interval_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calculation itself: bounds that are a third too narrow do not pass."""
    import millstream.ops.estimating.estimates as estimates

    true = estimates.radius
    monkeypatch.setattr(estimates, "radius", lambda *a: true(*a) * 0.66)
    with pytest.raises(AssertionError, match="are right"):
        check("shuffled", 6, least=0.9)


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
def test_everything_read_is_exact(promise: str) -> None:
    data = KINDS["first: skewed"](np.random.default_rng(3))
    groups, count = int(data.group.max()) + 1, len(data.sizes)
    block = np.repeat(np.arange(count), np.diff(data.bounds))
    about = data.value - 1.0
    cell = block * groups + data.group
    n, total, squares = (
        np.bincount(cell, weights=w, minlength=count * groups).astype(float)
        for w in (None, about, about**2)
    )
    there = np.flatnonzero(n)
    moments, blocks = Moments((COUNT, TOTAL, SQUARES)), Blocks(count, data.sizes.sum())
    blocks.add(data.sizes)
    values = {COUNT: n[there], TOTAL: total[there], SQUARES: squares[there]}
    moments.add(there % groups, values, groups)
    true, sure = exact(data, groups), Confidence(0.95, promise)
    for found, name in (
        (mean(moments, blocks, sure).shifted(1.0), "mean"),
        (variance(moments, blocks, sure), "var"),
    ):
        assert np.allclose(found.value, true[name])
        assert (found.lower == found.value).all()
        assert (found.upper == found.value).all()
