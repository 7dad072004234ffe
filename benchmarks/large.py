"""Claim: twenty million trades in sliding windows take at most 1.8 times as long as in DuckDB.

Windows of 60 s that slide by 1 s, over all trades at once with default settings, whole processes,
start-up included. DuckDB gets two threads and the quickest way we know to ask it: it sums the
trades of every second first, and then the seconds of every window. Both write Parquet. The answers
are compared before any time is looked at.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import trades
from benchmarks.common import CLOSE, goal, markdown, module, side, workspace

SIZE = 60
THREADS = 2
_LIMIT = 900.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both sides and print the ratio."""
    count, seconds, files = (400_000, 240, 4) if quick else (20_000_000, 12_000, 80)
    with workspace("large") as work:
        data = trades.make(work / "in", count, seconds, files)
        sides = {
            name: side(module("large", name, data, work / name), _LIMIT)
            for name in ("duckdb", "millstream")
        }
        agree = _compare(work)
    for name, one in sides.items():
        print(f"{name:10s} {one['seconds']:7.2f} s", flush=True)
    ratio = round(sides["millstream"]["seconds"] / sides["duckdb"]["seconds"], 2)
    print(f"answers agree: {agree['agree']} ({agree['rows']:,} rows)")
    met = goal("beside DuckDB", "at most 1.8 times as long", ratio, ratio <= 1.8)
    return {"trades": count, **sides, **agree, "ratio": ratio, "goals": [met]}


def _compare(work: Path) -> dict[str, Any]:
    con = duckdb.connect()
    rows, given, equal = (
        int(con.execute(query).fetchall()[0][0])
        for query in (
            f"select count(*) from '{work}/duckdb/*.parquet'",
            f"select count(*) from '{work}/millstream/*.parquet'",
            f"""select count(*) from '{work}/duckdb/*.parquet' d
                join (select epoch_us(window_start) st, symbol, s, n
                      from '{work}/millstream/*.parquet') m using (st, symbol)
                where d.n = m.n and abs(d.s - m.s) <= {CLOSE} * abs(d.s)""",
        )
    )
    return {"rows": given, "agree": rows == given == equal}


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    return markdown(
        [f"{figures['trades']:,} trades", "millstream, s", "DuckDB, s", "times as long", "goal"],
        [
            [
                "whole run",
                figures["millstream"]["seconds"],
                figures["duckdb"]["seconds"],
                figures["ratio"],
                1.8,
            ]
        ],
    )


def millstream_side(data: Path, out: Path) -> dict[str, Any]:
    """The flow under test."""
    import millstream as ms

    batches: dict[int, float] = {}
    flow = ms.Flow("large")
    (
        flow.source(ms.Files(data, time="ts", lateness="1s"), name="trades")
        .key_by("symbol")
        .window(ms.sliding(f"{SIZE}s", "1s"))
        .agg(s=ms.sum("price"), n=ms.count())
        .sink(ms.Parquet(out))
    )
    flow.run(
        checkpoint=Path(f"{out}-checkpoint"),
        on_progress=lambda p: batches.update({p.batch: round(p.batch_seconds, 3)}),
    )
    return {"batches": list(batches.values())}


def duckdb_side(data: Path, out: Path) -> dict[str, Any]:
    """The peer."""
    out.mkdir()
    started = time.perf_counter()
    con = duckdb.connect()
    con.sql(f"set threads = {THREADS}")
    con.sql("set preserve_insertion_order = false")
    con.sql(
        f"""copy (
            with seconds as (
                select epoch_us(ts) // 1000000 slot, symbol, sum(price) s, count(*) n
                from '{data}/*.parquet' group by all)
            select (slot - back) * 1000000 st, symbol, sum(s) s, sum(n)::bigint n
            from seconds, range({SIZE}) as backs(back) group by all
        ) to '{out}/answer.parquet'"""
    )
    return {"query": round(time.perf_counter() - started, 2)}


if __name__ == "__main__":
    name, given, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print(json.dumps((millstream_side if name == "millstream" else duckdb_side)(given, place)))
