"""Windows over tallies by entering and leaving panes, against combining them; types are kept."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.ops.aggregates import tallies
from millstream.ops.keys.wires import column_of, wider, wires_of
from millstream.testing import Driver, reference

NUMBERS: dict[str, list[Any]] = {
    "whole": [0, 1, -3, 7, 2**62, -(2**62)],
    "prices": [0.1, 0.2, 0.30000000000000004, 12.34, 99.99, -5.5],
    "far apart": [1e-300, 1e300, -1e300, 1e16, 1.0, 5e-324],
    "too large": [1e308, -1e308, 1.7e308, 3.0],
    "strange": [float("nan"), float("inf"), float("-inf"), 1.5, -2.0],
    "near": [1.0, 1.0 + 2**-52, 1.0 - 2**-53, 2**-53, 2**-54],
}


def panes_and_windows(seed: int, rows: int) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The pane of every row, and windows over ascending panes of several keys, some with gaps."""
    rng = random.Random(seed)
    panes = sorted(rng.randrange(12) for _ in range(rows))
    count = max(panes) + 1
    bounds = []
    for start, stop in ((0, count // 2), (count // 2, count)):  # two keys
        size = rng.randint(1, 4)
        for end in range(start + 1, stop + 1, rng.randint(1, 3)):
            bounds.append((max(start, end - size), end))
    low, high = (np.array([one[i] for one in bounds], np.int64) for i in (0, 1))
    return panes, low, high


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("seed", range(20))
def test_windows_are_what_combined_panes_give(numbers: str, seed: int) -> None:
    rng = random.Random(f"{numbers} {seed}")
    panes, low, high = panes_and_windows(seed, 60)
    values = pa.array([rng.choice(["a", "b", "c", "d", None]) for _ in panes])
    by = pa.array([rng.choice([*NUMBERS[numbers], None]) for _ in panes])
    if numbers == "whole":  # sums of several would overflow, which is an error of its own
        by = pa.array([None if v is None else v >> 8 for v in by.to_pylist()])
    groups = np.array(panes, np.int64)
    for kernel, columns in (
        (tallies.top_k("by", 2, True), [values, by]),
        (tallies.top_k("count", 2, False), [values]),
        (tallies.distinct("distinct"), [values]),
    ):
        assert kernel.bulk and kernel.typed and kernel.windows
        states = kernel.bulk(columns, groups, max(panes) + 1)
        expected = kernel.typed(kernel.slide(states, low, high))
        found = kernel.windows(states, low, high)
        assert found.type == expected.type
        assert repr(found.to_pylist()) == repr(expected.to_pylist())


def test_decimals_go_through_wires_in_their_order() -> None:
    texts = ["0", "-1.5", "1.5", "2", "-99999999.99", "99999999.99", "0.01", "-0.01"]
    column = pa.array([Decimal(text) for text in texts], pa.decimal128(10, 2))
    kind, wires = wires_of(column.slice(1))
    assert kind == "decimal128(10, 2)"
    assert column_of(wires, kind).equals(column.slice(1))
    assert [w for _, w in sorted(zip(column.to_pylist()[1:], wires, strict=True))] == sorted(wires)
    finer, again = wires_of(column.cast(pa.decimal128(20, 5)).slice(1))
    assert again == wires  # whatever the type of a chunk, equal values are equal
    assert wider(kind, finer) == wider(finer, kind) == "decimal128(20, 5)"
    assert wider("decimal128(38, 0)", "decimal128(5, 5)") == "decimal256(43, 5)"
    largest = pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0))
    assert column_of(wires_of(largest)[1], "decimal128(38, 0)").equals(largest)


def test_top_k_of_decimals_gives_decimals() -> None:
    rng = random.Random(4)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [
        {
            "ts": begin + timedelta(seconds=i),
            "k": rng.choice("ab"),
            "price": Decimal(rng.randint(-30, 900)) / (100 if i % 50 else 1000),
            "size": rng.random(),
        }
        for i in range(300)
    ]
    flow = ms.Flow("decimals")
    records = flow.source(ms.Generator(list, time="ts", lateness="0s"), name="in")
    records.key_by("k").window(ms.sliding("60s", "5s")).agg(
        often=ms.top_k("price", 3),
        most=ms.top_k("price", 3, by="size"),
        kinds=ms.distinct("price"),
    ).sink(ms.Memory(), name="out")
    expected = reference(flow, {"in": rows})["out"]
    with Driver(flow, parallelism=2) as driver:
        for start in range(0, len(rows), 40):
            driver.push("in", rows[start : start + 40]).step()
        driver.end()
        found = driver.output("out")
    assert len(found) == len(expected) > 100
    wanted = {(row["k"], row["window_end"]): row for row in expected}
    for row in found:
        want = wanted[row["k"], row["window_end"]]
        assert row["often"] == want["often"]
        assert [one["value"] for one in row["most"]] == [one["value"] for one in want["most"]]
        assert row["kinds"] == want["kinds"]
        assert all(isinstance(one["value"], Decimal) for one in row["often"] + row["most"])


def test_plans_name_the_way() -> None:
    flow = ms.Flow("plan")
    records = flow.source(ms.Generator(list, time="ts", lateness="0s"), name="in")
    windowed = records.key_by("k").window(ms.sliding("3m", "1m"))
    windowed.agg(often=ms.top_k("v"), kinds=ms.distinct("v")).sink(ms.Memory())
    assert "strategy: running tallies, because a window has 3 panes" in flow.explain()
    assert "kinds = distinct(v): running tallies, panes are counted in" in flow.explain()
