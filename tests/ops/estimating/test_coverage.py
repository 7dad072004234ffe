"""How often intervals contain the exact answer: a calculation that can fail.

Blocks of inputs whose answers are known are read in random order, many times. Every bound that is
given is compared with the exact answer; where none is given yet, that is counted too, so that
intervals cannot be right by saying nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from millstream.ops.estimating.estimates import Confidence, Estimates, mean, total, variance
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from tests.ops.estimating.inputs import GROUPS, ORDERS, Input, make

MARKS = (0.05, 0.1, 0.25, 0.5, 0.75)
AGGREGATES = ("count", "sum", "mean", "var")


@dataclass
class Score:
    """How often bounds of one aggregate were right."""

    given: int = 0
    right: int = 0
    none: int = 0  # no bound yet
    paths: int = 0
    right_paths: int = 0
    widths: list[float] = field(default_factory=list)
    row_widths: list[float] = field(default_factory=list)  # of a uniform sample of rows


def blocks_of(data: Input) -> dict[str, np.ndarray]:
    """Per block and group: the number of values, their sum, and both powers about one."""
    count = len(data.sizes)
    block = np.repeat(np.arange(count), np.diff(data.bounds))
    code, about = block * GROUPS + data.group, data.value - 1.0

    def per(weights: np.ndarray | None) -> np.ndarray:
        sums = np.bincount(code, weights=weights, minlength=count * GROUPS)
        return sums.reshape(count, GROUPS).astype(float)

    return {"n": per(None), "sum": per(data.value), "about": per(about), "squares": per(about**2)}


def answers(data: Input) -> dict[str, np.ndarray]:
    """The exact answer of every aggregate and group."""
    of = [data.value[data.group == g] for g in range(GROUPS)]
    return {
        "count": np.array([len(v) for v in of], float),
        "sum": np.array([v.sum() for v in of]),
        "mean": np.array([v.mean() for v in of]),
        "var": np.array([v.var(ddof=1) for v in of]),
    }


def looks(
    data: Input, seed: int, promise: str
) -> Iterator[tuple[Blocks, np.ndarray, dict[str, Estimates]]]:
    """The estimates at every mark, in a random order of blocks."""
    of = blocks_of(data)
    order = np.random.default_rng([seed, 7]).permutation(len(data.sizes))
    kept = {
        "count": Moments((COUNT, SIZE)),
        "sum": Moments((COUNT, TOTAL, SIZE)),
        "mean": Moments((COUNT, TOTAL)),
        "var": Moments((COUNT, TOTAL, SQUARES)),
    }
    blocks, done = Blocks(len(data.sizes), data.sizes.sum()), 0
    for look, mark in enumerate(MARKS, 1):
        new = order[done : (done := int(np.ceil(mark * len(order))))]
        row, group = np.nonzero(of["n"][new])
        at = (new[row], group)
        blocks.add(data.sizes[new])
        for name, moments in kept.items():
            values = {
                COUNT: of["n"][at],
                TOTAL: of["sum" if name == "sum" else "about"][at],
                SQUARES: of["squares"][at],
                SIZE: data.sizes[at[0]],
            }
            moments.add(group, values, GROUPS)
        sure = Confidence(0.95, promise, look)
        found = {
            "count": total(kept["count"], COUNT, blocks, sure),
            "sum": total(kept["sum"], TOTAL, blocks, sure),
            "mean": mean(kept["mean"], blocks, sure).shifted(1.0),
            "var": variance(kept["var"], blocks, sure),
        }
        yield blocks, kept["count"].present > 0, found


def campaign(order: str, promise: str, runs: int) -> dict[str, Score]:
    """All runs over inputs of one order."""
    scores = {name: Score() for name in AGGREGATES}
    for seed in range(runs):
        data = make(order, seed)
        exact = answers(data)
        always = {name: np.ones(GROUPS, bool) for name in AGGREGATES}
        for blocks, seen, found in looks(data, seed, promise):
            for name, one in found.items():
                given = seen & ~np.isnan(one.upper)
                slack = 1e-9 * np.abs(exact[name])
                inside = (one.lower - slack <= exact[name]) & (exact[name] <= one.upper + slack)
                score = scores[name]
                score.given += int(given.sum())
                score.right += int((given & inside).sum())
                score.none += int((seen & ~given).sum())
                always[name] &= inside | ~given
                if order == "shuffled" and given.all():
                    score.widths.append(float(np.mean(one.upper - one.lower)))
                    score.row_widths.append(row_width(data, name, blocks))
        for name, held in always.items():
            scores[name].paths += GROUPS
            scores[name].right_paths += int(held.sum())
    return scores


def row_width(data: Input, name: str, blocks: Blocks) -> float:
    """How wide a textbook interval is from as many rows, drawn at random from all of them."""
    rows = len(data.group)
    n = round(rows * blocks.progress)
    left, widths = 1 - n / rows, []
    for g in range(GROUPS):
        mine = data.group == g
        of = {
            "count": mine.astype(float),
            "sum": np.where(mine, data.value, 0.0),
            "mean": data.value[mine],
            "var": (data.value[mine] - data.value[mine].mean()) ** 2,
        }[name]
        if name in ("count", "sum"):
            error = rows * of.std() * np.sqrt(left / n)
        else:
            error = of.std() * np.sqrt(left / (n * mine.mean()))
        widths.append(2 * 1.96 * error)
    return float(np.mean(widths))


def check(order: str, promise: str, runs: int, least: float = 0.94) -> None:
    for name, score in campaign(order, promise, runs).items():
        where = f"{name}, {order}, {promise}, {runs} runs: {score.right} of {score.given} are right"
        assert score.given > 0, where
        assert score.right >= least * score.given, where
        if promise == ANYTIME:
            held = f"{where}; {score.right_paths} of {score.paths} whole paths"
            assert score.right_paths >= least * score.paths, held
        if order == "shuffled" and name in ("count", "sum"):
            assert score.none == 0, f"{where}; {score.none} without bounds"
        if order == "shuffled" and promise == POINTWISE and name != "var":
            wide = np.sum(score.widths) / np.sum(score.row_widths)
            assert wide <= 1.3, f"{where}; {wide:.2f} times as wide as from rows"


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
@pytest.mark.parametrize("order", ORDERS)
def test_intervals_contain_the_exact_answer(order: str, promise: str) -> None:
    check(order, promise, 16, least=0.92)  # so few runs are right to two per cent themselves


@pytest.mark.long
@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
@pytest.mark.parametrize("order", ORDERS)
def test_intervals_contain_the_exact_answer_in_many_runs(order: str, promise: str) -> None:
    check(order, promise, 200)


def test_a_narrower_interval_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calculation itself: bounds that are a third too narrow do not pass."""
    import millstream.ops.estimating.estimates as estimates

    true = estimates.radius
    monkeypatch.setattr(estimates, "radius", lambda *a: true(*a) * 0.66)
    with pytest.raises(AssertionError, match="are right"):
        check("shuffled", POINTWISE, 16, least=0.92)


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
def test_everything_read_is_exact(promise: str) -> None:
    data = make("skewed", 3)
    of = blocks_of(data)
    row, group = np.nonzero(of["n"])
    moments = Moments((COUNT, TOTAL, SQUARES))
    blocks = Blocks(len(data.sizes), data.sizes.sum())
    blocks.add(data.sizes)
    values = {COUNT: of["n"][row, group], TOTAL: of["about"][row, group]}
    moments.add(group, {**values, SQUARES: of["squares"][row, group]}, GROUPS)
    exact, sure = answers(data), Confidence(0.95, promise)
    for found, name in (
        (mean(moments, blocks, sure).shifted(1.0), "mean"),
        (variance(moments, blocks, sure), "var"),
    ):
        assert np.allclose(found.value, exact[name])
        assert (found.lower == found.value).all()
        assert (found.upper == found.value).all()
