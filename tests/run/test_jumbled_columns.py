"""A batch that is run again in order forgets what its first run wrote."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import run_in_process

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
ROWS = 4_000
LATE = range(ROWS // 2 - 150, ROWS // 2 + 150)  # where the second task begins


def line(n: int) -> str:
    at = BEGIN + timedelta(seconds=n) - timedelta(minutes=20) * (n in LATE)
    return json.dumps({"ts": at.isoformat(), "n": -1 if n in LATE else n}) + "\n"


def count(key: Any, values: list[dict[str, Any]], window: Any) -> dict[str, Any]:
    return {"v": "late" if any(one["n"] < 0 for one in values) else len(values)}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_record_that_turns_out_late_does_not_decide_the_type_of_a_column(
    tmp_path: Path, parallelism: int
) -> None:
    (tmp_path / "in.jsonl").write_text("".join(map(line, range(ROWS))))
    flow = ms.Flow("columns")
    rows = flow.source(ms.Files(tmp_path / "in.jsonl", time="ts", lateness="0s"), name="in")
    rows.key_by().window(ms.tumbling("1m")).reduce(count).sink(ms.Parquet(tmp_path / "out"))
    ledger = run_in_process(flow, tmp_path / "ck", parallelism=parallelism)
    assert ledger["reduce"]["late"] == len(LATE)
    assert pq.read_table(tmp_path / "out").schema.field("v").type == pa.int64()
