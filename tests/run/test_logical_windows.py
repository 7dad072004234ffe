"""Rows and bytes counted over the whole stream, and landmarks over both, against plain Python.

Records are laid out in (ts, source, offset) order; a window is a stretch of that row, and every key
with records in it has a result. DuckDB numbers the same rows with `row_number()`.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.testing import Driver, reference
from tests.variants import variants

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
WINDOWS = {
    "count": ms.count_window(7, over="stream"),
    "count overlapping": ms.count_window(9, 4, over="stream"),
    "count with gaps": ms.count_window(3, 8, over="stream"),
    "bytes": ms.bytes_window(150, 60, over="stream"),
    "landmark of rows": ms.landmark(rows=6),
    "landmark of bytes": ms.landmark(bytes=100),
    "landmark of all rows": ms.landmark(rows=10, over="stream"),
    "landmark of all bytes": ms.landmark(bytes=333, over="stream"),
}


def records(seed: int, count: int = 150) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "ts": BEGIN + timedelta(seconds=i // 2 + rng.randint(0, 4)),  # ties, and out of order
            "k": rng.choice("aaabbc"),
            "v": rng.randint(0, 99),
            "text": "é" * rng.randint(0, 5),
        }
        for i in range(count)
    ]


def flow_over(window: Any, **emit: Any) -> ms.Flow:
    flow = ms.Flow("logical")
    files = ms.Files(
        "nowhere",
        schema="ts timestamp, k string, v bigint, text string",
        time="ts",
        lateness="5s",
        follow=True,
    )
    windowed = flow.source(files, name="in").key_by("k").window(window, **emit)
    aggs = {"n": ms.count(), "total": ms.sum("v"), "high": ms.max("v")}
    windowed.agg(**aggs).sink(ms.Memory(), name="states")
    windowed.agg(all=ms.collect("v"), n=ms.count()).sink(ms.Memory(), name="values")
    windowed.reduce(lambda key, rows, window: {"path": [r["v"] for r in rows]}).sink(
        ms.Memory(), name="reduced"
    )
    return flow


def expected(window: Any, rows: list[dict[str, Any]]) -> Counter[Any]:
    """(key, start, end, values) of all results."""
    out: Counter[Any] = Counter()
    ordered = sorted(rows, key=lambda row: row["ts"])  # stable: ties stay in order of offsets
    groups = [ordered]
    if window.over == "key":
        groups = [[row for row in ordered if row["k"] == key] for key in "abc"]
    for group in groups:
        weights = [1] * len(group)
        if window.kind == "bytes":
            weights = [8 + 1 + 8 + len(row["text"].encode()) for row in group]
        begins = [sum(weights[:i]) for i in range(len(group))]
        for start in range(0, sum(weights), window.logical.slide):
            end = start + window.logical.size
            inside = [r for r, at in zip(group, begins, strict=True) if start <= at < end]
            so_far = [r for r, at in zip(group, begins, strict=True) if at < end]
            for key in {row["k"] for row in inside}:
                held = so_far if window.growing else inside
                first = None if window.growing else inside[0]["ts"]
                values = tuple(row["v"] for row in held if row["k"] == key)
                out[key, first, inside[-1]["ts"] + MICRO, values] += 1
    return out


def drive(
    flow: ms.Flow, rows: list[dict[str, Any]], cut: int, parallelism: int
) -> dict[str, list[dict[str, Any]]]:
    with Driver(flow, parallelism=parallelism) as driver:
        for number, start in enumerate(range(0, len(rows), cut)):
            driver.push("in", rows[start : start + cut]).step()
            if number % 4 == 1:
                driver.restart()
        driver.end()
        return {name: driver.output(name) for name in ("states", "values", "reduced")}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(
    ("cut", "parallelism"),
    variants([(23, 3), (1000, 2), (11, 1)]),
)
def test_results_are_those_of_plain_python(kind: str, cut: int, parallelism: int) -> None:
    window, rows = WINDOWS[kind], records(len(kind) + cut)
    out = drive(flow_over(window), rows, cut, parallelism)
    want = expected(window, rows)
    heads = ("k", "window_start", "window_end")
    for sink, column in (("values", "all"), ("reduced", "path")):
        found = [(*(row[name] for name in heads), tuple(row[column])) for row in out[sink]]
        assert Counter(found) == want, sink
    found = [
        (*(row[name] for name in heads), row["n"], row["total"], row["high"])
        for row in out["states"]
    ]
    assert Counter(found) == Counter(
        (key, start, end, len(v), sum(v), max(v)) for key, start, end, v in want.elements()
    )


@pytest.mark.parametrize("kind", WINDOWS)
def test_the_reference_says_the_same(kind: str) -> None:
    rows = records(5)
    found = reference(flow_over(WINDOWS[kind]), {"in": rows})["values"]
    heads = ("k", "window_start", "window_end")
    assert Counter(
        (*(row[name] for name in heads), tuple(row["all"])) for row in found
    ) == expected(WINDOWS[kind], rows)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(
    "emit",
    variants(
        [
            {"emit": "delta"},
            {"emit": "early", "every_rows": 20},
            {"emit": "early", "every_event": "7s"},
        ]
    ),
    ids=str,
)
def test_early_results_and_changes_come_to_the_same(kind: str, emit: dict[str, Any]) -> None:
    rows = records(3)[:80]
    out = drive(flow_over(WINDOWS[kind], **emit), rows, 16, 2)["values"]
    names = ("k", "window_start", "window_end")
    shown = [(*(row[name] for name in names), tuple(row["all"])) for row in out]
    if emit["emit"] == "early":
        held = Counter(one for one, row in zip(shown, out, strict=True) if row["final"])
        assert any(not row["final"] for row in out)
    else:
        held = Counter()
        for one, row in zip(shown, out, strict=True):
            held[one] += -1 if row["op"] == "-" else 1
            assert row["op"] in "+-" and held[one] >= 0
        held = +held
    assert held == expected(WINDOWS[kind], rows)


def test_duckdb_numbers_rows_the_same_way() -> None:
    rows = records(11)
    given = [(i, row["ts"].timestamp(), row["k"], row["v"]) for i, row in enumerate(rows)]
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t (pos BIGINT, ts DOUBLE, k VARCHAR, v BIGINT)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", given)
        want = db.execute(
            """
            WITH numbered AS (SELECT *, row_number() OVER (ORDER BY ts, pos) - 1 AS nr FROM t)
            SELECT k, w.begins, count(*), sum(v) FROM numbered
            JOIN (SELECT unnest(range(0, 150, 4)) AS begins) w
              ON nr >= w.begins AND nr < w.begins + 9
            GROUP BY ALL
            """
        ).fetchall()
    out = drive(flow_over(WINDOWS["count overlapping"]), rows, 17, 2)["states"]
    found = Counter((row["k"], row["n"], row["total"]) for row in out)
    assert found == Counter((k, n, int(total)) for k, _, n, total in want)


def test_totals_are_kept_not_records() -> None:
    flow = ms.Flow("small")
    source = flow.source(ms.Generator(list, time="ts", lateness="0s"), name="in")
    grown = source.key_by("k").window(ms.landmark(rows=10, over="stream")).agg(n=ms.count())
    grown.named("grown").sink(ms.Memory())
    with Driver(flow) as driver:
        for batch in range(20):
            at = [BEGIN + timedelta(seconds=batch * 10 + i) for i in range(10)]
            driver.push("in", [{"ts": ts, "k": "a"} for ts in at]).step()
        held = sum(len(row.get("held.number") or ()) for row in driver.state("grown"))
        assert held <= 60  # of 200; segments that are replaced are merged by and by
        assert [row["n"] for row in driver.output()] == list(range(10, 200, 10))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ms.count_window(5, over="all"), 'use "key"'),
        (lambda: ms.landmark(), "in one way"),
        (lambda: ms.landmark("1m", rows=5), "in one way"),
        (lambda: ms.landmark("1m", over="stream"), "goes with rows= or bytes="),
        (lambda: ms.landmark(rows=0), "whole number from 1"),
        (lambda: ms.landmark(bytes=1.5), "whole number from 1"),
    ],
)
def test_mistakes_are_explained(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_rows_that_wait_may_have_keys_of_different_types() -> None:
    """What two batches stored is read by a third: lists of numbers, lists of texts."""
    flow = ms.Flow("logical")
    source = ms.Files("x", schema="ts timestamp, v bigint", time="ts", follow=True)
    given = flow.source(source, name="in").map(
        lambda row: {**row, "k": row["v"] if row["v"] < 2 else str(row["v"])}
    )
    counted = given.key_by("k").window(ms.count_window(6, over="stream"))
    counted.agg(n=ms.count()).sink(ms.Memory())
    with Driver(flow) as driver:
        for n, values in enumerate([(0, 1), (2, 3), (0, 2)]):
            at = BEGIN + timedelta(seconds=n)
            driver.push("in", [{"ts": at, "v": v} for v in values]).step()
        driver.end()
        found = {row["k"]: row["n"] for row in driver.output()}
    assert found == {0: 2, 1: 1, "2": 2, "3": 1}
