"""Sessions, landmarks and windows over rows are those of a database, however input is cut."""

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

Rows = list[dict[str, Any]]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS = timedelta(microseconds=1)
LATENESS = 5_000_000

FIGURES = """
       count(*) AS n, count(x) AS nx, sum(v) AS total, avg(x) AS mean, min(x) AS lo, max(s) AS hi,
       first(v ORDER BY ts, pos) AS head, last(v ORDER BY ts, pos) AS tail,
       list(s ORDER BY ts, pos) AS "all"
"""
# A record begins a session if the one before it is a gap away; sessions are numbered by beginnings.
SESSIONS = f"""
WITH marked AS (
    SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts, pos) < $gap
                   THEN 0 ELSE 1 END AS begins
    FROM records
), islands AS (
    SELECT *, sum(begins) OVER (PARTITION BY k ORDER BY ts, pos) AS island FROM marked
)
SELECT k, min(ts) AS start, max(ts) + $gap AS "end", {FIGURES} FROM islands GROUP BY k, island
"""
LANDMARKS = """
WITH placed AS (
    SELECT *, ts - ((ts % $slide) + $slide) % $slide + $slide AS "end" FROM records
), slides AS (
    SELECT k, "end", count(*) AS n, count(x) AS nx, sum(v) AS total, sum(x) AS sx, min(x) AS lo,
           max(s) AS hi
    FROM placed GROUP BY k, "end"
)
SELECT k, NULL AS start, "end",
       sum(n) OVER w AS n, sum(nx) OVER w AS nx, sum(total) OVER w AS total,
       sum(sx) OVER w / nullif(sum(nx) OVER w, 0) AS mean,
       min(lo) OVER w AS lo, max(hi) OVER w AS hi
FROM slides WINDOW w AS (PARTITION BY k ORDER BY "end")
"""
COUNTS = f"""
WITH numbered AS (
    SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts, pos) - 1 AS number FROM records
), bounds AS (
    SELECT *, number - number % $slide AS high,
           CASE WHEN number < $size THEN 0 ELSE ((number - $size) // $slide + 1) * $slide END AS low
    FROM numbered
), placed AS (
    SELECT *, unnest(generate_series(low, high, $slide)) AS first FROM bounds WHERE low <= high
)
SELECT k, min(ts) AS start, max(ts) + 1 AS "end", {FIGURES} FROM placed GROUP BY k, first
"""
AGGREGATES: dict[str, Any] = {
    "n": ms.count(),
    "nx": ms.count("x"),
    "total": ms.sum("v"),
    "mean": ms.mean("x"),
    "lo": ms.min("x"),
    "hi": ms.max("s"),
}
IN_ORDER: dict[str, Any] = {"head": ms.first("v"), "tail": ms.last("v"), "all": ms.collect("s")}


def make_records(seed: int, count: int) -> Rows:
    """Ties in time, distances of exactly a gap, across the epoch; out of order by the lateness."""
    chance = random.Random(seed)
    rows, at = [], -count * 500_000
    for _ in range(count):
        at += chance.choice([0, 0, 500_000, 1_000_000, 1_999_999, 2_000_000, 2_000_001, 6_000_000])
        rows.append(
            {
                "ts": at,
                "k": chance.choice(["a", "ä", "", "b"]),
                "v": chance.choice([None, chance.randint(-9, 9), chance.randint(-9, 9)]),
                "x": chance.choice([None, chance.uniform(-100, 100), chance.uniform(-100, 100)]),
                "s": chance.choice([None, "x", "yy", "日本"]),
            }
        )
    arrives = [row["ts"] + chance.randint(0, LATENESS) for row in rows]
    return [rows[index] for index in sorted(range(count), key=arrives.__getitem__)]


def by_duckdb(records: Rows, query: str, **numbers: int) -> Rows:
    table = pa.Table.from_pylist(records).append_column("pos", pa.array(range(len(records))))
    with duckdb.connect() as connection:
        connection.register("records", table)
        found = connection.execute(query, numbers)
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for row in rows:
        start, end = row.pop("start"), row.pop("end")
        row["window_start"] = None if start is None else EPOCH + start * MICROS
        row["window_end"] = EPOCH + end * MICROS
        for name in ("n", "nx", "total"):
            row[name] = None if row[name] is None else int(row[name])
    return rows


def by_engine(records: Rows, window: Any, aggs: dict[str, Any], seed: int) -> Rows:
    """Through batches of any size, with restarts."""
    chance = random.Random(seed)
    flow = ms.Flow("kinds")
    source = ms.Generator(tuple, time="ts", lateness=LATENESS * MICROS)
    keyed = flow.source(source, name="in").key_by("k")
    keyed.window(window).agg(**aggs).sink(ms.Memory(), name="out")
    rest = [{**record, "ts": EPOCH + record["ts"] * MICROS} for record in records]
    with Driver(flow, parallelism=chance.choice([1, 2, 4]), dead_letter_limit=1) as driver:
        while rest:
            size = chance.choice([1, 7, 40, 100])
            driver.push("in", rest[:size]).step()
            rest = rest[size:]
            if chance.random() < 0.2:
                driver.restart()
        driver.end()
        return driver.output()


def check(kind: str, seed: int, count: int, *numbers: int) -> None:
    records = make_records(seed, count)
    if kind == "session":
        wanted = by_duckdb(records, SESSIONS, gap=numbers[0])
        window, aggs = ms.session(numbers[0] * MICROS), AGGREGATES | IN_ORDER
    elif kind == "landmark":
        wanted = by_duckdb(records, LANDMARKS, slide=numbers[0])
        window, aggs = ms.landmark(numbers[0] * MICROS), AGGREGATES
    else:
        wanted = by_duckdb(records, COUNTS, size=numbers[0], slide=numbers[1])
        window, aggs = ms.count_window(*numbers), AGGREGATES | IN_ORDER
    assert_same(by_engine(records, window, aggs, seed), wanted, scale=1e4, what=kind)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("session", (2_000_000,)),
        ("session", (6_000_000,)),
        ("session", (1,)),
        ("landmark", (10_000_000,)),
        ("landmark", (1_500_000,)),
        ("count", (5, 5)),
        ("count", (10, 3)),
        ("count", (3, 7)),
        ("count", (6, 4)),
    ],
    ids=str,
)
def test_windows_are_those_of_a_database(kind: str, numbers: tuple[int, ...]) -> None:
    check(kind, 1, 200, *numbers)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_windows_are_those_of_a_database() -> None:
    chance = random.Random(3)
    for seed in range(100):
        count = chance.randint(1, 300)
        check("session", seed, count, chance.choice([1, 1_999_999, 2_000_000, 2_000_001, 9**7]))
        check("landmark", seed, count, chance.randint(1, 40) * 500_000)
        check("count", seed, count, chance.randint(1, 20), chance.randint(1, 20))
