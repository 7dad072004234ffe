"""One flow that runs everywhere: python everywhere.py IN OUT CHECKPOINT MASTER [NAME=VALUE...]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import millstream as ms

ROWS = 3_000


def records() -> pa.Table:
    ids = list(range(ROWS))
    return pa.table(
        {
            "id": ids,
            "k": [f"k{i % 13}" for i in ids],
            "v": [i * 31 % 97 for i in ids],
            "ts": pa.array([(1_700_000_000 + i) * 1_000_000 for i in ids], pa.int64()).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def make_flow(source: Any, out: Path) -> ms.Flow:
    flow = ms.Flow("everywhere")
    rows = flow.source(source, name="rows").where("v >= 0")
    windows = rows.key_by("k").window(ms.tumbling("1m")).agg(n=ms.count(), total=ms.sum("v"))
    windows.sink(ms.Parquet(out), name="windows")
    rows.key_by("k").update(count, name="counts")
    return flow


if __name__ == "__main__":
    where, out, checkpoint, master, *given = sys.argv[1:]
    source = ms.Files(where, format="parquet", time="ts")
    spark = dict(one.split("=", 1) for one in given)
    make_flow(source, Path(out)).run(
        checkpoint, master=master, parallelism=2, shards=4, spark=spark
    )
