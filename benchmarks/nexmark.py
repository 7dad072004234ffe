"""Claim: Nexmark's queries are answered at least as fast as Flink SQL on two thirds of them.

Five million events, one person to three auctions to forty-six bids, as CSV: one file a table, the
same for both. Each side is one process that warms up and runs the queries one after the other, each
to the end of its input. Millstream writes its changes as Parquet, and they are compared with what
DuckDB answers before any time counts; Flink's results go to the black hole, as Nexmark has it.

A query that takes longer than the limit is given up, and the side goes on with the next. What has
been measured stays in results/nexmark.tmp until all is done: a run that was stopped goes on there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from benchmarks import flink
from benchmarks.common import RESULTS, ROOT, goal, markdown, module, plot, workspace
from benchmarks.nexmark_sql import (
    COLUMNS,
    KEYS,
    QUERIES,
    for_duckdb,
    for_flink,
    tables_of,
)

BEGIN = 1_767_605_400_000_000  # 2026-01-05 09:30 UTC
PACE = 1000  # microseconds from one event to the next: no two have the same time
_LIMIT = 100.0  # seconds for a query
_START = 60.0  # and for a side to start and warm up
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both sides, query by query."""
    events = 100_000 if quick else 5_000_000
    kept = _Kept(RESULTS / "nexmark.tmp", events)
    python, why = flink.environment()
    with workspace("nexmark") as work:
        make(work / "data", events)
        make(work / "warm", 20_000)
        _measure(kept, "millstream", work, _ours(work))
        _compare(kept, work)
        if python is not None:
            script = Path(flink.__file__).with_name("nexmark_flink.py")
            command = [python, "-I", str(script)]  # without this folder, which has an http.py
            _measure(kept, "flink", work, command)
        rows = {name: len(csv_rows(work / "data", name)) for name in COLUMNS}
    figures = _figures(kept, events, rows, why)
    _plot(figures, quick)
    kept.file.unlink(missing_ok=True)
    return figures


class _Kept:
    """What is known so far, by side and query, also after this process was ended."""

    def __init__(self, file: Path, events: int) -> None:
        self.file, self.events = file, events
        RESULTS.mkdir(exist_ok=True)
        known = json.loads(file.read_text()) if file.exists() else {}
        self.sides: dict[str, dict[str, Any]] = (
            known["sides"] if known.get("events") == events else {"millstream": {}, "flink": {}}
        )
        ours = self.sides["millstream"]  # what was not compared yet is gone with its directory
        self.sides["millstream"] = {
            query: found
            for query, found in ours.items()
            if "agree" in found or "seconds" not in found
        }

    def put(self, side: str, query: str, found: dict[str, Any]) -> None:
        """Keep what was found of a query."""
        self.sides[side][query] = self.sides[side].get(query, {}) | found
        self.file.write_text(json.dumps({"events": self.events, "sides": self.sides}))

    def left(self, side: str) -> list[str]:
        """Queries of which nothing is known yet."""
        return [one for one in QUERIES if one not in self.sides[side]]


def _measure(kept: _Kept, side: str, work: Path, command: list[str]) -> None:
    """Run what is left of a side; where one query takes too long, begin anew behind it."""
    failures = 0
    while (left := kept.left(side)) and failures < 3:
        done = work / f"{side}.jsonl"
        done.unlink(missing_ok=True)
        jobs = work / f"{side}.json"
        words = for_flink if side == "flink" else QUERIES.__getitem__
        asked = {"queries": {one: words(one) for one in left}, "columns": COLUMNS}
        jobs.write_text(json.dumps(asked | {"data": f"{work}/data", "warm": f"{work}/warm"}))
        error = _watch(kept, side, [*command, str(jobs), str(done)], done, left)
        if error:
            kept.put(side, left[0], {"failed": error})
            print(f"  {side} {left[0]}: {error}", flush=True)
            failures += 1


