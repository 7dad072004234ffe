"""Records of objects as changes; the oracle is a dict of the latest record by object."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.variants import variants

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def source(flow: ms.Flow) -> ms.Stream:
    schema = "ts timestamp, id long, price long, place string"
    return flow.source(ms.Generator(tuple, time="ts", lateness="20s", schema=schema), name="in")


def records(rng: random.Random, count: int) -> list[Row]:
    return [
        {
            "ts": START + timedelta(seconds=max(0, i - rng.randrange(15))),
            "id": rng.randrange(6),
            "price": rng.randrange(10),
            "place": rng.choice(["a", "b", None]),
        }
        for i in range(count)
    ]


def integrated(rows: list[Row], key: str) -> dict[Any, Row]:
    """The table that a stream of changes comes to; every change must fit it."""
    table: dict[Any, Row] = {}
    for row in rows:
        op = row["op"]
        assert (row[key] in table) == (op != "+"), row
        if op == "-":
            del table[row[key]]
        else:
            table[row[key]] = {name: value for name, value in row.items() if name != "op"}
    return table


def latest(rows: list[Row]) -> dict[int, Row]:
    """By object the record with the latest time; of equal times the one that came last."""
    found: dict[int, Row] = {}
    for row in rows:
        if row["id"] not in found or row["ts"] >= found[row["id"]]["ts"]:
            found[row["id"]] = row
    return found


@pytest.mark.parametrize("seed", variants(range(8), 2))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_table_after_every_batch(seed: int, parallelism: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    rows = records(rng, 80)
    flow = ms.Flow("objects")
    objects = source(flow).changes(key="id")
    objects.sink(ms.Memory(), name="all")
    objects.where("price > 5").select("id", "price", "ts").sink(ms.Memory(), name="dear")
    objects.distinct("place").sink(ms.Memory(), name="places")
    taken: list[Row] = []
    with Driver(flow, parallelism=parallelism, checkpoint=tmp_path) as driver:
        while len(taken) < len(rows):
            size = rng.randrange(1, 20)
            driver.push("in", rows[len(taken) : len(taken) + size]).step()
            taken = rows[: len(taken) + size]
            if rng.random() < 0.3:
                driver.restart()
            now = latest(taken)
            assert integrated(driver.output("all"), "id") == now
            dear = {
                key: {name: row[name] for name in ("id", "price", "ts")}
                for key, row in now.items()
                if row["price"] > 5
            }
            assert integrated(driver.output("dear"), "id") == dear
            places = integrated(driver.output("places"), "place")
            assert set(places) == {row["place"] for row in now.values()}


def test_marks_of_one_object() -> None:
    flow = ms.Flow("marks")
    source(flow).changes(key="id").where("price > 5").select("id", "price").sink(
        ms.Memory(), name="out"
    )
    with Driver(flow) as driver:
        for second, price in enumerate([3, 6, 8, 2, 1, 9]):
            at = START + timedelta(seconds=second)
            driver.push("in", [{"ts": at, "id": 1, "price": price, "place": "a"}]).step()
        found = [(row["op"], row["price"]) for row in driver.output("out")]
    assert found == [("+", 6), ("u", 8), ("-", 8), ("+", 9)]


def test_a_record_without_an_object_is_a_dead_letter() -> None:
    flow = ms.Flow("nobody")
    source(flow).changes(key="id").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("in", [{"ts": START, "id": None, "price": 1, "place": "a"}]).step()
        assert driver.output("out") == []
        assert [letter["operator"] for letter in driver.dead] == ["changes"]


def test_changes_of_changes_are_refused() -> None:
    flow = ms.Flow("twice")
    source(flow).changes(key="id").changes(key="id").sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="changes already"):
        Driver(flow)


@pytest.mark.parametrize("key", ["", [], ["a", "a"], [3]])
def test_the_key_is_checked(key: Any) -> None:
    with pytest.raises(ms.ConfigError, match="changes"):
        source(ms.Flow("wrong")).changes(key=key)
