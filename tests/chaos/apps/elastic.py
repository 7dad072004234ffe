"""Windows over CSV files on a cluster whose workers come, go and slow down.

python elastic.py DATA WORK MASTER: prints a line for every batch, with its seconds and records.
While there is a file WORK/hold it begins no batch, and says how many executors there are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark import SparkContext

import millstream as ms
from millstream.run.reporting import Progress

BATCH_ROWS = 15_000  # per core


def build(data: Path, out: Path) -> ms.Flow:
    """Events per key and minute, behind a function of a user."""
    flow = ms.Flow("elastic")
    events = flow.source(ms.Files(data / "*.csv", time="ts", time_unit="ms"), name="events")
    windows = events.map(lambda event: event).key_by("key").window(ms.tumbling("1m"))
    windows.agg(n=ms.count(), total=ms.sum("value")).sink(ms.Parquet(out))
    return flow


def executors() -> int:
    """Those that are there now; the driver is listed among them."""
    context = SparkContext._active_spark_context
    assert context is not None
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def main(data: Path, work: Path, master: str) -> None:
    """Run to the end."""
    flow = build(data, work / "out")
    print("ready", flush=True)

    read = 0

    def tell(progress: Progress) -> None:
        nonlocal read
        print("batch", progress.batch, progress.batch_seconds, progress.rows - read, flush=True)
        read, told = progress.rows, None
        while (work / "hold").exists():
            if (there := executors()) != told:
                print("held", there, flush=True)
            told = there
            time.sleep(0.05)

    flow.run(
        checkpoint=work / "ck",
        master=master,
        batch_rows=BATCH_ROWS,
        retain=1_000,
        on_progress=tell,
        spark={
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