def _watch(kept: _Kept, side: str, command: list[str], done: Path, left: list[str]) -> str | None:
    """Take in what a process has done until it ends or is too slow; why it stopped before that."""
    with open(f"{done}.err", "w") as errors:
        process = subprocess.Popen(
            command, stdout=errors, stderr=errors, cwd=ROOT, start_new_session=True
        )
    try:
        limit, since = _START + _LIMIT, time.monotonic()
        while True:
            ended = process.poll() is not None
            for line in done.read_text().splitlines() if done.exists() else ():
                found = json.loads(line)
                if found["query"] in left:
                    left.remove(found["query"])
                    kept.put(side, found.pop("query"), found)
                    limit, since = _LIMIT, time.monotonic()
            if ended or not left:
                text = Path(f"{done}.err").read_text()
                return text[-800:] if left and process.returncode else None
            if time.monotonic() - since > limit:
                kept.put(side, left[0], {"timed_out": _LIMIT})
                return None
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- what came out --------------------------------------------------------------------------------


def _figures(kept: _Kept, events: int, rows: dict[str, int], why: str) -> dict[str, Any]:
    ours, peer = kept.sides["millstream"], kept.sides["flink"]
    queries = {}
    for query in QUERIES:
        read = sum(rows[name] for name in tables_of(query))
        one: dict[str, Any] = {"events": read}
        for name, found in (("millstream", ours.get(query, {})), ("flink", peer.get(query, {}))):
            seconds = found.get("seconds")
            one[name] = round(read / seconds) if seconds else None
            one[f"{name}_note"] = found.get("missing") or (
                f"over {found['timed_out']:.0f} s" if "timed_out" in found
                else "failed" if "failed" in found else ""
            )  # fmt: skip
        one["agree"] = ours.get(query, {}).get("agree")
        queries[query] = one
        told = {name: one[name] or one[f"{name}_note"] for name in ("millstream", "flink")}
        print(f"  {query}: {told}, agrees: {one['agree']}", flush=True)
    both = [one for one in queries.values() if one["flink"] or one["flink_note"].startswith("over")]
    won = [one for one in both if (one["millstream"] or -1) >= (one["flink"] or 0)]
    share = round(len(won) / len(both), 3) if both else None
    met = None if share is None else share >= 2 / 3
    note = why or f"{len(won)} of {len(both)}"
    return {
        "events": events,
        "queries": queries,
        "flink": {"version": flink.VERSION, "missing": why or None},
        "agree": all(one["agree"] for one in queries.values() if one["millstream"]),
        "goals": [goal("queries as fast as Flink", "two thirds", share, met, note)],
    }


def _compare(kept: _Kept, work: Path) -> None:
    """Whether what was written comes to DuckDB's answer, for every query that ended."""
    con = duckdb.connect()
    con.sql("set timezone = 'UTC'")
    types = {"STRING": "VARCHAR", "{}": "TIMESTAMPTZ", "{0}": "TIMESTAMPTZ"}
    for name, columns in COLUMNS.items():
        kinds = {one.split()[0]: one.split()[1] for one in columns.split(", ")}
        kinds = {column: types.get(kind, kind) for column, kind in kinds.items()}
        con.execute(
            f"create table {name} as select * from read_csv('{work}/data/{name}.csv', "
            f"header = false, columns = {kinds})"
        )
    for query, found in kept.sides["millstream"].items():
        if "agree" in found or "seconds" not in found:
            continue
        out = work / "out" / query
        kept.put("millstream", query, {"agree": _agrees(con, query, out)})
        shutil.rmtree(out, ignore_errors=True)


def _agrees(con: Any, query: str, out: Path) -> bool:
    con.execute(
        "create or replace table given as select * from "
        f"read_parquet('{out}/**/*.parquet', filename = true, hive_partitioning = true)"
    )
    names = [row[0] for row in con.execute("describe given").fetchall()]
    con.execute(f"create or replace table right_ as {for_duckdb(query)}")
    right = [row[0] for row in con.execute("describe right_").fetchall()]
    shown = [name for name in names if name not in ("filename", "op")]
    assert len(shown) == len(right), (query, shown, right)
    shown = right if set(right) == set(shown) else shown  # columns of folders come last
    con.execute(f"create or replace table mine as {_now(con, query, names, shown)}")
    same = f"(select {', '.join(map(_rounded, *_kinds(con, 'right_')))} from right_)"
    mine = f"(select {', '.join(map(_rounded, *_kinds(con, 'mine')))} from mine)"
    differ = con.execute(
        f"select (select count(*) from ({mine} except all {same})), "
        f"(select count(*) from ({same} except all {mine})), (select count(*) from mine)"
    ).fetchall()[0]
    if differ[0] or differ[1] or not differ[2]:
        print(f"  {query}: too many {differ[0]:,}, missing {differ[1]:,} of {differ[2]:,}")
        return False
    return True


