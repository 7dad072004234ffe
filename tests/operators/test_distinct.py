"""Every row once, whatever the batches; the reference is a set filled in the order of time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

START = datetime(2024, 1, 1, tzinfo=UTC)


def records(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Records of few values, out of order by less than the lateness."""
    return [
        {
            "ts": START + timedelta(seconds=max(0, i // 2 - rng.randrange(5))),
            "a": rng.choice([None, 1, 2, 3]),
            "b": rng.choice(["x", "y", None]),
            "c": rng.randrange(1000),
        }
        for i in range(count)
    ]


def drive(
    flow: ms.Flow, rows: list[dict[str, Any]], cuts: list[int], parallelism: int, checkpoint: Any
) -> list[dict[str, Any]]:
    """The flow over the rows in some batches, begun anew at every other cut."""
    bounds = [0, *sorted(cuts), len(rows)]
    with Driver(flow, parallelism=parallelism, checkpoint=checkpoint) as driver:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            driver.push("in", rows[start:stop]).step()
            if number % 2:
                driver.restart()
        driver.end()
        return driver.output("out")


def source(flow: ms.Flow) -> ms.Stream:
    schema = "ts timestamp, a long, b string, c long"
    return flow.source(ms.Generator(tuple, time="ts", lateness="5s", schema=schema), name="in")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_row_once(seed: int, parallelism: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    rows = records(rng, 60)
    flow = ms.Flow("distinct")
    source(flow).distinct("a", "b").sink(ms.Memory(), name="out")
    cuts = [rng.randrange(61) for _ in range(rng.randrange(6))]
    found = drive(flow, rows, cuts, parallelism, tmp_path)
    expected = {(row["a"], row["b"]) for row in rows}
    assert len(found) == len(expected)
    assert {(row["a"], row["b"]) for row in found} == expected
    assert all(row.keys() == {"a", "b"} for row in found)
