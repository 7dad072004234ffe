"""Queries in SQL over changes, run and killed by the tests.

python queries.py DATA WORK: in this process, without Spark. DATA/options.json says how batches are
cut, how many tasks there are, and which queries are asked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import millstream as ms
from millstream.testing import run_in_process
from tests.sql.comparing import sign_rows
from tests.sql.test_against_duckdb import STREAMS

SOURCE = "source = 'http', port = {}"


class Patching:
    """What sign_rows asks of pytest's monkeypatch."""

    def setattr(self, module: Any, name: str, value: Any) -> None:
        setattr(module, name, value)


def main(data: Path, work: Path) -> None:
    """Run to the end."""
    options = json.loads((data / "options.json").read_text())
    sign_rows(Patching())  # type: ignore[arg-type]
    flow, streams = ms.Flow("queries"), STREAMS
    for port, name in ((8401, "t"), (8402, "u")):
        files = f"path = '{data}/{name}-*.parquet', time = 'ts', lateness = '1h'"
        streams = streams.replace(SOURCE.format(port), files)
    flow.sql(streams.replace("PRIMARY KEY", "ts TIMESTAMP, PRIMARY KEY"))
    for name, sql in options["views"].items():
        flow.sql(f"CREATE STREAMED VIEW {name} AS {sql}")
    for number, sql in enumerate(options["queries"]):
        flow.sql(sql).sink(ms.Jsonl(work / "out" / str(number)), name=f"out{number}")
    print("ready", flush=True)
    run_in_process(
        flow,
        work / "ck",
        parallelism=options["parallelism"],
        batch_rows=options["batch_rows"],
        shards=8,
        retain=3,
    )
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
