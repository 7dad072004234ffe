"""Settled places of a ranking: how often they are wrong, and that there are any."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from millstream.ops.estimating.answers import Answers
from millstream.ops.estimating.estimates import Confidence
from millstream.ops.estimating.intervals import ANYTIME, POINTWISE
from millstream.ops.estimating.places import places
from tests.ops.estimating.study import measures

ROWS, BLOCKS, WORDS = 16_000, 240, 300
MARKS = (0.15, 0.3, 0.5, 0.7, 0.9)
COUNT = tuple(one for one in measures(0.5) if one.name == "rows")


def words(seed: int, sort: bool) -> np.ndarray:
    """How often each word is in each block, as frequent as Zipf has them."""
    share = 1 / np.arange(1, WORDS + 1) ** 1.1
    word = np.random.default_rng(seed).choice(WORDS, ROWS, p=share / share.sum())
    if sort:
        word = np.concatenate([np.sort(part) for part in np.array_split(word, 20)])
    cell = np.arange(ROWS) * BLOCKS // ROWS * WORDS + word
    return np.bincount(cell, minlength=BLOCKS * WORDS).reshape(BLOCKS, WORDS)


def looks(seed: int, promise: str, sort: bool) -> Iterator[tuple[int, bool]]:
    """At each look how many places are settled, and whether all of these are right in the end."""
    there = words(seed, sort)
    often = there.sum(axis=0)
    ranked = np.sort(often)[::-1]
    order = np.random.default_rng([seed, 1]).permutation(BLOCKS)
    answers = Answers(("word",), COUNT, np.arange(BLOCKS), np.full(BLOCKS, 1000.0))
    done = 0
    for look, mark in enumerate(MARKS, 1):
        new = order[done : int(mark * BLOCKS)]
        done += len(new)
        row, word = np.nonzero(there[new])
        column = f"state.{COUNT[0].state}.n"
        found = {"key.0": word, column: there[new][row, word].astype(float), "block": new[row]}
        answers.add(pa.table(found))
        answers.read(new)
        sure = Confidence(1 - 0.05 / (answers.groups + 1), promise, look)
        bounds, most = answers.estimates_of("rows", sure), answers.unseen_total("rows", sure)
        key = np.asarray(answers.key_columns()["word"])
        one = places(
            np.zeros(len(key), np.int64), bounds.value, bounds.lower, bounds.upper, most, 50
        )
        settled = one.settled.astype(bool)
        has, due = often[key[one.rows]], ranked[one.place - 1]
        yield int(settled.sum()), bool((has == due)[settled].all())


def check(runs: int, promise: str, sort: bool) -> None:
    paths = [list(looks(seed, promise, sort)) for seed in range(runs)]
    right = sum(all(ok for _, ok in path) for path in paths)
    assert right >= 0.94 * runs, f"{right} of {runs} runs have no settled place that is wrong"
    settled = np.mean([[many for many, _ in path] for path in paths], axis=0)
    assert settled[-1] > settled[0], f"settled places at each look: {settled}"


@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
def test_settled_places_stay(promise: str) -> None:
    check(4, promise, sort=False)


@pytest.mark.long
@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("promise", [POINTWISE, ANYTIME])
def test_settled_places_stay_in_many_runs(promise: str, sort: bool) -> None:
    check(100, promise, sort)
