"""Early answers in a process that may be killed: every snapshot is a line, and rows of sinks."""

import json
import sys
from pathlib import Path

import millstream as ms
from millstream.testing import snapshots_in_process

data, work = Path(sys.argv[1]), Path(sys.argv[2])
marks = [share / 10 for share in range(1, 10)]
flow = ms.Flow("views")
views = flow.source(ms.Files(data, format="csv"), name="views")
counted = views.key_by("lang").agg(emit=ms.snapshot(marks), n=ms.count(), total=ms.sum("views"))
counted.sink(ms.Jsonl(work / "out"))
counted.sink(ms.Parquet(work / "tables"))
for one in snapshots_in_process(flow, work / "ck", marks, publish=work / "answers"):
    rows = sorted(one.table.to_pylist(), key=lambda row: row["lang"])
    print("snapshot", json.dumps([one.progress, one.exact, rows]), flush=True)
