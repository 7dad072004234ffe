"""The engine gives what a database gives for the same windows, ties in time included."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import millstream as ms
from millstream.testing import Driver
from tests.differential.comparing import assert_same

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS = timedelta(microseconds=1)

# A window starts at a multiple of the slide; a record is in all that start in (ts - size, ts].
QUERY = """
WITH bounds AS (
    SELECT *,
           ts - ((ts % $slide) + $slide) % $slide AS high,
           ts - $size - (((ts - $size) % $slide) + $slide) % $slide + $slide AS low
    FROM records
), placed AS (
    SELECT *, unnest(generate_series(low, high, $slide)) AS start FROM bounds WHERE low <= high
)
SELECT k, start, start + $size AS "end",
       count(*) AS n, count(x) AS nx, sum(v) AS total, sum(x) AS sx, avg(x) AS mean,
       var_samp(x) AS var, stddev_samp(x) AS std, min(x) AS lo, max(s) AS hi,
       first(v ORDER BY ts, pos) AS head, last(v ORDER BY ts, pos) AS tail,
       list(s ORDER BY ts, pos) AS "all"
FROM placed GROUP BY k, start
"""
AGGREGATES = {
    "n": ms.count(),
    "nx": ms.count("x"),
    "total": ms.sum("v"),
    "sx": ms.sum("x"),
    "mean": ms.mean("x"),
    "var": ms.var("x"),
    "std": ms.std("x"),
    "lo": ms.min("x"),
    "hi": ms.max("s"),
    "head": ms.first("v"),
    "tail": ms.last("v"),
    "all": ms.collect("s"),
}


def make_records(seed: int, count: int) -> list[dict[str, Any]]:
    """Many records at the same moments, around the epoch."""
    chance = random.Random(seed)
    return [
        {
            "ts": chance.choice([-1, 0, 1]) + chance.randint(-30, 30) * 500_000,
            "k": chance.choice(["a", "ä", "", "b"]),
            "v": chance.choice([None, chance.randint(-9, 9), chance.randint(-9, 9)]),
            "x": chance.choice([None, chance.uniform(-100, 100), chance.uniform(-100, 100)]),
            "s": chance.choice([None, "x", "yy", "日本"]),
        }
        for _ in range(count)
    ]


def by_duckdb(records: list[dict[str, Any]], size: int, slide: int) -> list[dict[str, Any]]:
    table = pa.Table.from_pylist(records).append_column("pos", pa.array(range(len(records))))
    with duckdb.connect() as connection:
        connection.register("records", table)
        found = connection.execute(QUERY, {"size": size, "slide": slide})
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for row in rows:
        row["window_start"] = EPOCH + row.pop("start") * MICROS
        row["window_end"] = EPOCH + row.pop("end") * MICROS
        row["total"] = None if row["total"] is None else int(row["total"])
    return rows


def by_engine(
    records: list[dict[str, Any]], size: int, slide: int, parallelism: int
) -> list[dict[str, Any]]:
    flow = ms.Flow("windows")
    source = flow.source(ms.Generator(tuple, time="ts", lateness="1h"), name="in")
    window = ms.hopping(size * MICROS, slide * MICROS)
    source.key_by("k").window(window).agg(**AGGREGATES).sink(ms.Memory(), name="out")
    placed = [{**record, "ts": EPOCH + record["ts"] * MICROS} for record in records]
    third = max(1, len(placed) // 3)
    with Driver(flow, parallelism=parallelism, dead_letter_limit=1) as driver:
        for start in range(0, len(placed), third):
            piece = placed[start : start + third]
            driver.push("in", piece[: len(piece) // 2]).push("in", piece[len(piece) // 2 :])
            driver.step()
        driver.end()
        return driver.output()


def check(seed: int, count: int, size: int, slide: int, parallelism: int) -> None:
    records = make_records(seed, count)
    found = by_engine(records, size, slide, parallelism)
    assert_same(found, by_duckdb(records, size, slide), scale=1e4)


@pytest.mark.parametrize(
    ("size", "slide"),
    [
        (10_000_000, 10_000_000),
        (10_000_000, 3_000_000),
        (7_500_000, 2_000_000),
        (3_000_000, 7_000_000),
        (1_000_000, 750_000),
        (60_000_000, 5_000_000),
    ],
)
def test_windows_are_those_of_a_database(size: int, slide: int) -> None:
    check(1, 200, size, slide, parallelism=2)


@pytest.mark.long
def test_many_windows_are_those_of_a_database() -> None:
    chance = random.Random(2)
    for seed in range(150):
        size, slide = (chance.randint(1, 40) * 500_000 for _ in range(2))
        check(seed, chance.randint(1, 300), size, slide, chance.choice([1, 2, 4]))