def _now(con: Any, query: str, names: list[str], shown: list[str]) -> str:
    """The rows that are there after all changes."""
    columns = ", ".join(f'"{name}"' for name in shown)
    if "op" not in names:
        return f"select {columns} from given"
    updates = con.execute("select count(*) from given where op = 'u'").fetchall()[0][0]
    if updates:
        keys = ", ".join(KEYS[query])
        return f"""select {columns} from (select *, row_number() over (partition by {keys}
            order by split_part(filename, '/', -1) desc, op <> '-' desc) last_
            from given) where last_ = 1 and op <> '-'"""
    return f"""select {columns} from (select {columns}, sum(case when op = '-' then -1 else 1 end) n
        from given group by all), range(n::bigint)"""


def _kinds(con: Any, table: str) -> tuple[list[str], list[str]]:
    found = con.execute(f"describe {table}").fetchall()
    return [row[0] for row in found], [row[1] for row in found]


def _rounded(name: str, kind: str) -> str:
    """A column as both sides have it: sums of doubles to nine digits, times as numbers."""
    name = '"' + name + '"'
    if kind in ("DOUBLE", "FLOAT") or kind.startswith("DECIMAL"):
        return f"cast(format('{{:.8e}}', {name}::double) as varchar)"
    if kind.startswith("TIMESTAMP"):
        return f"epoch_us({name})"
    return f"{name}::bigint" if kind in ("BIGINT", "HUGEINT", "INTEGER") else f"{name}::varchar"


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    rows = []
    for query, one in figures["queries"].items():
        ours, peer = one["millstream"], one["flink"]
        times = round(ours / peer, 2) if ours and peer else None
        rows.append([query, ours or one["millstream_note"], peer or one["flink_note"], times])
    head = ["query", "millstream, events/s", "Flink, events/s", "times"]
    missing = figures["flink"]["missing"]
    return markdown(head, rows) + (f"\n\nFlink was not measured: {missing}." if missing else "")


def _plot(figures: dict[str, Any], quick: bool) -> None:
    names = list(figures["queries"])
    with plot("nexmark", quick) as (axis,):
        for shift, side in ((-0.2, "millstream"), (0.2, "flink")):
            speeds = [(figures["queries"][one][side] or 0) / 1000 for one in names]
            axis.bar(np.arange(len(names)) + shift, speeds, 0.4, label=side)
        axis.set_xticks(np.arange(len(names)), names, fontsize=6, rotation=60)
        axis.set_ylabel("1,000 events a second")
        axis.set_yscale("log")


# -- the data -------------------------------------------------------------------------------------


