"""A flow with windows, slates and dead letters, all of it in a store: python averages.py ROOT."""

from __future__ import annotations

import sys
from typing import Any

import millstream as ms
from millstream.testing import run_in_process


def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["n"] = slate.get("n", 0) + 1


def make_flow(root: str, **options: Any) -> ms.Flow:
    flow = ms.Flow("averages")
    schema = "id bigint, key string, value bigint, ts bigint"
    rows = flow.source(
        ms.Files(f"{root}/in", format="csv", time="ts", lateness="5s", schema=schema, **options),
        name="rows",
    )
    rows.key_by("key").window(ms.tumbling("10s")).agg(n=ms.count(), total=ms.sum("value")).sink(
        ms.Parquet(f"{root}/out/windows"), name="windows"
    )
    rows.key_by("key").update(count, name="counts")
    rows.where("value % 3 = 0").select("id", "key").sink(
        ms.Jsonl(f"{root}/out/thirds"), name="thirds"
    )
    return flow


if __name__ == "__main__":
    root = sys.argv[1]
    run_in_process(make_flow(root, max_files_per_batch=1), f"{root}/ck", batch_rows=1000)
    print("done")
