"""Claim: a change to a three-way join costs what changed, not what is stored.

Orders, customers and regions, each kept up to date by its key; the revenue of every region HAVING
more than a bound. After all of it is stored, batches of 1,000 changed orders follow. Measured with
50,000 and with 5,000,000 orders, and beside it Spark SQL and DuckDB computing the same answer anew
from the same files, in sessions that are warm. Before any time is looked at, the changes that were
given are added up and compared with DuckDB's answer, for all sides.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import goal, markdown, module, side, workspace

REGIONS, CHANGES, BATCHES, PER_FILE = 1_000, 1_000, 12, 250_000
START = 1_700_000_000_000_000
_LIMIT = 1800.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both sizes and both peers, and print the ratios."""
    few, many = (5_000, 100_000) if quick else (50_000, 5_000_000)
    with workspace("changes") as work:
        sides: dict[str, Any] = {}
        for name, orders in (("few", few), ("many", many)):
            data = make(work / name, orders)
            sides[name] = side(module("changes", "millstream", data), _LIMIT)
        for peer in ("spark", "duckdb"):
            sides[peer] = side(module("changes", peer, work / "many"), _LIMIT)
        agree = {name: _agrees(work / name) for name in ("few", "many")}
        agree["spark"] = sides["spark"]["answer"] == sides["duckdb"]["answer"]
    steady = {name: sides[name]["steady"] for name in ("few", "many")}
    peers = {name: sides[name]["again"] for name in ("spark", "duckdb")}
    print(f"answers agree: {agree}")
    for name, orders in (("few", few), ("many", many)):
        print(f"1,000 changes over {orders:,}: {steady[name]:.3f} s")
    print(f"anew over {many:,}: Spark SQL {peers['spark']:.2f} s, DuckDB {peers['duckdb']:.2f} s")
    growth = round(steady["many"] / steady["few"], 2)
    faster = round(peers["spark"] / steady["many"], 1)
    goals = [
        goal(f"over {many:,} beside {few:,}", "at most 2 times", growth, growth <= 2),
        goal("beside Spark SQL anew", "at least 20 times as fast", faster, faster >= 20),
    ]
    return {
        "orders": [few, many],
        "steady": steady,
        "anew": peers,
        "growth": growth,
        "times_spark": faster,
        "agree": all(agree.values()),
        "goals": goals,
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    few, many = figures["orders"]
    steady, anew = figures["steady"], figures["anew"]
    return markdown(
        ["1,000 changed orders", f"of {few:,}, s", f"of {many:,}, s"],
        [
            ["millstream, a batch", steady["few"], steady["many"]],
            ["Spark SQL, all anew", None, anew["spark"]],
            ["DuckDB, all anew", None, anew["duckdb"]],
        ],
    )


# -- the data -------------------------------------------------------------------------------------


def make(work: Path, orders: int) -> Path:
    """All orders, then changes to some of them, a file for each batch."""
    rng = np.random.default_rng(0)
    customers = orders // 10
    for name in ("orders", "customers", "regions"):
        (work / name).mkdir(parents=True)

    def some(ids: Any, second: int) -> pa.Table:
        at = pa.array(np.full(len(ids), START + second * 1_000_000), pa.timestamp("us", "UTC"))
        bought = rng.integers(0, customers, len(ids))
        amount = rng.integers(1, 1000, len(ids))
        return pa.table({"ts": at, "id": ids, "customer": bought, "amount": amount})

    for number, ids in enumerate(np.array_split(np.arange(orders), -(-orders // PER_FILE))):
        pq.write_table(some(ids, number), work / "orders" / f"a{number:04d}.parquet")
    for number in range(BATCHES):
        ids = rng.choice(orders, CHANGES, replace=False)
        pq.write_table(some(ids, 1000 + number), work / "orders" / f"b{number:04d}.parquet")
    at = pa.scalar(START, pa.timestamp("us", "UTC"))
    for name, count, columns in (
        ("customers", customers, {"region": rng.integers(0, REGIONS, customers)}),
        ("regions", REGIONS, {"name": [f"r{number}" for number in range(REGIONS)]}),
    ):
        known = {"ts": pa.repeat(at, count), "id": np.arange(count), **columns}
        pq.write_table(pa.table(known), work / name / "a.parquet")
    (work / "bound").write_text(str(orders * 500 // REGIONS))
    return work


def _agrees(data: Path) -> bool:
    """Whether the changes that were given add up to what DuckDB finds."""
    con = duckdb.connect()
    ordered = f"""select * from (select *, row_number() over (
            partition by name order by filename desc, op <> '-' desc) place
        from read_parquet('{data}/out/*.parquet', filename = true)) where place = 1 and op <> '-'"""
    given = con.sql(f"select name, n, s from ({ordered}) order by all").fetchall()
    return bool(given) and given == con.sql(_query(data, "arg_max(o, ts)")).fetchall()


def _query(data: Path, latest: str) -> str:
    """The answer from the files: the latest of every order, joined and grouped."""
    bound = (data / "bound").read_text()
    return f"""
        with changes as (select id, {latest} o from (
            select id, ts, {{'customer': customer, 'amount': amount}} o
            from '{data}/orders/*.parquet') group by id)
        select r.name, count(*) n, cast(sum(o.amount) as bigint) s
        from changes
        join '{data}/customers/*.parquet' c on o.customer = c.id
        join '{data}/regions/*.parquet' r on c.region = r.id
        group by r.name having sum(o.amount) > {bound} order by all"""


# -- the sides ------------------------------------------------------------------------------------


def millstream_side(data: Path) -> dict[str, Any]:
    """The flow under test; the median batch of those that bring changes only."""
    import millstream as ms

    flow = ms.Flow("changes")

    def kept(name: str, **options: Any) -> ms.Stream:
        source = ms.Files(data / name, time="ts", lateness="1s", **options)
        return flow.source(source, name=name).changes(key="id")

    orders = kept("orders", max_files_per_batch=1).select("id", "customer", "amount")
    customers = kept("customers").select("id", "region")
    regions = kept("regions").select("id", "name")
    bought = orders.join(customers, on=[("customer", "id")], suffix="_c")
    placed = bought.join(regions, on=[("region", "id")], suffix="_r")
    revenue = placed.key_by("name").agg(n=ms.count(), s=ms.sum("amount"))
    revenue.where(f"s > {(data / 'bound').read_text()}").sink(ms.Parquet(data / "out"))
    batches: dict[int, tuple[float, int]] = {}
    flow.run(
        checkpoint=data / "checkpoint",
        on_progress=lambda p: batches.update({p.batch: (p.batch_seconds, p.rows)}),
    )
    seconds, read = zip(*batches.values(), strict=True)
    brought = np.diff(read, prepend=0)
    small = [taken for taken, rows in zip(seconds, brought, strict=True) if rows == CHANGES]
    return {"steady": round(statistics.median(small[2:]), 4), "batches": len(batches)}


def spark_side(data: Path) -> dict[str, Any]:
    """Spark SQL over the same files, the second time in one session."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    cores = str(os.cpu_count())
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = _query(data, "max_by(o, ts)").replace("'customer': customer, 'amount': amount", "")
    query = query.replace("{} o", "named_struct('customer', customer, 'amount', amount) o")
    for name in ("orders", "customers", "regions"):
        spark.read.parquet(str(data / name)).createOrReplaceTempView(name)
        query = query.replace(f"'{data}/{name}/*.parquet'", name)
    taken, answer = [], []
    for _ in range(2):
        started = time.perf_counter()
        answer = [tuple(row) for row in spark.sql(query).collect()]
        taken.append(time.perf_counter() - started)
    spark.stop()
    return {"again": round(taken[-1], 3), "answer": sorted(answer)}


def duckdb_side(data: Path) -> dict[str, Any]:
    """DuckDB over the same files, the second time in one session."""
    con = duckdb.connect()
    con.sql(f"set threads = {os.cpu_count()}")
    taken, answer = [], []
    for _ in range(2):
        started = time.perf_counter()
        answer = con.sql(_query(data, "arg_max(o, ts)")).fetchall()
        taken.append(time.perf_counter() - started)
    return {"again": round(taken[-1], 3), "answer": sorted(answer)}


if __name__ == "__main__":
    SIDES = {"millstream": millstream_side, "spark": spark_side, "duckdb": duckdb_side}
    print(json.dumps(SIDES[sys.argv[1]](Path(sys.argv[2]))))
