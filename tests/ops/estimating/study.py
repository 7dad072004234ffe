"""Coverage of early answers on the inputs of `shapes.py`: a calculation that can fail.

python -m tests.ops.estimating.study --runs 200 --start 0 [SHAPE ...]

A run makes an input, draws an order of its blocks, and gives the driver's `Answers` what tasks
would report of them. At some shares of the input every bound is compared with the exact answer,
which is computed from all rows by NumPy. Beside it stands a uniform sample of as many rows with
the textbook's interval: how wide that is, and how often it is right.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import millstream as ms
from millstream.api.early import looks
from millstream.ops.estimating.answers import Answers
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.ranks import picked
from millstream.ops.windows.jobs import Measure
from millstream.run.early.target import target_for
from millstream.run.planning import plan_flow
from tests.ops.estimating.shapes import SHAPES, SHUFFLED, Rows, Shape

MARKS = (0.09, 0.2, 0.4, 0.65, 0.9)
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles, of which each run looks at one
PROMISES = (POINTWISE, ANYTIME)
RATIO = ("rate", ("total", "others"))
COMPARED = ("rows", "total", "mean", "rate")  # with a sample of rows
Answer = dict[str, np.ndarray]


@cache
def measures(quantile: float) -> tuple[Measure, ...]:
    """The aggregates, as a flow of them is planned."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "in.csv").write_text("g,v,w,u\na,0.5,0.5,1\n")
        flow = ms.Flow("study")
        rows = flow.source(ms.Files(f"{place}/in.csv", format="csv"), name="rows")
        rows.key_by("g").agg(
            rows=ms.count(),
            total=ms.sum("v"),
            others=ms.sum("w"),
            mean=ms.mean("v"),
            var=ms.var("v"),
            quantile=ms.quantile("v", quantile),
            different=ms.distinct("u"),
        ).sink(ms.Memory())
        looking = target_for(plan_flow(flow), looks(None, None, None))
    assert looking is not None
    return looking[1].windows.job.measures


# -- what is true --------------------------------------------------------------------------------


def exact(rows: Rows, group: np.ndarray, groups: int, quantile: float) -> Answer:
    """The answer of every aggregate and group; NaN where there is none."""
    found: dict[str, list[float]] = {}
    for one in range(groups):
        of = group == one
        value = rows.value[of & rows.there]
        said = {
            "rows": of.sum() or np.nan,
            "total": value.sum() if len(value) else np.nan,
            "others": rows.other[of].sum() if of.any() else np.nan,
            "mean": value.mean() if len(value) else np.nan,
            "var": value.var(ddof=1) if len(value) > 1 else np.nan,
            "quantile": np.quantile(value, quantile) if len(value) else np.nan,
            "different": len(np.unique(rows.item[of])) or np.nan,
            "rate": value.sum() / rows.other[of].sum() if len(value) else np.nan,
        }
        for name, what in said.items():
            found.setdefault(name, []).append(float(what))
    return {name: np.array(values) for name, values in found.items()}


# -- what tasks report ---------------------------------------------------------------------------


