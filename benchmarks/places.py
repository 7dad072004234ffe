"""Claim: what a batch costs on DataFrames, and with its checkpoint in a store, is known.

One flow, windows and slates by key, over files of 1,000 and of 100,000 events, a file a batch:
small batches are one task, large ones have an exchange. Three sides, each a process of its own: the
RDD runner with a checkpoint in a directory, which is the peer; the DataFrame runner; and the RDD
runner with its checkpoint in a server of S3's protocol on the same machine. What is compared is the
median batch, the first ones left out, and the answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import events
from benchmarks.common import markdown, module, side, steady, workspace
from benchmarks.warm import Store

SIZES = {"small": 1_000, "large": 100_000}
SIDES = {
    "rdd": "RDDs, directory",
    "frames": "DataFrames, directory",
    "store": "RDDs, object store",
}
KEYS = 1_000
LIMIT = 900.0


def run(quick: bool = False) -> dict[str, Any]:
    """Measure every side on batches of both sizes."""
    files = 5 if quick else 25
    figures: dict[str, Any] = {"files": files, "keys": KEYS, "agree": True, "medians": {}}
    with workspace("places") as work, Store() as store:
        for size, count in SIZES.items():
            data = events.make(work / size, count, KEYS, files if size == "small" else files // 2)
            found = {}
            for way in SIDES if store.url else ("rdd", "frames"):
                here = f"{work}/{size}-{way}"
                place = store.place(f"{size}-places") if way == "store" else f"{here}-ck"
                found[way] = side(module("places", way, data, place, f"{here}-out"), LIMIT)
            figures["agree"] &= len({one["answers"] for one in found.values()}) == 1
            medians = {way: steady(one["batches"]) for way, one in found.items()}
            figures["medians"][size] = medians
            print(f"  {count:,} events a batch: {medians}", flush=True)
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for the documentation."""
    head = ["a batch of"]
    ways = list(figures["medians"]["small"])
    for way in ways:
        head += [f"{SIDES[way]}, s"] + ([] if way == "rdd" else ["times"])
    rows = []
    for size, medians in figures["medians"].items():
        row: list[Any] = [f"{SIZES[size]:,} events"]
        for way in ways:
            row += [medians[way]]
            row += [] if way == "rdd" else [round(medians[way] / medians["rdd"], 2)]
        rows.append(row)
    return markdown(head, rows)


# -- the side -------------------------------------------------------------------------------------


def measure(way: str, data: Path, checkpoint: str, out: Path) -> dict[str, Any]:
    """The flow over all files, one a batch."""
    import millstream as ms

    def count(event: Any, slate: dict[str, Any], ctx: Any) -> None:
        slate["n"] = slate.get("n", 0) + event.value["amount"]

    os.environ["MILLSTREAM_CACHE"] = f"{out}-cache"
    flow = ms.Flow("places")
    source = ms.Files(data, time="ts", lateness="0s", max_files_per_batch=1)
    keyed = flow.source(source, name="events").key_by("user")
    keyed.update(count, name="counts", order="arrival")
    windows = keyed.window(ms.tumbling("10s"))
    windows.agg(n=ms.count(), s=ms.sum("amount")).sink(ms.Parquet(out))
    seen: list[Any] = []

    def note(progress: Any) -> None:
        if not seen or progress.batch > seen[-1].batch:
            seen.append(progress)

    flow.run(
        checkpoint=checkpoint,
        batch_rows=10_000_000,
        batch_seconds=600.0,  # so that batches do not shrink on a busy machine
        on_progress=note,
        runner="frames" if way == "frames" else "rdd",
    )
    return {
        "batches": [round(one.batch_seconds, 4) for one in seen],
        "answers": _answers(checkpoint, out),
    }


def _answers(checkpoint: str, out: Path) -> str:
    """A digest of all slates and windows."""
    import duckdb

    import millstream as ms

    slates = sorted((key, slate["n"]) for key, slate in ms.slates(checkpoint, "counts"))
    rows = duckdb.sql(f"select * from '{out}/*.parquet' order by all").fetchall()
    return hashlib.sha256(repr((slates, rows)).encode()).hexdigest()


if __name__ == "__main__":
    chosen, where, state, results = sys.argv[1:]
    print(json.dumps(measure(chosen, Path(where), state, Path(results))))
