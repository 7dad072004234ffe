"""The first rows of groups that rows come to and go from; the oracle sorts what is there."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.operators.changing import (
    START,
    Bag,
    Row,
    Table,
    as_text,
    objects,
    present,
    records,
    source,
)
from tests.operators.test_grouped import drive
from tests.variants import variants


def first(rows: list[Row], most: int, key: Any) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["g"], []).append(row)
    return [row for mine in groups.values() for row in sorted(mine, key=key)[:most]]


def by_v(row: Row) -> Any:
    """The largest first, nulls last; times differ."""
    return (row["v"] is None, -(row["v"] or 0), row["ts"])


@pytest.mark.parametrize("seed", variants(range(6), 2))
def test_the_first_of_every_group_after_every_batch(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("top")
    objects(flow).key_by("g").top(2, by="v").sink(ms.Memory(), name="out")
    table = Table("id")
    for driver, taken in drive(flow, records(rng, 80), rng, 1 + seed % 3, tmp_path):
        found = sorted(table.read(driver.output("out")), key=lambda row: row["id"])
        expected = first(present(taken), 2, by_v)
        assert found == sorted(expected, key=lambda row: row["id"])


@pytest.mark.parametrize("seed", variants(range(3)))
def test_rows_with_their_number(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("rank")
    keyed = objects(flow).key_by()
    ranked = keyed.top(3, by="s NULLS FIRST", rank="nth").select("nth", "id")
    ranked.sink(ms.Memory(), name="out")
    table = Table("nth")
    for driver, taken in drive(flow, records(rng, 60), rng, 2, tmp_path):
        order = sorted(present(taken), key=lambda row: row["ts"])
        order = sorted(order, key=lambda row: row["s"] or "z", reverse=True)  # stable
        expected = {nth: row["id"] for nth, row in enumerate(order[:3], 1)}
        assert {row["nth"]: row["id"] for row in table.read(driver.output("out"))} == expected


def test_of_records_that_nothing_takes_back(tmp_path: Any) -> None:
    rng = random.Random(5)
    flow = ms.Flow("records")
    source(flow).key_by("g").top(3, by=["v ASC", "ts ASC"]).sink(ms.Memory(), name="out")
    table = Table("ts")

    def smallest(row: Row) -> Any:
        return (row["v"] is None, row["v"], row["ts"])

    for driver, taken in drive(flow, records(rng, 60), rng, 3, tmp_path):
        found = sorted(table.read(driver.output("out")), key=lambda row: row["ts"])
        assert found == sorted(first(taken, 3, smallest), key=lambda row: row["ts"])


def test_windows_over_the_first_rows(tmp_path: Any) -> None:
    """A row that leaves and comes back counts, as often as that happens."""
    flow = ms.Flow("again")
    stream = source(flow, "ts timestamp, id long, v long").changes(key="id")
    best = stream.key_by().top(1, by="v")
    best.key_by().window(ms.tumbling("1d"), emit="delta").agg(v=ms.sum("v")).sink(
        ms.Memory(), name="out"
    )
    with Driver(flow, checkpoint=tmp_path) as driver:
        for nth, (number, value) in enumerate([(1, 5), (2, 7), (2, 3), (3, 9), (3, 1)]):
            row = {"ts": START.replace(second=nth), "id": number, "v": value}
            driver.push("in", [row]).step()
        driver.end()
        assert driver.output("out")[-1]["v"] == 5


def test_equal_rows_count_as_often_as_they_are_there() -> None:
    flow = ms.Flow("equal")
    rows = source(flow, "ts timestamp, v long").select("v")
    rows.key_by().top(2, by="v").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for value in (1, 2, 2, 2):
            driver.push("in", [{"ts": START, "v": value}]).step()
        assert [(row["op"], row["v"]) for row in driver.output("out")] == [
            ("+", 1),
            ("+", 2),
            ("-", 1),
            ("+", 2),
        ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0, "by": "v"}, "whole number"),
        ({"n": 1, "by": []}, "a column, or several"),
        ({"n": 1, "by": ["v", "v ASC"]}, "each once"),
        ({"n": 1, "by": 3}, "expected"),
        ({"n": 1, "by": "v", "rank": ""}, "name of a column"),
        ({"n": 1, "by": "v", "rank": "g"}, "a column 'g' of their own"),
        ({"n": 1, "by": "v", "rank": "v"}, "a column 'v' of their own"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    number = arguments.pop("n")
    with pytest.raises(ms.ConfigError, match=words):
        objects(ms.Flow("wrong")).key_by("g").top(number, **arguments)


def test_a_column_that_is_not_there() -> None:
    flow = ms.Flow("columns")
    objects(flow).key_by("g").top(1, by="w").sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="by: there is no column 'w'"):
        Driver(flow)


def test_a_number_overwrites_no_column() -> None:
    flow = ms.Flow("taken")
    objects(flow).key_by("g").top(1, by="v", rank="s").sink(ms.Memory(), name="out")
    with pytest.raises(ms.ConfigError, match="top: rank='s': rows have a column 's'"):
        Driver(flow)


def test_a_number_overwrites_no_column_of_rows_that_functions_make() -> None:
    flow = ms.Flow("made")
    made = source(flow, "ts timestamp, v long").map(lambda row: {"v": row["v"], "nth": 9})
    made.key_by().top(1, by="v", rank="nth").sink(ms.Memory(), name="out")
    with Driver(flow) as driver, pytest.raises(ms.MillstreamError, match="a column 'nth' of"):
        driver.push("in", [{"ts": START, "v": 1}]).step()


@pytest.mark.parametrize("seed", variants(range(3)))
def test_records_with_their_number(seed: int, tmp_path: Any) -> None:
    """A row that comes between others moves those behind it, and the last of them out."""
    rng = random.Random(seed)
    flow = ms.Flow("places")
    ranked = source(flow).key_by("g").top(3, by="v", rank="nth").select("g", "nth", "id", "v")
    ranked.sink(ms.Memory(), name="out")
    bag = Bag()
    for driver, taken in drive(flow, records(rng, 60), rng, 1 + seed, tmp_path):
        expected = []
        for g in "abc":
            mine = first([row for row in taken if row["g"] == g], 3, by_v)
            places = enumerate(mine, 1)
            expected += [{"g": g, "nth": n, "id": row["id"], "v": row["v"]} for n, row in places]
        assert bag.read(driver.output("out")) == Counter(map(as_text, expected))


def test_of_records_nothing_is_kept_but_the_first(tmp_path: Any) -> None:
    flow = ms.Flow("kept")
    source(flow).key_by("g").top(2, by="v").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path, shards=1) as driver:
        for row in records(random.Random(1), 60):
            driver.push("in", [row | {"g": "a"}]).step()
        stored = driver.engine.manifest.segments["top"]
        assert set(stored) == {"given"}
        assert sum(one.rows for shards in stored["given"].values() for one in shards) < 30


def test_rows_that_begin_to_be_taken_back_are_another_program(tmp_path: Any) -> None:
    """What was pushed out is not there to return."""
    for number, made in enumerate((source, objects)):
        flow = ms.Flow("now")
        made(flow).key_by("g").top(2, by="v").sink(ms.Memory(), name="out")
        if number == 0:
            with Driver(flow, checkpoint=tmp_path) as driver:
                driver.push("in", records(random.Random(1), 9)).step()
        else:
            with pytest.raises(ms.CheckpointError, match="top"):
                Driver(flow, checkpoint=tmp_path)
