"""Claim: sliding windows at least 4 times as fast as PySpark's own, 8 times per steady batch.

Both sides read the same files, 250,000 trades a batch, on all cores, each in a process of its own,
start-up included. Before any time is looked at, the answers are compared: ours with DuckDB (all
rows), PySpark's with ours (every row it gave; it leaves the last windows open).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import trades
from benchmarks.common import markdown

SIZE, SLIDE = 60, 1


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both sides and print the ratios."""
    count, seconds, files = (200_000, 120, 4) if quick else (2_000_000, 1200, 8)
    work = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    try:
        data = trades.make(work / "in", count, seconds, files)
        ours = _side("millstream", data, work)
        spark = _side("pyspark", data, work)
        agreement = _compare(work)
        figures = {
            "trades": count,
            "window": f"{SIZE} s every {SLIDE} s",
            "millstream": ours,
            "pyspark": spark,
            **agreement,
            "ratio_whole_run": round(spark["seconds"] / ours["seconds"], 2),
            "ratio_steady_batch": round(spark["steady"] / ours["steady"], 2),
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _print(figures)
    return figures


def _side(name: str, data: Path, work: Path) -> dict[str, Any]:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.windows", name, str(data), str(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    batches = json.loads(done.stdout.strip().splitlines()[-1])
    steady = sorted(batches[2:] or batches)
    return {
        "seconds": round(seconds, 2),
        "batches": [round(b, 3) for b in batches],
        "steady": round(steady[len(steady) // 2], 3),
    }


def _compare(work: Path) -> dict[str, Any]:
    con = duckdb.connect()
    con.sql(f"create view t as select epoch_us(ts) us, symbol, price from '{work}/in/*.parquet'")
    con.sql(
        f"""create table truth as
        with w as (select unnest(range((us // 1000000 - {SIZE - 1}) * 1000000,
                                       (us // 1000000 + 1) * 1000000, {SLIDE * 1000000})) st,
                          symbol, price from t)
        select st, symbol, sum(price) s, count(*) n from w group by all"""
    )
    con.sql(
        f"""create view ours as select epoch_us(window_start) st, symbol, s, n
        from '{work}/millstream/*.parquet'"""
    )
    con.sql(
        f"create view spark as select epoch_us(st) st, symbol, s, n from '{work}/pyspark/*.parquet'"
    )

    def count(what: str) -> int:
        return int(con.execute(f"select count(*) from {what}").fetchall()[0][0])

    def matching(side: str) -> int:
        return count(
            f"""truth join {side} o using (st, symbol)
            where truth.n = o.n and abs(truth.s - o.s) <= 1e-12 * abs(truth.s)"""
        )

    rows, ours, spark = count("truth"), count("ours"), count("spark")
    agree = ours == rows == matching("ours") and spark == matching("spark") and spark > 0
    return {"rows": rows, "rows_millstream": ours, "rows_pyspark": spark, "agree": agree}


def _print(figures: dict[str, Any]) -> None:
    ours, spark = figures["millstream"], figures["pyspark"]
    print(
        f"answers agree: {figures['agree']} ({figures['rows']:,} rows by DuckDB, "
        f"{figures['rows_millstream']:,} by millstream, {figures['rows_pyspark']:,} by PySpark)"
    )
    print(
        f"whole run      millstream {ours['seconds']:7.2f} s   PySpark {spark['seconds']:7.2f} s"
        f"   {figures['ratio_whole_run']:.1f} times as fast (goal 4)"
    )
    print(
        f"steady batch   millstream {ours['steady']:7.3f} s   PySpark {spark['steady']:7.3f} s"
        f"   {figures['ratio_steady_batch']:.1f} times as fast (goal 8)"
    )


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    ours, spark = figures["millstream"], figures["pyspark"]
    return markdown(
        [figures["window"], "millstream, s", "PySpark, s", "times", "goal"],
        [
            ["whole run", ours["seconds"], spark["seconds"], figures["ratio_whole_run"], 4],
            ["steady batch", ours["steady"], spark["steady"], figures["ratio_steady_batch"], 8],
        ],
    )


def millstream_side(data: Path, work: Path) -> list[float]:
    """The flow under test; gives the seconds of every batch."""
    import millstream as ms

    batches: dict[int, float] = {}
    flow = ms.Flow("bench")
    source = ms.Files(data, time="ts", lateness="1s", max_files_per_batch=1)
    (
        flow.source(source, name="trades")
        .key_by("symbol")
        .window(ms.sliding(f"{SIZE}s", f"{SLIDE}s"))
        .agg(s=ms.sum("price"), n=ms.count())
        .sink(ms.Parquet(work / "millstream"))
    )
    flow.run(
        checkpoint=work / "ck-millstream",
        on_progress=lambda p: batches.update({p.batch: p.batch_seconds}),
    )
    return list(batches.values())


def pyspark_side(data: Path, work: Path) -> list[float]:
    """The peer; gives the seconds of every batch."""
    return pyspark_query(data, work / "pyspark", SIZE, SLIDE)


def pyspark_query(data: Path, out: Path, size: int, slide: int) -> list[float]:
    """Plain PySpark `window()` in append mode, with as many partitions as cores."""
    import os

    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    cores = str(os.cpu_count())
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    stream = (
        spark.readStream.schema("ts timestamp, symbol string, price double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(data))
        .withWatermark("ts", "1 second")
    )
    counted = stream.groupBy(F.window("ts", f"{size} seconds", f"{slide} seconds"), "symbol").agg(
        F.sum("price").alias("s"), F.count("*").alias("n")
    )
    query = (
        counted.select(F.col("window.start").alias("st"), "symbol", "s", "n")
        .writeStream.outputMode("append")
        .format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress]
    spark.stop()
    return batches


if __name__ == "__main__":
    side, directory, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    measure = millstream_side if side == "millstream" else pyspark_side
    print(json.dumps(measure(directory, place)))
