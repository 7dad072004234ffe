"""The reference of groups, first rows and last minutes, beside the engine after every batch."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver, reference, reference_after
from tests.operators.changing import Row, close, objects, records, source
from tests.variants import variants


def told(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def integrated(rows: list[Row]) -> Counter[str]:
    """What `+`, `u` and `-` come to, if a `u` replaces the row of the same key `g` (and rank)."""
    table: dict[Any, Row] = {}
    for row in rows:
        op = row.pop("op")
        key = (row.get("g"), row.get("nth"))
        table.pop(key, None)
        if op != "-":
            table[key] = row
    return told(list(table.values()))


def check(build: Any, seed: int) -> None:
    rng, flow = random.Random(seed), ms.Flow("tables")
    build(flow).sink(ms.Memory(), name="out")
    batches = [{"in": records(rng, 12)} for _ in range(4)]
    expected = reference_after(flow, batches)
    with Driver(flow) as driver:
        for number, batch in enumerate(batches):
            driver.push("in", batch["in"]).step()
            assert integrated(driver.output("out")) == told(expected[number]["out"]), number
    assert (
        reference(flow, batches=batches)["out"]
        == reference(flow, {"in": [row for batch in batches for row in batch["in"]]})["out"]
    )


@pytest.mark.parametrize("seed", variants([0, 1]))
def test_groups(seed: int) -> None:
    def build(flow: ms.Flow) -> ms.Stream:
        keyed = objects(flow).key_by("g")
        return keyed.agg(n=ms.count(), most=ms.max("v"), s=ms.sum("v"), d=ms.distinct("s"))

    check(build, seed)


def test_the_group_of_everything_is_there_without_rows() -> None:
    flow = ms.Flow("tables")
    objects(flow).key_by().agg(n=ms.count(), s=ms.sum("v")).sink(ms.Memory(), name="out")
    gone = records(random.Random(0), 3)
    for row in gone:
        row["here"] = False
    assert reference(flow, {"in": gone})["out"] == [{"n": 0, "s": None}]


@pytest.mark.parametrize("order", [["v", "id ASC"], ["v ASC NULLS FIRST", "x"], ["h NULLS FIRST"]])
def test_first_rows(order: list[str]) -> None:
    def build(flow: ms.Flow) -> ms.Stream:
        keyed = objects(flow).key_by("g").top(2, by=order, rank="nth")
        return keyed.select("g", "id", "v", "nth")

    check(build, 1)


def test_the_last_minutes() -> None:
    flow = ms.Flow("tables")
    recent = source(flow, lateness="1s").last("5s").key_by("g").agg(n=ms.count(), m=ms.mean("v"))
    recent.sink(ms.Memory(), name="out")
    rng = random.Random(3)
    given = sorted(records(rng, 60), key=lambda row: row["ts"])
    batches = [{"in": given[at : at + 12]} for at in range(0, 60, 12)]
    expected = reference_after(flow, batches)
    with Driver(flow) as driver:
        for number, batch in enumerate(batches):
            driver.push("in", batch["in"]).step()
            assert integrated(driver.output("out")) == told(expected[number]["out"]), number
        driver.end()
        final = reference(flow, {"in": given})["out"]
        assert integrated(driver.output("out")) == told(final)
    assert close(final, final) and final
