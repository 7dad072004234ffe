"""Claim: an answer within 1 % takes at most a fifth of the time of the exact one.

Views per language over CSV files, in one process and one Spark, after a warm-up: the plain run, the
same with snapshots to its end, and ended by `rel_error(0.01)`; beside them Spark SQL and DuckDB on
the same files. Before any time is looked at, all answers are compared with DuckDB's, and the early
one with its own bounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

import millstream as ms
from benchmarks.common import goal, markdown, spark_context, workspace

LANGUAGES = np.array(["en", "es", "ja", "de", "ru"])
SHARES = [0.35, 0.25, 0.16, 0.13, 0.11]
QUESTION = "SELECT lang, count(*) AS n, sum(views)::BIGINT AS total FROM {} GROUP BY lang"

Answer = dict[str, tuple[int, int]]


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all sides and print the ratios."""
    count, files = (400_000, 4) if quick else (20_000_000, 16)
    with workspace("early") as work:
        _make(work / "warm", 50_000, 2)
        _make(work / "in", count, files)
        context = spark_context()
        try:
            sides, agree = _measure(work, context)
        finally:
            context.stop()
    figures: dict[str, Any] = {"rows": count, **sides, "agree": agree}
    for name in ("plain", "looked", "early", "spark", "duckdb"):
        print(f"{name:8s} {figures[name]:7.2f} s")
    share, more = figures["early"] / figures["plain"], figures["looked"] / figures["plain"]
    print(f"1 % was reached after {figures['progress']:.1%} of the input")
    figures["goals"] = [
        goal("1 % error beside the exact answer", "at most 0.2 of its time", share, share <= 0.2),
        goal("a run with snapshots beside a plain one", "at most 1.3 times", more, more <= 1.3),
    ]
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    names = {
        "plain": "exact, plain run",
        "looked": "exact, with eight snapshots on the way",
        "early": "within 1 %, at all times together with 95 % confidence",
        "spark": "exact, Spark SQL",
        "duckdb": "exact, DuckDB",
    }
    rows = [[text, figures[name]] for name, text in names.items()]
    return markdown([f"{figures['rows']:,} rows of CSV", "seconds"], rows)


def _make(folder: Path, count: int, files: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(files):
        rows = count // files
        lang = LANGUAGES[rng.choice(len(LANGUAGES), rows, p=SHARES)]
        page = np.char.add("page-", rng.integers(0, 10**6, rows).astype(str))
        table = pa.table({"lang": lang, "page": page, "views": rng.integers(1, 100, rows)})
        csv.write_csv(table, folder / f"views-{number:02}.csv")


def _flow(data: Path, sink: ms.Memory) -> ms.Flow:
    flow = ms.Flow("views")
    views = flow.source(ms.Files(data, format="csv"), name="views")
    views.key_by("lang").agg(n=ms.count(), total=ms.sum("views")).sink(sink)
    return flow


def _measure(work: Path, context: Any) -> tuple[dict[str, Any], bool]:
    from pyspark.sql import SparkSession

    session = SparkSession(context)
    _flow(work / "warm", ms.Memory()).run(checkpoint=work / "ck-warm")
    _by_spark(session, work / "warm")
    found: dict[str, Answer] = {}
    sides: dict[str, Any] = {}

    def timed(name: str, ask: Callable[[], Answer]) -> None:
        started = time.perf_counter()
        found[name] = ask()
        sides[name] = round(time.perf_counter() - started, 2)

    timed("duckdb", lambda: _by_duckdb(work / "in"))
    timed("spark", lambda: _by_spark(session, work / "in"))
    timed("plain", lambda: _plain(work))
    timed("looked", lambda: _looked(work))
    last: list[ms.Snapshot] = []
    timed("early", lambda: _early(work, last))
    exact = found["duckdb"]
    early = last[-1].table.to_pylist()
    held = all(
        row["n_lower"] <= exact[row["lang"]][0] <= row["n_upper"]
        and row["total_lower"] <= exact[row["lang"]][1] <= row["total_upper"]
        for row in early
    )
    sides |= {"progress": last[-1].progress, "ended_by": last[-1].ended_by, "bounds_held": held}
    return sides, all(found[name] == exact for name in ("spark", "plain", "looked"))


def _by_duckdb(data: Path) -> Answer:
    with duckdb.connect(config={"threads": os.cpu_count() or 1}) as connection:
        return {
            k: (n, t) for k, n, t in connection.sql(QUESTION.format(f"'{data}/*.csv'")).fetchall()
        }


def _by_spark(session: Any, data: Path) -> Answer:
    frame = session.read.csv(
        str(data), header=True, schema="lang string, page string, views bigint"
    )
    frame.createOrReplaceTempView("views")
    return {
        r["lang"]: (r["n"], r["total"]) for r in session.sql(QUESTION.format("views")).collect()
    }


def _plain(work: Path) -> Answer:
    sink = ms.Memory()
    _flow(work / "in", sink).run(checkpoint=work / "ck-plain")
    return {row["lang"]: (row["n"], row["total"]) for row in sink.rows}


def _looked(work: Path) -> Answer:
    flow = _flow(work / "in", ms.Memory())
    *_, last = flow.snapshots(checkpoint=work / "ck-looked")
    return {row["lang"]: (row["n"], row["total"]) for row in last.table.to_pylist()}


def _early(work: Path, last: list[ms.Snapshot]) -> Answer:
    flow = _flow(work / "in", ms.Memory())
    last.extend(flow.snapshots(until=ms.rel_error(0.01), checkpoint=work / "ck-early"))
    return {}
