"""Claims: jobs as one flow cost less than one after the other, and combine as much as pays.

HOP's blocking against pipelined, in shape, with 1, 5 and 20 reducers (shards). A *chain* counts
words and ranks them; *windows* count words per minute and find the busiest minute of each hour. One
after the other, the second job begins when the first has ended, and reads what it wrote; as one
flow it works on what each batch gives it. For windows, the first result of the second job tells
when its work began; they are measured in batches of one file and of four, as each batch has a
stage more in one flow. All in one Spark session, answers compared with DuckDB; processor seconds
are those of all processes, Spark's workers included.

The second part drives one aggregate over the whole input in this process, without Spark, with
merging across the chunks of a task forced on, forced off, and left to the engine: for keys that
come again and again, and for keys that come once. What counts there is processor time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import goal, markdown, module, side, spark_context, workspace

REDUCERS = (1, 5, 20)
KINDS = {"chain": 1, "windows": 1, "windows in large batches": 4}  # files of a batch
WAYS = ("one after the other", "one flow")
KEYS = {"again": 1_000, "once": 100_000_000}
AMOUNTS = ("merged", "apart", "chosen")
HOURS = 6
START = 1_700_006_400  # a full hour
LIMIT = 1_200.0
PAPER = {1: +17, 5: -17.7, 20: -19.7}  # percent of time, pipelined beside blocking, HOP figures 6-8


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both parts."""
    rows, rounds = (200_000, 1) if quick else (1_000_000, 2)
    with workspace("pipelining") as work:
        make(work / "in", rows, 8)
        figures = side(module("pipelining", "jobs", work, rounds), LIMIT)
        if "timed_out" in figures:
            raise RuntimeError(f"not done after {LIMIT:.0f} s")
    amounts = {
        keys: side(module("pipelining", "amounts", keys, rows // 4, rounds), LIMIT) for keys in KEYS
    }
    figures = {"rows": rows, **figures, "amounts": amounts}
    figures["agree"] = figures["agree"] and all(one["agree"] for one in amounts.values())
    figures["goals"] = _goals(figures)
    return figures


def _goals(figures: dict[str, Any]) -> list[Any]:
    goals = []
    for kind in KINDS:
        for reducers in REDUCERS:
            found = figures["jobs"][f"{kind}, {reducers}"]
            seen = round(found[WAYS[1]]["spent"] / found[WAYS[0]]["spent"], 3)
            what = f"{kind}, {reducers} reducers: processor time of one flow beside both"
            goals.append(goal(what, "below 1", seen, seen < 1))
    for keys, found in figures["amounts"].items():
        better = min(found["merged"], found["apart"])
        seen = round(found["chosen"] / better, 3)
        goals.append(
            goal(
                f"keys {keys}: the chosen amount beside the better",
                "at most 1.1",
                seen,
                seen <= 1.1,
            )
        )
    return goals


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for name, found in figures["jobs"].items():
        blocking, flow = (found[way] for way in WAYS)
        paper = f"{PAPER[int(name.split(', ')[1])]:+} %"
        row = [name]
        for figure in ("seconds", "first", "spent"):
            share = f"{100 * (flow[figure] / blocking[figure] - 1):+.0f} %"
            row += [blocking[figure], flow[figure], share]
        rows.append([*row[:4], paper, *row[4:]])
    head = ["jobs, reducers"]
    for what in ("s to the last result", "s to the second job's first", "processor s"):
        head += [f"{what}, {WAYS[0]}", WAYS[1], "difference"]
    head.insert(4, "HOP's, of one job")
    amounts = [
        [f"keys that come {keys}", *(found[one] for one in AMOUNTS), found["left"], found["merges"]]
        for keys, found in figures["amounts"].items()
    ]
    other = [
        "combined",
        *(f"{one}, s" for one in AMOUNTS),
        "rows left by merging",
        "merges in the end",
    ]
    return markdown(head, rows) + "\n\n" + markdown(other, amounts)


# -- jobs on Spark ---------------------------------------------------------------------------------


def make(path: Path, rows: int, files: int) -> None:
    """Words in the order of time: some often, most seldom."""
    rng = np.random.default_rng(3)
    word = (rng.zipf(1.3, rows) % 50_000).astype(np.int64)
    ts = START * 1_000_000 + np.sort(rng.integers(0, HOURS * 3_600_000_000, rows))
    path.mkdir(parents=True)
    size = -(-rows // files)
    for number in range(files):
        part = slice(number * size, (number + 1) * size)
        table = pa.table(
            {"ts": pa.array(ts[part]).cast(pa.timestamp("us", "UTC")), "word": word[part]}
        )
        pq.write_table(table, path / f"{number:02d}.parquet")


def _first(stream: Any, kind: str) -> Any:
    import millstream as ms

    if kind == "chain":
        return stream.key_by("word").agg(n=ms.count())
    return stream.key_by("word").window(ms.tumbling("1m")).agg(n=ms.count())


def _second(stream: Any, kind: str) -> Any:
    import millstream as ms

    if kind == "chain":
        return stream.key_by().agg(top=ms.top_k("word", 100, by="n"))
    return stream.key_by("word").window(ms.tumbling("1h")).agg(most=ms.max("n"), all=ms.sum("n"))


def _flows(kind: str, way: str, data: Path, out: Path) -> list[Any]:
    """The jobs as flows that follow each other."""
    import millstream as ms

    source = ms.Files(data, time="ts", lateness="0s", max_files_per_batch=KINDS[kind])
    if way == "one flow":
        flow = ms.Flow("both")
        words = flow.source(source, name="words")
        _second(_first(words, kind), kind).sink(ms.Parquet(out / "second"))
        return [flow]
    first, second = ms.Flow("first"), ms.Flow("second")
    _first(first.source(source, name="words"), kind).sink(ms.Parquet(out / "first"))
    windows = kind != "chain"
    schema = "word bigint, n bigint" + (", window_end timestamp" if windows else "")
    timing = {"time": "window_end"} if windows else {}
    counts: Any = second.source(ms.Files(out / "first", "parquet", schema=schema, **timing))
    if windows:  # a window's time is the last moment in it
        counts = counts.at("window_end - INTERVAL 1 MICROSECOND")
    _second(counts, kind).sink(ms.Parquet(out / "second"))
    return [first, second]


def measure_jobs(work: Path, rounds: int) -> dict[str, Any]:
    """All ways in one Spark session; the best of some rounds."""
    context = spark_context()
    found: dict[str, Any] = {}
    agree, runs = True, 0
    for round_ in range(-1, rounds):  # the first warms up
        for kind in KINDS if round_ >= 0 else ("chain", "windows"):
            for reducers in REDUCERS if round_ >= 0 else REDUCERS[:1]:
                for way in WAYS:
                    runs += 1
                    out = work / str(runs)
                    seen = _timed(_flows(kind, way, work / "in", out), out, reducers)
                    agree &= _agrees(kind, work / "in", out)
                    best = found.setdefault(f"{kind}, {reducers}", {}).setdefault(way, seen)
                    if round_ < 1 or seen["spent"] < best["spent"]:
                        found[f"{kind}, {reducers}"][way] = seen
    context.stop()
    return {"jobs": found, "agree": agree}


def _timed(flows: list[Any], out: Path, reducers: int) -> dict[str, float]:
    begun, before = time.perf_counter(), _processor()
    first: list[float] = []

    def look(_: Any) -> None:
        if not first and any((out / "second").glob("part-*")):
            first.append(time.perf_counter() - begun)

    for number, flow in enumerate(flows):
        flow.run(out / f"checkpoint{number}", shards=reducers, on_progress=look)
    seconds = time.perf_counter() - begun
    return {
        "seconds": round(seconds, 2),
        "first": round(min([*first, seconds]), 2),
        "spent": round(_processor() - before, 2),
    }


def _processor() -> float:
    """Processor seconds of this process and all it started."""
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _agrees(kind: str, data: Path, out: Path) -> bool:
    con = duckdb.connect()
    con.sql("set timezone = 'UTC'")
    given = f"'{out}/second/*.parquet'"
    if kind == "chain":
        truth = con.sql(
            f"""select word, count(*) n from '{data}/*.parquet' group by all
            order by n desc, word limit 100"""
        ).fetchall()
        ((top,),) = con.sql(f"select top from {given}").fetchall()
        return sorted(n for _, n in truth) == sorted(one["total"] for one in top)
    truth = con.sql(
        f"""with minutes as (select word, date_trunc('minute', ts) m, count(*) n
            from '{data}/*.parquet' group by all)
        select word, date_trunc('hour', m) h, max(n), sum(n) from minutes group by all"""
    )
    rows = con.sql(f'select word, window_start, most, "all" from {given}')
    return sorted(truth.fetchall()) == sorted(rows.fetchall())


# -- how much is combined --------------------------------------------------------------------------


def measure_amounts(keys: str, rows: int, rounds: int) -> dict[str, Any]:
    """One aggregate over the whole input, twelve chunks a batch: processor seconds, the best."""
    found: dict[str, Any] = {"agree": True}
    for _ in range(rounds):
        for amount in AMOUNTS:
            one = _amount(KEYS[keys], rows, amount)
            found["agree"] &= one.pop("agree")
            found[amount] = min(found.get(amount, one["spent"]), one["spent"])
            if amount == "chosen":
                found |= {"left": one["left"], "merges": one["merges"]}
    return found


def _amount(keys: int, rows: int, amount: str) -> dict[str, Any]:
    import millstream as ms
    from millstream.operators.windows import family
    from millstream.testing import Driver

    rng = np.random.default_rng(5)
    flow = ms.Flow("amounts")
    events = flow.source(ms.Files("unused", schema="key bigint, value bigint"), name="events")
    events.key_by("key").agg(n=ms.count(), total=ms.sum("value")).sink(ms.Memory(), name="out")
    forced: Any = contextlib.nullcontext()
    if amount != "chosen":
        forced = patch.object(family, "merges_chunks", lambda *_: amount == "merged")
    key = rng.integers(0, keys, rows)
    spent, size = 0.0, max(1, rows // 96)
    with Driver(flow) as driver, forced:
        for batch in range(0, rows, size * 12):
            for start in range(batch, min(batch + size * 12, rows), size):
                part = key[start : start + size].tolist()
                driver.push("events", [{"key": one, "value": one % 7} for one in part])
            begun = time.process_time()
            driver.step()
            spent += time.process_time() - begun
        (known,) = driver.engine.manifest.combining.values()
        begun = time.process_time()
        driver.end()
        spent += time.process_time() - begun
        given = pa.concat_tables(driver._sinks["out"].tables)
    con = duckdb.connect()
    con.register("events", pa.table({"key": key, "value": key % 7}))
    con.register("given", given)
    truth = "select key, count(*) n, sum(value)::bigint total from events group by all"
    differ = con.sql(
        f"""select count(*) from ((({truth}) except all (select key, n, total from given))
        union all ((select key, n, total from given) except all ({truth})))"""
    ).fetchall()
    left = None if known["left"] is None else round(known["left"], 3)
    return {
        "spent": round(spent, 3),
        "left": left,
        "merges": "yes" if known["merges"] else "no",
        "agree": differ == [(0,)],
    }


if __name__ == "__main__":
    if sys.argv[1] == "jobs":
        print(json.dumps(measure_jobs(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        print(json.dumps(measure_amounts(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
