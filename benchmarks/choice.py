"""Claim: a family keeps panes or single values, whichever is faster at the rate values come.

The same number of records in windows of 10 minutes every minute: sparse (20,000 keys, a value of
each every 5 minutes), in bursts (a key has 10 values within a second every 50 minutes), and dense
(200 keys, 3 values a second each). Each runs as a backlog with panes, with single values, and with
the choice left to the engine; with built-in aggregates and with a user's own. Batches are driven by
`millstream.testing.Driver`, in this process and without Spark; what counts is its processor time.
All results are compared with DuckDB's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.common import goal, markdown, module, side

STREAMS = ("sparse", "bursts", "dense")
WAYS = ("panes", "values", "chosen")
KINDS = ("built-in", "own")
SIZE, SLIDE = 600, 60
START = 1_700_000_000
ROUNDS = 3
LIMIT = 400.0
SLOWER = 1.1  # the most the chosen way may take beside the better of the two


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every stream in every way, each in a process of its own, the best of some rounds."""
    records, rounds = (60_000, 1) if quick else (300_000, ROUNDS)
    figures: dict[str, Any] = {"records": records, "agree": True}
    for kind in KINDS:
        for stream in STREAMS:
            found: dict[str, Any] = {}
            for _ in range(rounds):
                for way in WAYS:
                    one = side(module("choice", kind, stream, way, records), LIMIT)
                    figures["agree"] &= one["agree"]
                    if way not in found or one["spent"] < found[way]["spent"]:
                        found[way] = one
            figures[f"{kind}, {stream}"] = found
            spent = ", ".join(f"{way} {found[way]['spent']:.2f} s" for way in WAYS)
            print(f"  {kind}, {stream}: {spent}; chosen: {found['chosen']['kept']}", flush=True)
    figures["goals"] = [_goal(name, one) for name, one in figures.items() if "," in name]
    return figures


def _goal(name: str, found: dict[str, Any]) -> Any:
    better = min(found["panes"]["spent"], found["values"]["spent"])
    seen = round(found["chosen"]["spent"] / better, 3)
    return goal(
        f"{name}: the chosen way beside the better of both",
        f"at most {SLOWER} times",
        seen,
        seen <= SLOWER,
    )


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for name, found in figures.items():
        if "," in name:
            chosen = found["chosen"]
            spent = [found[way]["spent"] for way in WAYS]
            rows.append([name, f"{chosen['rate']:.4f}", chosen["per_pane"], *spent, chosen["kept"]])
    head = ["aggregates, stream", "values per s and key", "per pane", *(f"{w}, s" for w in WAYS)]
    return markdown([*head, "kept in the end"], rows)


def records_of(stream: str, count: int) -> pa.Table:
    """Seeded records in the order of time."""
    rng = np.random.default_rng(7)
    at = np.arange(count)
    if stream == "dense":
        key, ms = at % 200, at * 1000 // 600
    elif stream == "sparse":
        key, ms = rng.permutation(20_000)[at % 20_000], at * 300_000 // 20_000
    else:
        burst = at // 10
        key, ms = rng.permutation(20_000)[burst % 20_000], burst * 300_000 // 2_000 + at % 10 * 60
    order = np.argsort(ms, kind="stable")
    ts = (START * 1000 + ms[order]).astype(np.int64)
    value = rng.integers(0, 1_000_000, count)
    return pa.table({"ts": ts, "key": key[order], "value": value})


def measure(kind: str, stream: str, way: str, count: int) -> dict[str, Any]:
    """Push all records in batches of 20,000, and time the engine."""
    import millstream as ms
    from millstream.operators.windows import family
    from millstream.testing import Driver

    class Highest(ms.Aggregate):
        def zero(self) -> int:
            return 0

        def add(self, state: int, value: int) -> int:
            return max(state, value)

        def combine(self, left: int, right: int) -> int:
            return max(left, right)

    rows = records_of(stream, count)
    flow = ms.Flow("choice")
    source = ms.Files("unused", time="ts", time_unit="ms", lateness="0s")
    aggs = (
        {"high": ms.max("value"), "total": ms.sum("value")}
        if kind == "built-in"
        else {"high": Highest("value")}
    )
    (
        flow.source(source, name="readings")
        .key_by("key")
        .window(ms.sliding(f"{SIZE}s", f"{SLIDE}s"))
        .agg(**aggs)
        .sink(ms.Memory(), name="results")
    )
    forced = contextlib.nullcontext()
    if way != "chosen":
        every = way == "values"
        forced = patch.object(  # type: ignore[assignment]
            family, "single_values", lambda *_: every
        )
    spent = 0.0
    with Driver(flow) as driver, forced:
        for start in range(0, count, 20_000):
            driver.push("readings", rows.slice(start, 20_000).to_pylist())
            begun = time.process_time()
            driver.step()
            spent += time.process_time() - begun
        (rate,) = driver.engine.manifest.rates.values()
        begun = time.process_time()
        driver.end()
        spent += time.process_time() - begun
        given = pa.concat_tables(driver._sinks["results"].tables)
    return {
        "spent": round(spent, 3),
        "kept": rate["kept"],
        "rate": round(rate["values"] / rate["keys"], 5),
        "per_pane": round(rate["values"] / rate["panes"], 2),
        "results": len(given),
        "agree": agrees(rows, given),
    }


def agrees(rows: pa.Table, given: pa.Table) -> bool:
    """Whether the results are those of DuckDB, all of them."""
    con = duckdb.connect()
    con.register("rows", rows)
    con.register("given", given)
    con.sql("set timezone = 'UTC'")
    con.sql(
        f"""create table truth as with panes as (
            select key, ts // {SLIDE * 1000} pane, max(value) high, sum(value) total
            from rows group by all)
        select key, pane + 1 + ahead as until, max(high) high, sum(total) total
        from panes, range({SIZE // SLIDE}) as aheads(ahead) group by all"""
    )
    total = " and t.total = g.total" if "total" in given.column_names else ""
    equal, all_given, all_true = con.execute(
        f"""select (select count(*) from truth t join given g
                    on t.key = g.key and t.until * {SLIDE} = epoch(g.window_end)
                    and t.high = g.high{total}),
                   (select count(*) from given), (select count(*) from truth)"""
    ).fetchall()[0]
    return bool(equal == all_given == all_true)


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:4], int(sys.argv[4]))))
