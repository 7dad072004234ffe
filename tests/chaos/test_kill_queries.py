"""Killed at any moment and started again, queries in SQL come to what DuckDB answers."""

from __future__ import annotations

import json
import random
import re
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.run.faults import POINTS
from millstream.state.doctor import examine
from tests.chaos.support import APP, check_readable, finish, spawn
from tests.sql.comparing import integrated
from tests.sql.queries import KINDS, Grammar
from tests.sql.test_against_duckdb import COLUMNS, Oracle, batch
from tests.sql.test_shapes import SHAPES, VIEWS

QUERIES = APP.with_name("queries.py")
START = datetime(2024, 1, 1, tzinfo=UTC)
TYPES = {"x": pa.float64(), "d": pa.decimal128(8, 2), "s": pa.string(), "alive": pa.bool_()}


def make(path: Path, seed: int, queries: list[str]) -> Oracle:
    """Files of both tables, and the oracle that took the same records in the order of time."""
    rng, oracle = random.Random(seed), Oracle()
    path.mkdir()
    for table in ("t", "u"):
        records = batch(rng, table, 60)
        for second, one in enumerate(records):
            one["ts"] = START + timedelta(seconds=second)
        oracle.take(table, records)
        names = [*COLUMNS[table], "alive"]
        fields = [pa.field(name, TYPES.get(name, pa.int32())) for name in names]
        schema = pa.schema([*fields, pa.field("ts", pa.timestamp("us", "UTC"))])
        for part in range(3):
            rows = pa.Table.from_pylist(records[part * 20 : part * 20 + 20], schema)
            pq.write_table(rows, path / f"{table}-{part}.parquet")
    cut = {"parallelism": 1 + seed % 4, "batch_rows": rng.choice([7, 11, 16])}
    options = cut | {"views": VIEWS, "queries": queries}
    (path / "options.json").write_text(json.dumps(options))
    for name, sql in VIEWS.items():
        oracle.db.execute(f"CREATE VIEW {name} AS {sql}")
    return oracle


def found(out: Path) -> Counter[tuple[Any, ...]]:
    files = sorted(out.glob("part-*.jsonl"))
    lines = (line for f in files for line in f.read_bytes().splitlines())
    return integrated([{k: number(v) for k, v in json.loads(line).items()} for line in lines])


def number(value: Any) -> Any:
    """Decimals are told as texts."""
    decimal = isinstance(value, str) and re.fullmatch(r"-?\d+\.\d+", value)
    return float(value) if decimal else value


def check_killed(tmp_path: Path, seed: int, points: list[str], queries: list[str]) -> None:
    data, work = tmp_path / "in", tmp_path / "work"
    oracle = make(data, seed, queries)
    killed = 0
    for number, point in enumerate(points):
        code = finish(spawn(data, work, crash_at=f"{point}:{number + 1}+", app=QUERIES))
        told = (work / "stderr.txt").read_text()[-2000:]
        assert code in (0, -signal.SIGKILL), f"seed {seed}, {point}: {code} {told}"
        killed += code != 0  # some points are passed rarely, and the input may have ended before
        check_readable(work / "out")
    assert killed >= len(points) // 2, f"seed {seed}: killed {killed} times"
    code = finish(spawn(data, work, app=QUERIES))
    assert code == 0, f"seed {seed}: {(work / 'stderr.txt').read_text()[-2000:]}"
    for number, sql in enumerate(queries):
        mine, right = found(work / "out" / str(number)), oracle.answer(sql)
        assert mine == right, f"seed {seed}: {sql}\nmissing {right - mine}, too many {mine - right}"
    lines, sound = examine(work / "ck")
    assert sound, lines


@pytest.mark.long
def test_killed_once(tmp_path: Path) -> None:
    check_killed(tmp_path, 0, ["half-published"], SHAPES[::9])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_killed_at_every_point(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    points = rng.sample(POINTS, len(POINTS))
    asked = [Grammar(rng, KINDS).query()[0] for _ in range(8)]
    check_killed(tmp_path, seed, points[:5], [*SHAPES[seed % 4 :: 4], *asked])
