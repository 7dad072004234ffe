"""Rows of both streams, or of one only; the oracle is DuckDB's INTERSECT and EXCEPT."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import Driver, reference
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
SCHEMA = "ts timestamp, id long, a long, b string, live boolean"


def source(flow: ms.Flow, name: str) -> ms.Stream:
    return flow.source(ms.Generator(tuple, time="ts", lateness="20s", schema=SCHEMA), name=name)


def records(rng: random.Random, count: int) -> list[Row]:
    return [
        {
            "ts": START + timedelta(seconds=max(0, i - rng.randrange(10))),
            "id": rng.randrange(6),
            "a": rng.choice([None, 1, 2]),
            "b": rng.choice(["x", None]),
            "live": rng.random() < 0.7,
        }
        for i in range(count)
    ]


def by_duckdb(operation: str, sides: list[list[Row]]) -> Counter[Any]:
    with duckdb.connect() as connection:
        for name, rows in zip("lr", sides, strict=True):
            connection.execute(f"CREATE TABLE {name} (a BIGINT, b VARCHAR)")
            if rows:
                given = [(row["a"], row["b"]) for row in rows]
                connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", given)
        sql = f"SELECT a, b FROM l {operation} SELECT a, b FROM r"
        return Counter(connection.execute(sql).fetchall())


def integrated(rows: list[Row]) -> Counter[Any]:
    """What changes come to; nothing is taken back that is not there."""
    table: Counter[Any] = Counter()
    for row in rows:
        value = (row["a"], row["b"])
        assert row["op"] in "+-"
        table[value] += 1 if row["op"] == "+" else -1
        assert table[value] >= 0
    return +table


def latest(rows: list[Row]) -> list[Row]:
    found: dict[int, Row] = {}
    for row in rows:
        if row["id"] not in found or row["ts"] >= found[row["id"]]["ts"]:
            found[row["id"]] = row
    return [row for row in found.values() if row["live"]]


@pytest.mark.parametrize("how", ["intersect", "difference"])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("seed", variants(range(2)))
def test_changes_after_every_batch(how: str, each: bool, seed: int, tmp_path: Any) -> None:
    rng = random.Random(f"{how} {each} {seed}")
    flow = ms.Flow("changing")
    sides = [
        source(flow, name).changes(key="id").where("live").select("a", "b")
        for name in ("left", "right")
    ]
    made: ms.Stream = getattr(sides[0], how)(sides[1], all=each)
    made.sink(ms.Memory(), name="out")
    given = {name: records(rng, 40) for name in ("left", "right")}
    taken: dict[str, list[Row]] = {name: [] for name in given}
    operation = ("INTERSECT" if how == "intersect" else "EXCEPT") + (" ALL" if each else "")
    with Driver(flow, parallelism=1 + seed, checkpoint=tmp_path) as driver:
        while any(given.values()):
            for name, rows in given.items():
                size = rng.choice([0, 2, 9])
                driver.push(name, rows[:size])
                taken[name] += rows[:size]
                given[name] = rows[size:]
            driver.step()
            if rng.random() < 0.3:
                driver.restart()
            expected = by_duckdb(operation, [latest(rows) for rows in taken.values()])
            assert integrated(driver.output("out")) == expected


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_records_of_both_come_at_their_time(each: bool, parallelism: int, tmp_path: Any) -> None:
    """With windows behind it, so that times count; they do not depend on the cuts."""
    rng = random.Random(f"{each} {parallelism}")
    flow = ms.Flow("records")
    sides = [source(flow, name).where("live").select("a", "b") for name in ("left", "right")]
    both = sides[0].intersect(sides[1], all=each)
    both.sink(ms.Memory(), name="out")
    windows = both.key_by("a", nulls="keep").window(ms.tumbling("5s"))
    windows.agg(n=ms.count()).sink(ms.Memory(), name="windows")
    given = {name: records(rng, 40) for name in ("left", "right")}
    expected = reference(flow, dict(given))
    operation = "INTERSECT ALL" if each else "INTERSECT"
    sides_ = [[row for row in rows if row["live"]] for rows in given.values()]
    assert Counter((r["a"], r["b"]) for r in expected["out"]) == by_duckdb(operation, sides_)
    with Driver(flow, parallelism=parallelism, checkpoint=tmp_path) as driver:
        while any(given.values()):
            for name, rows in given.items():
                size = rng.choice([0, 2, 9])
                driver.push(name, rows[:size])
                given[name] = rows[size:]
            driver.step()
            driver.restart()
        driver.end()
        for sink in ("out", "windows"):
            assert sorted(driver.output(sink), key=repr) == sorted(expected[sink], key=repr)


def test_records_of_one_only_are_taken_back() -> None:
    flow = ms.Flow("one")
    left, right = (source(flow, name).select("a") for name in ("left", "right"))
    left.difference(right).sink(ms.Memory(), name="out")
    row = {"ts": START, "id": 1, "b": "x", "live": True}
    with Driver(flow) as driver:
        driver.push("left", [row | {"a": 1}, row | {"a": 1}, row | {"a": None}]).step()
        driver.push("right", [row | {"a": 1}, row | {"a": None}]).step()
        driver.push("left", [row | {"a": 1}]).step()
        found = [(one["op"], one["a"]) for one in driver.output("out")]
    assert sorted(found, key=repr) == [("+", 1), ("+", None), ("-", 1), ("-", None)]


def test_columns_are_compared_before_the_start() -> None:
    flow = ms.Flow("wrong")
    left, right = (source(flow, name) for name in ("left", "right"))
    left.select("a", "b").intersect(right.select("a")).sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="only one has: b"):
        Driver(flow)
    flow = ms.Flow("wrong")
    left = source(flow, "left").select("a", "ts")
    right = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, a string"))
    left.difference(right).sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="no rows would be equal"):
        Driver(flow)
    with pytest.raises(ms.ConfigError, match="all=1"):
        left.intersect(right, all=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["long", "double", "decimal(12, 4)"])
def test_numbers_of_two_types_are_equal(kind: str) -> None:
    flow = ms.Flow("numbers")
    left = flow.source(ms.Generator(tuple, schema="a decimal(8, 2)"), name="left")
    right = flow.source(ms.Generator(tuple, schema=f"a {kind}"), name="right")
    left.difference(right).sink(ms.Memory(), name="decimals")
    left.intersect(right).sink(ms.Memory(), name="both")
    make: Any = {"long": int, "double": float}.get(kind, Decimal)
    with Driver(flow) as driver:
        driver.push("left", [{"a": Decimal("2.00")}, {"a": Decimal("2.50")}])
        driver.push("right", [{"a": make("2")}, {"a": make("7")}]).end()
        assert [float(row["a"]) for row in driver.output("decimals")] == [2.5]
        assert [float(row["a"]) for row in driver.output("both")] == [2.0]


def test_large_numbers_are_not_rounded() -> None:
    flow = ms.Flow("large")
    left = flow.source(ms.Generator(tuple, schema="a long"), name="left")
    right = flow.source(ms.Generator(tuple, schema="a double"), name="right")
    left.difference(right).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("left", [{"a": 2**53 + 1}, {"a": 4}]).push("right", [{"a": 4.0}]).end()
        assert [row["a"] for row in driver.output("out")] == [2**53 + 1]


def test_counts_of_changes_begin_with_the_flow(tmp_path: Any) -> None:
    """Of rows that came before it, a step that is added would only see that they go."""

    def program(compares: bool) -> ms.Flow:
        flow = ms.Flow("later")
        left, right = (source(flow, name).changes(key="id") for name in ("left", "right"))
        left.sink(ms.Memory(), name="left rows")
        right.sink(ms.Memory(), name="right rows")
        if compares:
            left.difference(right).sink(ms.Memory(), name="out")
        return flow

    with Driver(program(False), checkpoint=tmp_path) as driver:
        driver.push("left", records(random.Random(1), 3)).step()
        with pytest.raises(ms.MillstreamError, match="is new and works on changes"):
            driver.replace(program(True))
