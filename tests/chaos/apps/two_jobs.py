"""Two chained windowed jobs over CSV and JSON files, run by the tests and killed by them.

python two_jobs.py DATA WORK [MASTER]: without a master it runs in this process, without Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

import millstream as ms

LATENESS = "20s"
BATCH_ROWS = 400


def build(data: Path, out: Path) -> ms.Flow:
    """events -> per key and 10 s -> per group and sliding minute; raw and late rows on the side."""
    flow = ms.Flow("two jobs")
    options = {"time": "ts", "time_unit": "ms", "lateness": LATENESS}
    lines = flow.source(ms.Files(data / "*.csv", **options), name="csv")
    objects = flow.source(ms.Files(data / "*.jsonl", **options), name="json")
    events = lines.union(objects)
    events.where("value % 7 = 0").select("id", "key", "value * 2 AS twice").sink(
        ms.Jsonl(out / "raw")
    )
    first = (
        events.key_by("key")
        .window(ms.tumbling("10s"))
        .agg(
            n=ms.count(),
            total=ms.sum("value"),
            low=ms.min("value"),
            high=ms.max("value"),
            latest=ms.last("id"),
        )
        .named("first")
    )
    first.sink(ms.Parquet(out / "first"))
    first.late().select("id", "key", "value").sink(ms.Jsonl(out / "late"))
    second = (
        first.select("key % 5 AS grp", "n", "total")
        .key_by("grp")
        .window(ms.sliding("60s", "20s"))
        .agg(rows=ms.count(), n=ms.sum("n"), total=ms.sum("total"))
        .named("second")
    )
    second.sink(ms.Jsonl(out / "second"))
    return flow


def main(data: Path, work: Path, master: str | None) -> None:
    """Run to the end; a line tells the test that the imports are done."""
    from millstream.testing import run_in_process

    flow = build(data, work / "out")
    print("ready", flush=True)
    options = {"batch_rows": BATCH_ROWS, "shards": 8, "retain": 3}
    if master is None:
        run_in_process(flow, work / "ck", parallelism=2, **options)
    else:
        flow.run(
            checkpoint=work / "ck",
            master=master,
            parallelism=2,
            on_progress=lambda progress: print("batch", progress.batch, flush=True),
            spark={
                "spark.executor.memory": "512m",
                "spark.driver.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            },
            **options,
        )
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