class Reports:
    """What blocks give every aggregate, as tables of states and of single values."""

    def __init__(self, shape: Shape, group: np.ndarray, groups: int, quantile: float) -> None:
        rows, count = shape.rows, len(shape.sizes)
        self.block, self._group, self._rows, self._groups = shape.block, group, rows, groups
        cell = self.block * groups + group

        def per(weights: np.ndarray | None, of: Any = slice(None)) -> np.ndarray:
            given = None if weights is None else weights[of]
            return np.bincount(cell[of], weights=given, minlength=count * groups).astype(float)

        n, there = per(None), per(None, rows.there)
        total = per(rows.value, rows.there)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nan_to_num(total / there)
        about = per((rows.value - mean[cell]) ** 2, rows.there)
        self._full = np.flatnonzero(n)
        states = {
            "rows": {"n": n},
            "total": {"n": there, "sum": total},
            "others": {"n": n, "sum": per(rows.other)},
            "mean": {"n": there, "sum": total},
            "var": {"n": there, "mean": mean, "m2": about},
        }
        self._states = {
            f"state.{m.state}.{name}": column
            for m in measures(quantile)
            for name, column in states.get(m.name, {}).items()
        }

    def states(self, blocks: np.ndarray) -> pa.Table:
        """States of some blocks."""
        at = self._full[np.isin(self._full // self._groups, blocks)]
        columns = {name: pa.array(column[at]) for name, column in self._states.items()}
        return self._keyed(at % self._groups, columns, at // self._groups)

    def values(self, blocks: np.ndarray) -> dict[str, pa.Table]:
        """Single values of some blocks: of quantiles those that are kept, and all items by hash."""
        rows, picks = self._rows, []
        for block in blocks.tolist():
            low, high = np.searchsorted(self.block, [block, block + 1])
            at = low + np.flatnonzero(rows.there[low:high])
            if len(at):
                of = np.unique(self._group[at], return_inverse=True)[1]
                kept, weight = picked(of, rows.value[at], int(of.max()) + 1, block)
                picks.append((at[kept], weight))
        at = np.concatenate([one for one, _ in picks] or [np.zeros(0, int)])
        weight = np.concatenate([one for _, one in picks] or [np.zeros(0)])
        value = {"value": pa.array(rows.value[at]), "weight": pa.array(weight)}
        new = np.flatnonzero(np.isin(self.block, blocks))
        item = {"value": pa.array(rows.item[new].astype(np.uint64))}
        return {
            "quantile": self._keyed(self._group[at], value, self.block[at]),
            "different": self._keyed(self._group[new], item, self.block[new]),
        }

    def _keyed(self, group: np.ndarray, columns: dict[str, Any], block: np.ndarray) -> pa.Table:
        return pa.table({"key.0": pa.array(group), **columns, "block": pa.array(block)})


def taken(
    shape: Shape, group: np.ndarray, seed: int, quantile: float
) -> Iterator[tuple[int, Answers, np.ndarray]]:
    """Looks at an input whose blocks are read in random order, and who was seen by then."""
    groups, count = int(group.max()) + 1, len(shape.sizes)
    reports = Reports(shape, group, groups, quantile)
    answers = Answers(
        ("g",), measures(quantile), np.arange(count), shape.sizes, ratios=dict([RATIO])
    )
    order = np.random.default_rng([seed, 424_242]).permutation(count)
    read = np.cumsum(shape.sizes[order]) / shape.sizes.sum()
    done = 0
    for look, mark in enumerate(MARKS, 1):
        end = int(np.searchsorted(read, mark)) + 1
        if not done < end < count:
            continue
        new, done = order[done:end], end
        answers.add(reports.states(new))
        for name, table in reports.values(new).items():
            answers.add_values(name, table)
        answers.read(new)
        yield look, answers, np.asarray(answers.key_columns()["g"])


# -- what a sample of rows says ------------------------------------------------------------------


def of_rows(
    rng: np.random.Generator, rows: Rows, group: np.ndarray, groups: int, n: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Bounds of a textbook from n rows drawn at random, for every group."""
    count = len(rows)
    at = rng.choice(count, n, replace=False)
    of, there = group[at], rows.there[at].astype(float)
    value, other = rows.value[at] * there, rows.other[at]
    per = lambda w: np.bincount(of, weights=w, minlength=groups)  # noqa: E731
    far = 1.96 * np.sqrt(1 - n / count)
    many, valued = per(None), per(there)
    found = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        for name, first, second in (
            ("rows", many, many),
            ("total", per(value), per(value**2)),
        ):
            wide = far * count * np.sqrt((second / n - (first / n) ** 2) / n)
            found[name] = (count * first / n - wide, count * first / n + wide)
        for name, over, under in (("mean", value, there), ("rate", value, other)):
            below = valued if name == "mean" else per(other)
            middle = per(over) / below
            wide = far * np.sqrt(per((over - middle[of] * under) ** 2)) / below
            found[name] = (middle - wide, middle + wide)
    enough = valued >= 20  # with fewer no textbook gives an interval
    return {name: (np.where(enough, a, np.nan), b) for name, (a, b) in found.items()}


# -- counting ------------------------------------------------------------------------------------


@dataclass
class Score:
    """How often bounds of one aggregate were right."""

    given: int = 0
    right: int = 0
    none: int = 0  # no bound, though there are blocks enough
    below: int = 0  # the exact answer is below the lower bound
    paths: int = 0
    right_paths: int = 0
    by_look: np.ndarray = field(default_factory=lambda: np.zeros((len(MARKS) + 1, 2), int))
    wide: float = 0.0  # all widths, beside those of rows
    row_wide: float = 0.0
    row_given: int = 0
    row_right: int = 0
    row_far: list[np.ndarray] = field(default_factory=list)  # of the truth, in half widths of rows

    @property
    def share(self) -> float:
        """Of the bounds that were given, those that were right."""
        return self.right / self.given if self.given else np.nan

    @property
    def path_share(self) -> float:
        """Of the values of all runs, those whose bounds were right at every look."""
        return self.right_paths / self.paths if self.paths else np.nan

    @property
    def times(self) -> float:
        """How many times as wide as those of a sample of as many rows."""
        return self.wide / self.row_wide if self.row_wide else np.nan

    @property
    def fair_times(self) -> float:
        """The same, of a sample of rows whose bounds are so wide that they are right as often.

        Where tails are long, bounds of the textbook are narrow because they are wrong.
        """
        if not self.row_far:
            return np.nan
        far = np.sort(np.concatenate(self.row_far))
        needed = far[min(int(np.ceil(self.share * len(far))), len(far)) - 1]
        return self.times / max(float(needed), 1e-9)

    @property
    def row_share(self) -> float:
        """How often the bounds of the textbook are right."""
        return self.row_right / self.row_given if self.row_given else np.nan


def _inside(true: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[Any, Any, Any]:
    """Whether bounds are given, contain the truth, and are above it."""
    slack = 1e-9 * np.abs(true) + 1e-12
    under, over = true < low - slack, true > high + slack
    return ~(np.isnan(low) & np.isnan(high)), ~(under | over), under


def study(shape_name: str, runs: int, start: int = 0) -> dict[tuple[str, str], Score]:
    """All runs over inputs of one shape, by promise and aggregate; every fifth without groups."""
    scores: dict[tuple[str, str], Score] = {}
    for seed in range(start, start + runs):
        rng = np.random.default_rng([seed, 90_001])
        shape = SHAPES[shape_name](rng)
        group = shape.rows.group if seed % 5 else np.zeros(len(shape.rows), np.int64)
        groups = int(group.max()) + 1
        quantile = SHARES[seed % len(SHARES) - 1 if seed % 2 else (seed // 2) % len(SHARES)]
        true = exact(shape.rows, group, groups, quantile)
        held: dict[tuple[str, str], np.ndarray] = {}
        for look, answers, seen in taken(shape, group, seed, quantile):
            n = round(answers.blocks.progress * len(group))
            from_rows = of_rows(rng, shape.rows, group, groups, n)
            for promise in PROMISES:
                sure = Confidence(0.95, promise, look)
                for name, one in answers.estimates(sure).items():
                    score = scores.setdefault((promise, name), Score())
                    kept = held.setdefault((promise, name), np.full(groups, True))
                    _count(score, kept, look, answers, true[name], one, seen)
                    if promise == POINTWISE and name in COMPARED:
                        _compare(score, true[name], one, seen, from_rows[name])
                kept = held.setdefault((promise, "unseen"), np.full(groups, True))
                score = scores.setdefault((promise, "unseen"), Score())
                most = answers.unseen_total("rows", sure)
                hidden = np.setdiff1d(np.flatnonzero(true["rows"] > most), seen)
                score.given += groups
                score.right += groups - len(hidden)
                kept[hidden] = False
        for key, kept in held.items():
            some = ~np.isnan(true[key[1]]) if key[1] in true else np.full(groups, True)
            scores[key].paths += int(some.sum())
            scores[key].right_paths += int((kept & some).sum())
    return scores


def _count(
    score: Score,
    kept: np.ndarray,
    look: int,
    answers: Answers,
    truth: np.ndarray,
    found: Estimates,
    seen: np.ndarray,
) -> None:
    true = truth[seen]
    said, inside, under = _inside(true, found.lower, found.upper)
    given = said & ~np.isnan(true)
    score.given += int(given.sum())
    score.right += int((given & inside).sum())
    score.below += int((given & under).sum())
    score.by_look[look] += (int(given.sum()), int((given & inside).sum()))
    if not answers.blocks.few:
        score.none += int((~said & ~np.isnan(true)).sum())
    kept[seen[given & ~inside]] = False


def _compare(
    score: Score,
    truth: np.ndarray,
    found: Estimates,
    seen: np.ndarray,
    from_rows: tuple[np.ndarray, np.ndarray],
) -> None:
    low, high = (one[seen] for one in from_rows)
    said, inside, _ = _inside(truth[seen], low, np.where(np.isnan(low), np.nan, high))
    both = said & np.isfinite(found.upper - found.lower)
    score.row_given += int(both.sum())
    score.row_right += int((both & inside).sum())
    score.wide += float((found.upper - found.lower)[both].sum())
    score.row_wide += float((high - low)[both].sum())
    off, half = np.abs(truth[seen] - (low + high) / 2)[both], ((high - low) / 2)[both]
    with np.errstate(divide="ignore", invalid="ignore"):
        score.row_far.append(np.where(off <= 1e-9 * np.abs(truth[seen][both]), 0.0, off / half))


def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("shapes", nargs="*")
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--start", type=int, default=0)
    said = asked.parse_args()
    print("shape | aggregate | pointwise, above, worst look | given | paths | wide, rows', fair")
    for shape in said.shapes or list(SHAPES):
        scores = study(shape, said.runs, said.start)
        for name in [n for p, n in scores if p == POINTWISE]:
            at, path = scores[POINTWISE, name], scores[ANYTIME, name]
            every = path.path_share
            looks_at = at.by_look[at.by_look[:, 0] > 0]
            worst = (looks_at[:, 1] / looks_at[:, 0]).min() if len(looks_at) else np.nan
            flag = "  <--" if min(at.share, every) < 0.94 else ""
            if shape in SHUFFLED and at.times > 1.3 and at.row_share >= 0.94:
                flag += "  wide"
            print(
                f"{shape:14s} | {name:9s} | {at.share:6.2%} "
                f"{(at.given - at.right - at.below) / max(1, at.given):6.2%} {worst:6.2%} | "
                f"{at.given / max(1, at.given + at.none):6.1%} | {every:6.2%} | "
                f"{at.times:5.2f} {at.row_share:6.2%} {at.fair_times:5.2f}{flag}",
                flush=True,
            )


if __name__ == "__main__":
    main()
