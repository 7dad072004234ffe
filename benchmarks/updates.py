"""Claim: a Python function per event and key, at least 15 times as fast as transformWithState.

An updater counts the events of each user and adds up their amounts: 200,000 events a batch over
100,000 users. The peer is Spark's own operator for that, in Python, with a ValueState in RocksDB,
once with rows and once with pandas; the faster one counts. It reads and writes its state once per
user and batch, which is the best its interface allows; our function is called per event. Both sides
read the same files one after the other; if a file takes several batches, they count together. All
state is compared with DuckDB first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from benchmarks import events
from benchmarks.common import goal, markdown, module, side, steady, workspace

TIMES = 15
LIMIT = 1500.0
PEERS = {"rows": "transformWithState", "pandas": "transformWithStateInPandas"}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all sides on the same files."""
    count, keys, files = (20_000, 10_000, 4) if quick else (200_000, 100_000, 6)
    figures: dict[str, Any] = {"events": count, "keys": keys, "files": files, "agree": True}
    with workspace("updates") as work:
        data = events.make(work / "in", count, keys, files)
        for way in ("event", "arrival", *PEERS):
            found = side(module("updates", way, data, work), LIMIT)
            if "timed_out" in found:
                print(f"  {way}: not done after {LIMIT:.0f} s", flush=True)
                figures[way] = found
                continue
            if len(found["batches"]) != files:
                raise RuntimeError(f"{way}: {len(found['batches'])} batches for {files} files")
            found["steady"] = steady(found["batches"])
            found["agree"] = _compare(data, work / f"{way}.parquet")
            figures["agree"] &= found["agree"]
            figures[way] = found
            print(
                f"  {way:8} steady batch {found['steady']:7.3f} s, whole run "
                f"{found['seconds']:7.2f} s; answers agree: {found['agree']}",
                flush=True,
            )
    done = {way: figures[way]["steady"] for way in PEERS if "steady" in figures[way]}
    figures["peer"] = min(done, key=lambda way: done[way]) if done else None
    best = done[figures["peer"]] if done else None
    figures["times"] = None if best is None else round(best / figures["event"]["steady"], 2)
    figures["goals"] = [
        goal(
            "steady batch of the faster peer beside millstream",
            f"at least {TIMES} times",
            figures["times"],
            None if best is None else figures["times"] >= TIMES,
        )
    ]
    return figures


def _compare(data: Path, given: Path) -> bool:
    """Whether counts and sums of all users are those DuckDB finds in the events."""
    con = duckdb.connect()
    con.sql(
        f"""create table truth as select "user", count(*) n, sum(amount)::bigint total
        from '{data}/*.parquet' group by all"""
    )
    con.sql(f"""create table given as select "user", n, total from '{given}'""")
    rows = con.sql("select count(*) from truth").fetchall()[0][0]
    same = con.sql("select count(*) from (from truth intersect all from given)").fetchall()[0][0]
    return bool(rows == same == con.sql("select count(*) from given").fetchall()[0][0])


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    names = {
        "event": "millstream, in order of event time",
        "arrival": "millstream, in order of arrival",
        **{way: f"PySpark `{name}`" for way, name in PEERS.items()},
    }
    ours = figures["event"]["steady"]
    rows = []
    for way, name in names.items():
        found = figures[way]
        batch = found.get("steady")
        rows.append([name, batch, found.get("seconds"), None if batch is None else batch / ours])
    head = [
        f"{figures['events']:,} events over {figures['keys']:,} keys",
        "steady batch, s",
        "whole run, s",
        "times",
    ]
    return markdown(head, rows)


# -- sides ----------------------------------------------------------------------------------------


def millstream_side(order: str, data: Path, work: Path) -> list[float]:
    """The flow under test; gives the seconds of every batch."""
    import millstream as ms

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + 1
        slate["total"] = slate.get("total", 0) + event.value["amount"]

    batches: dict[int, float] = {}  # by records so far: a batch that only ends is none
    each = pq.read_metadata(min(data.glob("*.parquet"))).num_rows
    flow = ms.Flow("updates")
    source = ms.Files(data, time="ts", lateness="0s", max_files_per_batch=1)
    flow.source(source, name="events").key_by("user").update(count, name="counts", order=order)
    flow.run(
        checkpoint=work / f"checkpoint-{order}",
        batch_seconds=60.0,
        on_progress=lambda p: batches.setdefault(p.rows, p.batch_seconds),
    )
    found = ms.slates(work / f"checkpoint-{order}", "counts").arrow()
    pq.write_table(found.rename_columns({"key": "user"}), work / f"{order}.parquet")
    files: dict[int, float] = {}  # a file may take several batches: their times are added up
    for rows, seconds in batches.items():
        files[(rows - 1) // each] = files.get((rows - 1) // each, 0.0) + seconds
    return list(files.values())


def pyspark_side(way: str, data: Path, work: Path) -> list[float]:
    """The peer; gives the seconds of every batch."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StatefulProcessor

    class WithRows(StatefulProcessor):
        """Rows of one user come as an iterator of Row."""

        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("counts", "n bigint, total bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            known = self.state.get()
            n, total = (0, 0) if known is None else known
            for row in rows:
                n += 1
                total += row.amount
            self.state.update((n, total))
            return iter(())

        def close(self) -> None:
            pass

    class WithPandas(WithRows):
        """Rows of one user come as data frames."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            known = self.state.get()
            n, total = (0, 0) if known is None else known
            for frame in rows:
                n += len(frame)
                total += int(frame["amount"].to_numpy().sum())
            self.state.update((n, total))
            return iter(())

    cores = str(os.cpu_count())
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stateStore.providerClass", rocks)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    stream = (
        spark.readStream.schema("ts timestamp, user string, amount bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(data))
        .select("user", "amount")
        .groupBy("user")
    )
    apply = stream.transformWithState if way == "rows" else stream.transformWithStateInPandas
    processor = WithRows() if way == "rows" else WithPandas()
    query = (
        apply(processor, "user string", "Update", "None")
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(work / f"checkpoint-{way}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress]
    state = (
        spark.read.format("statestore")
        .option("stateVarName", "counts")
        .load(str(work / f"checkpoint-{way}"))
        .selectExpr("key.user", "value.n", "value.total")
    )
    state.coalesce(1).write.parquet(str(work / f"state-{way}"))
    spark.stop()
    (part,) = (work / f"state-{way}").glob("part-*.parquet")
    part.rename(work / f"{way}.parquet")
    return batches


if __name__ == "__main__":
    how, directory, place = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    measure = pyspark_side if how in PEERS else millstream_side
    print(json.dumps({"batches": [round(b, 4) for b in measure(how, directory, place)]}))
