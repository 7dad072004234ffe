"""`CREATE SINK` of changes: Parquet and JSON lines with `op`, batch by batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.testing import Driver, run_in_process

CARS = """
CREATE STREAM cars (ts TIMESTAMP, car INT, make STRING, speed INT, PRIMARY KEY (car))
WITH (path = '{}/in', format = 'json', time = 'ts', lateness = '1s', max_files_per_batch = 1);
"""
STEPS = [
    [(1, "A", 60), (2, "A", 70), (3, "B", 40)],
    [(1, "A", 65), (2, "A", 30), (3, "B", 90)],
    [(3, "B", 20), (4, "C", 80)],
]


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """All rows, file by file in the order of batches."""
    rows: list[dict[str, Any]] = []
    for file in sorted(path.glob(f"part-*.{kind}")):
        if kind == "parquet":
            rows += pq.read_table(file).to_pylist()
        else:
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return rows


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_sink_of_changes_says_what_became_of_each_row(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, step in enumerate(STEPS):
        rows = [
            {"ts": f"2026-01-05T09:3{number}:00Z", "car": car, "make": make, "speed": speed}
            for car, make, speed in step
        ]
        file = tmp_path / "in" / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flow = ms.Flow("speeding")
    flow.sql(
        f"{CARS.format(tmp_path)} "
        f"CREATE SINK fast WITH (sink = '{kind}', path = '{tmp_path}/fast') AS "
        "SELECT car, speed FROM cars WHERE speed > 50; "
        f"CREATE SINK makes WITH (sink = '{kind}', path = '{tmp_path}/makes'); "
        "INSERT INTO makes SELECT make, COUNT(*) AS n FROM cars WHERE speed > 50 GROUP BY make"
    )
    run_in_process(flow, tmp_path / "ck")
    fast = [(row["op"], row["car"], row["speed"]) for row in read(tmp_path / "fast", kind)]
    assert sorted(fast[:2]) == [("+", 1, 60), ("+", 2, 70)]
    assert sorted(fast[2:5]) == [("+", 3, 90), ("-", 2, 70), ("u", 1, 65)]
    assert sorted(fast[5:]) == [("+", 4, 80), ("-", 3, 90)]
    makes = [(row["op"], row["make"], row["n"]) for row in read(tmp_path / "makes", kind)]
    assert makes[0] == ("+", "A", 2)
    assert sorted(makes[1:3]) == [("+", "B", 1), ("u", "A", 1)]
    assert sorted(makes[3:]) == [("+", "C", 1), ("-", "B", 1)]


def test_a_column_op_of_ones_own_is_refused() -> None:
    flow = ms.Flow("own")
    flow.sql(CARS.format("."))
    flow.sql("SELECT car, speed AS op FROM cars WHERE speed > 50").sink(ms.Memory(), name="out")
    with pytest.raises(ms.MillstreamError, match="op"), Driver(flow) as driver:
        row = {"ts": "2026-01-05T09:30:00Z", "car": 1, "make": "A", "speed": 60}
        driver.push("cars_records", [row]).step()
