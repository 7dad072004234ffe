"""Running values give what blocks give, and are used when they pay off."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


class Kinds(ms.Aggregate):
    """How many different remainders there are: a user's aggregate with an inverse."""

    def zero(self) -> dict[str, int]:
        return {}

    def add(self, state: dict[str, int], value: int) -> dict[str, int]:
        return self.combine(state, {str(value % 7): 1})

    def combine(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {k: left.get(k, 0) + right.get(k, 0) for k in {**left, **right}}

    def uncombine(self, total: dict[str, int], expired: dict[str, int]) -> dict[str, int]:
        left = {k: n - expired.get(k, 0) for k, n in total.items()}
        return {k: n for k, n in left.items() if n}

    def result(self, state: dict[str, int]) -> int:
        return len(state)


def records(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    sizes = (1.0, 1e6, 1e-3)
    return [
        {
            "ts": BEGIN + timedelta(milliseconds=i * 250 + rng.randint(0, 1900)),
            "k": rng.choice("abcd") if i % 200 < 100 else "a",
            "v": rng.randint(0, 99),
            "x": rng.random() * (1e12 if rng.random() < 0.005 else rng.choice(sizes)),
        }
        for i in range(800)
    ]


def run(rows: list[dict[str, Any]], cut: int, parallelism: int) -> tuple[Any, Counter[str]]:
    flow = ms.Flow("running")
    files = ms.Files(
        "x",
        schema="ts timestamp, k string, v bigint, x double",
        time="ts",
        lateness="2s",
        follow=True,
    )
    keyed = flow.source(files, name="in").key_by("k")
    keyed.window(ms.sliding("60s", "1s")).agg(
        n=ms.count(),
        total=ms.sum("v"),
        x=ms.sum("x"),
        mean=ms.mean("x"),
        std=ms.std("x"),
        kinds=Kinds("v"),
    ).sink(ms.Memory(), name="out")
    keyed.window(ms.sliding("30s", "3s")).agg(high=ms.max("v")).sink(ms.Memory(), name="other")
    short = keyed.window(ms.sliding("8s", "1s"))  # a batch may slide by more than this
    short.agg(n=ms.count(), total=ms.sum("v")).sink(ms.Memory(), name="short")
    used: Counter[str] = Counter()
    with Driver(flow, parallelism=parallelism) as driver:
        for start in range(0, len(rows), cut):
            driver.push("in", rows[start : start + cut]).step()
            used.update(driver.engine.manifest.strategies.values())
            if start % 77 == 0:
                driver.restart()
        driver.end()
        exact = (driver.output("other"), driver.output("short"))
        return (driver.output("out"), exact), used


def test_running_values_equal_blocks() -> None:
    check(0, [(28, 2), (90, 1)])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_running_values_equal_blocks_at_length(seed: int) -> None:
    check(seed, [(6, 1), (14, 2), (90, 1)])


def check(seed: int, ways: list[tuple[int, int]]) -> None:
    rows = records(seed)
    (blocks, other), used = run(rows, len(rows), 2)
    assert used["running values"] == 0
    for cut, parallelism in ways:
        (running, running_other), used = run(rows, cut, parallelism)
        assert used["running values"] > 5
        assert running_other == other
        assert len(running) == len(blocks)
        known = {(r["k"], r["window_end"]): r for r in blocks}
        for row in running:
            want = known[row["k"], row["window_end"]]
            for name, value in row.items():
                if isinstance(value, float) and want[name] is not None:
                    assert value == pytest.approx(want[name], rel=1e-9, abs=1e-9)
                else:
                    assert value == want[name]
