"""Every row once, whatever the batches; the reference is a set filled in the order of time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.variants import variants

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


@pytest.mark.parametrize("seed", variants(range(6), 2))
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


@pytest.mark.parametrize("seed", variants(range(4)))
def test_steps_around_it_give_what_the_reference_gives(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    rows = records(rng, 60)
    flow = ms.Flow("around")
    once = source(flow).where("c < 800").distinct("a", "b").named("once")
    windows = once.key_by("b", nulls="keep").window(ms.tumbling("10s"))
    windows.agg(n=ms.count()).sink(ms.Memory(), name="out")
    cuts = [rng.randrange(61) for _ in range(3)]
    found = drive(flow, rows, cuts, 2, tmp_path)
    expected = reference(flow, {"in": rows})["out"]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_late_records_are_set_aside(tmp_path: Any) -> None:
    flow = ms.Flow("late")
    once = source(flow).distinct("a")
    once.sink(ms.Memory(), name="out")
    once.late().sink(ms.Memory(), name="late")
    rows = [
        {"ts": START + timedelta(seconds=s), "a": s, "b": "x", "c": 0} for s in (20, 10, 18, 20)
    ]
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", rows).end()
        assert [row["a"] for row in driver.output("out")] == [18, 20]
        assert [row["a"] for row in driver.output("late")] == [10]
        account = driver.ledger["distinct"]
    assert (account["offered"], account["aggregated"], account["late"]) == (4, 3, 1)


def test_other_columns_need_another_checkpoint(tmp_path: Any) -> None:
    flow = ms.Flow("same")
    source(flow).distinct("a").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.end()
    flow = ms.Flow("same")
    source(flow).distinct("a", "b").sink(ms.Memory(), name="out")
    with pytest.raises(ms.CheckpointError, match="distinct"):
        Driver(flow, checkpoint=tmp_path)


@pytest.mark.parametrize("columns", [("",), ("a", "a"), (3,)])
def test_columns_are_checked(columns: Any) -> None:
    with pytest.raises(ms.ConfigError, match="distinct"):
        source(ms.Flow("wrong")).distinct(*columns)


@pytest.mark.parametrize("seed", variants(range(8), 2))
@pytest.mark.parametrize("parallelism", [1, 2])
def test_over_changes_a_row_is_there_as_long_as_something_has_it(
    seed: int, parallelism: int, tmp_path: Any
) -> None:
    """How many windows have each count, by key: after every batch the sink holds what is so now."""
    rng = random.Random(seed)
    rows = records(rng, 80)
    flow = ms.Flow("changes")
    counts = source(flow).key_by("b", nulls="keep").window(ms.tumbling("10s"), emit="delta")
    changes = counts.agg(n=ms.count())
    changes.sink(ms.Memory(), name="counts")
    changes.where("n > 1").distinct("n").sink(ms.Memory(), name="out")
    table: set[int] = set()
    taken = 0
    with Driver(flow, parallelism=parallelism, checkpoint=tmp_path) as driver:
        while rows:
            size = rng.randrange(1, 20)
            driver.push("in", rows[:size]).step()
            rows = rows[size:]
            if rng.random() < 0.3:
                driver.restart()
            if not rows:
                driver.end()
            for row in driver.output("out")[taken:]:
                taken += 1
                if row["op"] == "+":
                    assert row["n"] not in table
                    table.add(row["n"])
                else:
                    assert row["op"] == "-"
                    table.remove(row["n"])
            now: dict[Any, int] = {}
            for row in driver.output("counts"):
                window = (row["b"], row["window_start"])
                if row["op"] == "-":
                    del now[window]
                else:
                    now[window] = row["n"]
            assert table == {n for n in now.values() if n > 1}


def test_windows_of_everything_behind_it(tmp_path: Any) -> None:
    """Their panes must not go by the name of the step."""
    flow = ms.Flow("names")
    source(flow).distinct("a").key_by().window(ms.tumbling("1d")).agg(n=ms.count()).sink(
        ms.Memory(), name="out"
    )
    rows = [{"ts": START, "a": one, "b": "x", "c": 0} for one in (1, 2, 2)]
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", rows).end()
        assert [row["n"] for row in driver.output("out")] == [2]
