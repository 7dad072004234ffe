"""Claim: functions in Python run at least 3 times as fast as in PySpark's RDDs.

One class with `map`, `combine` and `reduce`, run by millstream over all trades and in sliding
windows, and by PySpark as `rdd.flatMap(map).reduceByKey(combine).flatMap(reduce)`; beside them the
same sums by built-in aggregates. All read the same files on all cores, each in a process of its
own, start-up included; `processor` is the processor time of these and all they start.
Before any time is looked at, all answers are compared with DuckDB's.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import millstream as ms
from benchmarks import trades
from benchmarks.common import Truth, goal, markdown, module, side, workspace

SIZE, SLIDE = 60, 1
SIDES = ("batch", "windowed", "builtin", "rdd")
_LIMIT = 900.0


class Sums(ms.MapReduce):
    """The sum of prices by symbol."""

    def map(self, key: Any, value: Any, ts: Any) -> Any:
        yield value["symbol"], value["price"]

    def combine(self, key: Any, values: list[float]) -> float:
        return sum(values)

    def reduce(self, key: Any, values: list[float], window: Any) -> Any:
        yield key, sum(values)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all sides and print the ratios."""
    count, seconds, files = (200_000, 120, 4) if quick else (2_000_000, 1200, 8)
    with workspace("mapreduce") as work:
        data = trades.make(work / "in", count, seconds, files)
        sides = {name: _measured(name, data, work) for name in SIDES}
        agree = _compare(data, work)
    figures: dict[str, Any] = {"trades": count, **sides, "answers": agree}
    figures["agree"] = all(agree.values())
    print(f"answers agree: {figures['agree']} ({agree})")
    for name, one in sides.items():
        print(f"{name:10s} {one['seconds']:7.2f} s   processor {one['processor']:7.2f} s")
    batch, windowed, rdd = (sides[name] for name in ("batch", "windowed", "rdd"))
    figures["times_rdd"] = round(rdd["seconds"] / batch["seconds"], 2)
    figures["times_rdd_processor"] = round(rdd["processor"] / batch["processor"], 2)
    figures["windowed_to_batch"] = round(windowed["seconds"] / batch["seconds"], 2)
    print(f"processor time: PySpark's RDD takes {figures['times_rdd_processor']} times the batch's")
    figures["goals"] = [
        goal("batch beside PySpark's RDD", "at least 3 times as fast", *_judged(figures, True)),
        goal("windowed beside batch", "at most 1.5 times as long", *_judged(figures, False)),
    ]
    return figures


def _judged(figures: dict[str, Any], batch: bool) -> tuple[float, bool]:
    seen = float(figures["times_rdd" if batch else "windowed_to_batch"])
    return seen, seen >= 3 if batch else seen <= 1.5


def _measured(name: str, data: Path, work: Path) -> dict[str, Any]:
    return side(module("mapreduce", name, data, work), _LIMIT)


class Spent(threading.Thread):
    """The processor time of this process and all it started, however they were started.

    Spark's processes do not tell at their end, and some are of another session: so whoever has a
    parent that is known belongs to it, from then on.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ticks: dict[int, int] = {os.getpid(): 0}

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self.look()
            time.sleep(0.1)

    def look(self) -> float:
        """Seconds so far."""
        found: dict[int, tuple[int, int]] = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = Path(path).read_text().rpartition(")")[2].split()
                found[int(path.split("/")[2])] = int(fields[1]), int(fields[11]) + int(fields[12])
        more = True
        while more:  # children may be listed before their parents
            mine = {pid for pid, (parent, _) in found.items() if parent in self.ticks}
            more = not mine <= self.ticks.keys()
            self.ticks.update(dict.fromkeys(mine - self.ticks.keys(), 0))
        self.ticks.update({pid: found[pid][1] for pid in self.ticks.keys() & found.keys()})
        return sum(self.ticks.values()) / os.sysconf("SC_CLK_TCK")


def _compare(data: Path, work: Path) -> dict[str, bool]:
    truth = Truth(data, SLIDE)
    truth.window(SIZE)
    given = f"""select epoch_us(window_start) st, "key" symbol, "value" s
        from '{work}/windowed/*.parquet'"""
    found = {"windowed": bool(truth.compare(given, ("s",))["agree"])}
    truth.con.sql(
        "create or replace table truth as select 0 st, symbol, sum(s) s from slides group by all"
    )
    for name in ("batch", "builtin", "rdd"):
        given = f"""select 0 st, "key" symbol, "value" s from '{work}/{name}/*.parquet'"""
        found[name] = bool(truth.compare(given, ("s",))["agree"])
    return found


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    names = {
        "batch": "MapReduce class, all trades",
        "windowed": f"the same in windows of {SIZE} s every {SLIDE} s",
        "builtin": "built-in `sum`",
        "rdd": "PySpark's RDD, the same functions",
    }
    rows = [[text, figures[n]["seconds"], figures[n]["processor"]] for n, text in names.items()]
    return markdown([f"{figures['trades']:,} trades", "seconds", "processor seconds"], rows)


def millstream_side(name: str, data: Path, work: Path) -> None:
    """One of the flows under test."""
    flow = ms.Flow("bench")
    stream = flow.source(ms.Files(data, time="ts", lateness="1s"), name="trades")
    if name == "builtin":
        sums = stream.key_by("symbol").agg(value=ms.sum("price")).select("symbol AS key, value")
    else:
        window = ms.sliding(f"{SIZE}s", f"{SLIDE}s") if name == "windowed" else None
        sums = stream.map_reduce(Sums(), window)
    sums.sink(ms.Parquet(work / name))
    flow.run(checkpoint=work / f"ck-{name}")


def rdd_side(data: Path, work: Path) -> None:
    """The peer, with the same functions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    job = Sums()
    pairs = (
        spark.read.parquet(str(data))
        .rdd.flatMap(lambda row: job.map(None, row, row["ts"]))
        .reduceByKey(lambda one, other: job.combine(None, [one, other]), os.cpu_count())
        .flatMap(lambda pair: job.reduce(pair[0], [pair[1]], None))
        .collect()
    )
    (work / "rdd").mkdir()
    columns = {"key": [key for key, _ in pairs], "value": [value for _, value in pairs]}
    pq.write_table(pa.table(columns), work / "rdd" / "sums.parquet")
    spark.stop()


if __name__ == "__main__":
    spent = Spent()
    spent.start()
    which, directory, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if which == "rdd":
        rdd_side(directory, place)
    else:
        millstream_side(which, directory, place)
    print(json.dumps({"processor": round(spent.look(), 2)}))
