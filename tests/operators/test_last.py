"""Rows of the last so long: what is there follows from their times and how far time has come."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.operators.changing import START, Row, Table, present, records, source
from tests.operators.test_grouped import drive
from tests.variants import variants

SIZE, LATENESS = timedelta(seconds=7), timedelta(seconds=5)


def recent(rows: list[Row], taken: list[Row], late: timedelta = LATENESS) -> list[Row]:
    """Those that are no older than so long, at the time that all of the input has passed."""
    now: datetime = max(row["ts"] for row in taken) - late
    return sorted((row for row in rows if row["ts"] + SIZE > now), key=lambda row: row["ts"])


@pytest.mark.parametrize("seed", variants(range(4)))
def test_records_of_the_last_seconds(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    rows = records(rng, 60)
    flow = ms.Flow("recent")
    last = source(flow, lateness="5s").last("7s")
    last.sink(ms.Memory(), name="out")
    last.key_by("g").agg(n=ms.count(), most=ms.max("v")).sink(ms.Memory(), name="counts")
    table, counts = Table("ts"), Table("g")
    for driver, taken in drive(flow, rows, rng, 1 + seed % 3, tmp_path):
        there = recent(taken, taken)
        found = sorted(table.read(driver.output("out")), key=lambda row: row["ts"])
        assert found == there
        groups = {row["g"]: [one["v"] for one in there if one["g"] == row["g"]] for row in there}
        expected = {
            g: (len(values), max((v for v in values if v is not None), default=None))
            for g, values in groups.items()
        }
        rows_now = counts.read(driver.output("counts"))
        assert {row["g"]: (row["n"], row["most"]) for row in rows_now} == expected


def test_at_the_end_the_latest_record_says_what_time_it_is(tmp_path: Any) -> None:
    rows = records(random.Random(7), 60)
    flow = ms.Flow("end")
    source(flow, lateness="5s").last("7s").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path) as driver:
        driver.push("in", rows[:30]).step()
        driver.push("in", rows[30:]).end()
        found = Table("ts").read(driver.output("out"))
    assert sorted(found, key=lambda row: row["ts"]) == recent(rows, rows, timedelta(0))


@pytest.mark.parametrize("seed", variants(range(6), 2))
def test_rows_that_are_taken_back_before_they_are_too_old(seed: int, tmp_path: Any) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("changing")
    objects = source(flow, lateness="5s").changes(key="id").where("here")
    objects.last("7s").sink(ms.Memory(), name="out")
    table = Table("id")
    for driver, taken in drive(flow, records(rng, 80), rng, 1 + seed % 3, tmp_path):
        found = sorted(table.read(driver.output("out")), key=lambda row: row["ts"])
        assert found == recent(present(taken), taken)


def test_time_alone_takes_rows_back(tmp_path: Any) -> None:
    """With times of arrival nothing needs to come."""
    flow = ms.Flow("arrival")
    source = flow.source(ms.Generator(tuple, schema="id long"), name="in")
    source.last("5s").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path, now=1_700_000_000.0) as driver:
        driver.push("in", [{"id": 1}]).step()
        driver.advance("3s").push("in", [{"id": 2}]).step()
        driver.advance("3s")
        while driver.step():
            pass
        driver.restart()
        driver.advance("9s")
        while driver.step():
            pass
        found = [(row["op"], row["id"]) for row in driver.output("out")]
    assert found == [("+", 1), ("+", 2), ("-", 1), ("-", 2)]


def test_what_comes_too_late_is_set_aside(tmp_path: Any) -> None:
    flow = ms.Flow("late")
    last = source(flow, "ts timestamp, id long", lateness="5s").last("7s")
    last.sink(ms.Memory(), name="out")
    last.late().sink(ms.Memory(), name="late")
    with Driver(flow, checkpoint=tmp_path) as driver:
        for second in (60, 1, 52):  # the watermark is at 55: 52 is late, and of the last seconds
            driver.push("in", [{"ts": START + timedelta(seconds=second), "id": second}]).step()
        assert [row["id"] for row in driver.output("out")] == [60, 52]
        assert [row["id"] for row in driver.output("late")] == [1]


def test_rows_that_were_taken_back_are_not_stored_for_long(tmp_path: Any) -> None:
    flow = ms.Flow("stored")
    objects = source(flow, "ts timestamp, id long", lateness="5s").changes(key="id")
    objects.last("1d").sink(ms.Memory(), name="out")
    with Driver(flow, checkpoint=tmp_path, shards=1) as driver:
        for second in range(60):
            row = {"ts": START + timedelta(seconds=second), "id": 1}
            driver.push("in", [row]).step()
        segments = driver.engine.manifest.segments["last"]["waiting"]["0"]
        assert sum(one.rows for one in segments) < 20