def make(work: Path, events: int) -> None:
    """People, auctions and bids; what is bid on is mostly recent."""
    rng = np.random.default_rng(7)
    work.mkdir(parents=True)
    number = np.arange(events)
    ms = BEGIN // 1000 + number * PACE // 1000
    people, auctions = number // 50 + 1, number // 50 * 3 + np.clip(number % 50, 0, 3)

    def recent(known: Any, mean: float) -> Any:
        return np.maximum(1, known - rng.exponential(mean, len(known)).astype(np.int64))

    def words(options: tuple[str, ...], count: int) -> pa.Array:
        return pa.array(options).take(pa.array(rng.integers(0, len(options), count)))

    mine = number[number % 50 == 0]
    count = len(mine)
    names = words(("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie"), count)
    _write(work / "person.csv", people[mine], names,
           pc.binary_join_element_wise(names, "@example.org", ""),
           words(("Phoenix", "Los Angeles", "Boise", "Portland", "Bend", "Seattle"), count),
           words(("AZ", "CA", "ID", "OR", "WA", "WY"), count), *_times(ms[mine]))  # fmt: skip
    mine = number[(number % 50 > 0) & (number % 50 < 4)]
    count = len(mine)
    first = rng.integers(100, 10_000, count)
    _write(work / "auction.csv", auctions[mine], words(("vase", "clock", "chair", "lamp"), count),
           first, first + rng.integers(0, 10_000, count), recent(people[mine], 100),
           rng.integers(10, 15, count), *_times(ms[mine]),
           *_times(ms[mine] + rng.integers(1_000, 20_000, count)))  # fmt: skip
    mine = number[number % 50 >= 4]
    count = len(mine)
    other = rng.integers(0, 10_000, count)
    named = rng.random(count) < 0.5
    others = pc.binary_join_element_wise("channel-", pa.array(other).cast("string"), "")
    channel = pc.if_else(pa.array(named), words(_CHANNELS, count), others)
    url = pc.binary_join_element_wise(
        "https://www.nexmark.com", words(("abc", "de", "f"), count), words(("gh", "i"), count),
        "item.htm?query=1", "/"
    )  # fmt: skip
    tagged = pc.binary_join_element_wise(url, pa.array(other).cast("string"), "&channel_id=")
    _write(work / "bid.csv", recent(auctions[mine], 100), recent(people[mine], 300),
           np.exp(rng.uniform(np.log(100), np.log(100_000_000), count)).astype(np.int64),
           channel, pc.if_else(pa.array(named), url, tagged), *_times(ms[mine]))  # fmt: skip


def _times(ms: Any) -> tuple[Any, pa.Array]:
    told = pc.strftime(pa.array(ms, pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
    return ms, told


def _write(path: Path, *columns: Any) -> None:
    made = pa.table({str(at): column for at, column in enumerate(columns)})
    options = csv.WriteOptions(include_header=False, quoting_style="none")
    csv.write_csv(made, path, options)


def csv_rows(data: Path, name: str) -> Any:
    """The lines of a table."""
    return range((data / f"{name}.csv").read_bytes().count(b"\n"))


# -- our side -------------------------------------------------------------------------------------


def _ours(work: Path) -> list[str]:
    return module("nexmark", work)


def _flow(name: str, sql: str, data: str, columns: dict[str, str], out: Path) -> Any:
    import millstream as ms

    flow = ms.Flow(name)
    for table_, kinds in columns.items():
        if re.search(rf"\b{table_}\b", sql):
            flow.sql(
                f"CREATE STREAM {table_} ({kinds.format('TIMESTAMP')}, WATERMARK FOR ts AS ts - "
                f"INTERVAL '4' SECOND) WITH (path = '{data}/{table_}.csv', format = 'csv', "
                "header = false)"
            )
    folders = ("day", "minute") if name == "q10" else ()
    flow.sql(sql).sink(ms.Parquet(out, partition_by=folders))
    return flow


def millstream_side(work: Path, jobs: Path, done: Path) -> None:
    """The queries one after the other on one Spark context, after one to warm up."""
    from benchmarks.common import spark_context

    asked = json.loads(jobs.read_text())
    spark_context()
    warm = "SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction"
    for nth in range(2):
        flow = _flow("warm", warm, asked["warm"], asked["columns"], work / f"warmed{nth}")
        flow.run(checkpoint=work / f"warm-ck{nth}")
    with done.open("a") as told:
        for name, sql in asked["queries"].items():
            out, checkpoint = work / "out" / name, work / "ck" / name
            shutil.rmtree(out, ignore_errors=True)
            shutil.rmtree(checkpoint, ignore_errors=True)
            flow = _flow(name, sql, asked["data"], asked["columns"], out)
            started = time.perf_counter()
            flow.run(checkpoint=checkpoint)
            seconds = round(time.perf_counter() - started, 3)
            shutil.rmtree(checkpoint, ignore_errors=True)
            told.write(json.dumps({"query": name, "seconds": seconds}) + "\n")
            told.flush()


if __name__ == "__main__":
    millstream_side(*map(Path, sys.argv[1:4]))
