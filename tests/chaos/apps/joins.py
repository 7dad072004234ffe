"""Joins of changes, of records by time, and a difference, run and killed by the tests.

python joins.py DATA WORK [MASTER]: without a master it runs in this process, without Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import millstream as ms

LATENESS = "20s"
BATCH_ROWS = 75
SINKS = ("full", "near", "then", "only")


def build(left: ms.Stream, right: ms.Stream, sinks: dict[str, Any]) -> None:
    """Two streams with the columns id, k and v, joined in four ways."""
    mine = left.changes(key="id").where("v < 70").select("id", "k", "v")
    theirs = right.changes(key="id").where("v < 70").select("id", "k", "v")
    mine.join(theirs, on="k", how="full").sink(sinks["full"], name="full")
    some, others = left.select("k", "n"), right.select("k", "n")
    some.join(others, on="k", how="left", within="2s").sink(sinks["near"], name="near")
    some.join(others, on="k", how="asof").sink(sinks["then"], name="then")
    mine.select("k").difference(theirs.select("k")).sink(sinks["only"], name="only")


def main(data: Path, work: Path, master: str | None) -> None:
    """Run to the end; a line tells the test that the imports are done."""
    from millstream.testing import run_in_process

    flow = ms.Flow("joins")
    left, right = (
        flow.source(ms.Files(data / f"{name}-*.parquet", time="ts", lateness=LATENESS), name=name)
        for name in ("left", "right")
    )
    build(left, right, {name: ms.Jsonl(work / "out" / name) for name in SINKS})
    print("ready", flush=True)
    options: dict[str, Any] = {"batch_rows": BATCH_ROWS, "shards": 8, "retain": 3}
    if master is None:
        run_in_process(flow, work / "ck", parallelism=2, **options)
    else:
        flow.run(checkpoint=work / "ck", master=master, parallelism=2, **options)
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
