"""How often bounds contain the exact answer: a calculation that can fail.

python -m tests.ops.estimating.campaign --runs 200 [KIND ...]

A run makes an input, draws an order of its blocks, and looks at it at some shares of the input.
Every bound that is given is compared with the exact answer; where none is given, that is counted
too, so that nobody is right by saying nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from millstream.ops.estimating.estimates import (
    Confidence,
    Estimates,
    mean,
    total,
    variance,
)
from millstream.ops.estimating.incidence import Incidence
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.moments import COUNT, SIZE, SQUARES, TOTAL, Blocks, Moments
from millstream.ops.estimating.ranks import Ranks
from tests.ops.estimating.inputs import Input
from tests.ops.estimating.kinds import KINDS

MARKS = (0.05, 0.1, 0.25, 0.5, 0.8)
SHARES = (0.1, 0.5, 0.9)  # quantiles, of which each run looks at one
PROMISES = (POINTWISE, ANYTIME)


@dataclass
class Score:
    """How often bounds of one aggregate were right."""

    given: int = 0
    right: int = 0
    none: int = 0  # no bound yet, though blocks enough
    below: int = 0  # the exact answer is below the lower bound
    paths: int = 0
    right_paths: int = 0
    widths: list[float] = field(default_factory=list)
    row_widths: list[float] = field(default_factory=list)  # of a uniform sample of rows

    @property
    def share(self) -> float:
        """Of the bounds that were given, those that were right."""
        return self.right / self.given if self.given else 1.0

    @property
    def path_share(self) -> float:
        """Of the groups of all runs, those whose bounds were right at every look."""
        return self.right_paths / self.paths if self.paths else 1.0

    @property
    def wide(self) -> float:
        """How many times as wide as those of a sample of as many rows."""
        return sum(self.widths) / sum(self.row_widths) if self.row_widths else np.nan


def exact(data: Input, groups: int, quantile: float | None = None) -> dict[str, np.ndarray]:
    """The answer of every aggregate and group."""
    of = [data.value[data.group == g] for g in range(groups)]
    ids = np.floor(data.value * 50)
    one = lambda fn: np.array([fn(v) if len(v) else np.nan for v in of], float)  # noqa: E731
    found = {
        "count": one(len),
        "sum": one(np.sum),
        "mean": one(np.mean),
        "var": np.array([v.var(ddof=1) if len(v) > 1 else np.nan for v in of]),
    }
    if quantile is None:
        return found
    found["quantile"] = one(lambda v: np.quantile(v, quantile))
    found["distinct"] = np.array(
        [len(np.unique(ids[data.group == g])) if len(of[g]) else np.nan for g in range(groups)]
    )
    return found


def looks(
    data: Input, seed: int, groups: int, quantile: float | None
) -> Iterator[tuple[Blocks, np.ndarray, dict]]:
    """Estimates of both kinds at every mark, in a random order of blocks."""
    count = len(data.sizes)
    block = np.repeat(np.arange(count), np.diff(data.bounds))
    code, about = block * groups + data.group, data.value - 1.0

    def per(weights: np.ndarray | None) -> np.ndarray:
        sums = np.bincount(code, weights=weights, minlength=count * groups)
        return sums.reshape(count, groups).astype(float)

    n, sums, abouts, squares = per(None), per(data.value), per(about), per(about**2)
    order = np.random.default_rng([seed, 77]).permutation(count)
    turn = np.empty(count, np.int64)
    turn[order] = np.arange(count)
    ids = np.floor(data.value * 50).astype(np.int64).view(np.uint64)
    kept = {
        "count": Moments((COUNT, SIZE)),
        "sum": Moments((COUNT, TOTAL, SIZE)),
        "mean": Moments((COUNT, TOTAL)),
        "var": Moments((COUNT, TOTAL, SQUARES)),
    }
    ranks = {} if quantile is None else {"quantile": Ranks(quantile)}
    incidence = Incidence()
    blocks, done = Blocks(count, data.sizes.sum()), 0
    for look, mark in enumerate(MARKS, 1):
        new = order[done : (end := int(np.ceil(mark * count)))]
        rows = np.flatnonzero((turn[block] >= done) & (turn[block] < end))
        done = end
        row, group = np.nonzero(n[new])
        at = (new[row], group)
        blocks.add(data.sizes[new])
        for name, moments in kept.items():
            values = {
                COUNT: n[at],
                TOTAL: (sums if name == "sum" else abouts)[at],
                SQUARES: squares[at],
                SIZE: data.sizes[at[0]],
            }
            moments.add(group, values, groups)
        for one in ranks.values():
            one.add(data.group[rows], block[rows], data.value[rows], np.ones(len(rows)))
        if quantile is not None:
            cells = np.lexsort((ids[rows], data.group[rows], block[rows]))
            g, b, v = data.group[rows][cells], block[rows][cells], ids[rows][cells]
            first = np.ones(len(g), bool)
            first[1:] = (g[1:] != g[:-1]) | (b[1:] != b[:-1]) | (v[1:] != v[:-1])
            incidence.add(g[first], b[first], v[first])
        found = {}
        for promise in PROMISES:
            sure = Confidence(0.95, promise, look)
            one_kind: dict[str, Estimates] = {
                "count": total(kept["count"], COUNT, blocks, sure),
                "sum": total(kept["sum"], TOTAL, blocks, sure),
                "mean": mean(kept["mean"], blocks, sure).shifted(1.0),
                "var": variance(kept["var"], blocks, sure),
            }
            if quantile is not None:
                one_kind["distinct"] = incidence.estimates(groups, blocks, sure)
            for name, rank in ranks.items():
                one_kind[name] = rank.estimates(groups, blocks, sure)
            found[promise] = one_kind
        yield blocks, kept["count"].present > 0, found


def row_width(data: Input, name: str, blocks: Blocks, groups: int) -> np.ndarray:
    """How wide a textbook interval is from as many rows, drawn at random from all of them."""
    rows = len(data.group)
    n = rows * blocks.progress
    left = 1 - n / rows
    many = np.bincount(data.group, minlength=groups).astype(float)
    first = np.bincount(data.group, weights=data.value, minlength=groups)
    second = np.bincount(data.group, weights=data.value**2, minlength=groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = {
            "count": rows * np.sqrt(many / rows - (many / rows) ** 2) / np.sqrt(n),
            "sum": rows * np.sqrt(second / rows - (first / rows) ** 2) / np.sqrt(n),
            "mean": np.sqrt(second / many - (first / many) ** 2) / np.sqrt(n * many / rows),
        }[name]
    found: np.ndarray = 2 * 1.96 * spread * np.sqrt(left)
    return found


def campaign(
    kind: str, runs: int, start: int = 0, values: bool = True
) -> dict[tuple[str, str], Score]:
    """All runs over inputs of one kind, by promise and aggregate.

    values: also quantiles and different values, which take most of the time.
    """
    scores: dict[tuple[str, str], Score] = {}
    for seed in range(start, start + runs):
        data = KINDS[kind](np.random.default_rng([seed, 5]))
        groups = int(data.group.max()) + 1
        quantile = SHARES[seed % len(SHARES)] if values else None
        true = exact(data, groups, quantile)
        always: dict[tuple[str, str], np.ndarray] = {}
        for blocks, seen, by_promise in looks(data, seed, groups, quantile):
            for promise, found in by_promise.items():
                for name, one in found.items():
                    score = scores.setdefault((promise, name), Score())
                    said = ~(np.isnan(one.upper) & np.isnan(one.lower))
                    there = seen & ~np.isnan(true[name])
                    given = there & said
                    slack = 1e-9 * np.abs(true[name]) + 1e-12
                    under, over = true[name] < one.lower - slack, true[name] > one.upper + slack
                    inside = ~(under | over)
                    score.given += int(given.sum())
                    score.right += int((given & inside).sum())
                    score.below += int((given & under).sum())
                    if not blocks.few:
                        score.none += int((there & ~said).sum())
                    kept = always.setdefault((promise, name), np.ones(groups, bool))
                    kept &= inside | ~given
                    if (
                        name in ("count", "sum", "mean")
                        and (both := given & np.isfinite(one.upper)).any()
                    ):
                        score.widths.append(float((one.upper - one.lower)[both].sum()))
                        score.row_widths.append(
                            float(row_width(data, name, blocks, groups)[both].sum())
                        )
        for key, held in always.items():
            some = ~np.isnan(true[key[1]])
            scores[key].paths += int(some.sum())
            scores[key].right_paths += int((held & some).sum())
    return scores


def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("kinds", nargs="*", default=list(KINDS))
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--start", type=int, default=0)
    asked.add_argument("--totals", action="store_true", help="no quantiles, no different values")
    given = asked.parse_args()
    print("kind | aggregate | pointwise | above its upper bound | given | anytime paths | wide")
    for kind in given.kinds or list(KINDS):
        scores = campaign(kind, given.runs, given.start, not given.totals)
        for name in [n for p, n in scores if p == POINTWISE]:
            at, path = scores[POINTWISE, name], scores[ANYTIME, name]
            bad = "  <--" if min(at.share, path.path_share) < 0.94 else ""
            print(
                f"{kind:22s} | {name:12s} | {at.share:6.2%} | "
                f"{(at.given - at.right - at.below) / max(1, at.given):6.2%} | "
                f"{at.given / max(1, at.given + at.none):6.1%} | {path.path_share:6.2%} | "
                f"{at.wide:4.2f} {path.wide:4.2f}{bad}",
                flush=True,
            )


if __name__ == "__main__":
    main()
