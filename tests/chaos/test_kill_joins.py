"""Killed at any moment and started again, joins leave exactly the rows they should."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.run.faults import POINTS
from millstream.state.doctor import examine
from tests.chaos.support import APP, check_readable, finish, spawn

JOINS = APP.with_name("joins.py")
START = datetime(2024, 1, 1, tzinfo=UTC)
SIDES = ("left", "right")
Rows = Counter[tuple[Any, ...]]
LATEST = """CREATE TABLE now_{name} AS SELECT id, k, v FROM '{path}/{name}-*.parquet'
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY ts DESC) = 1"""
ALL = "CREATE TABLE all_{name} AS SELECT k, n, ts FROM '{path}/{name}-*.parquet'"
SQL = {
    "full": """SELECT k, l.id, l.v, r.id, r.v FROM (FROM now_left WHERE v < 70) l
        FULL JOIN (FROM now_right WHERE v < 70) r USING (k)""",
    "near": """SELECT l.k, l.n, r.n FROM all_left l LEFT JOIN all_right r
        ON l.k = r.k AND abs(epoch_us(l.ts) - epoch_us(r.ts)) <= 2000000""",
    "then": """SELECT l.k, l.n, r.n FROM all_left l ASOF LEFT JOIN all_right r
        ON l.k = r.k AND r.ts <= l.ts""",
    "only": """SELECT k FROM now_left WHERE v < 70 EXCEPT SELECT k FROM now_right WHERE v < 70""",
}


def make(path: Path, count: int = 500) -> None:
    """Records of both sides out of order within the lateness, no two at the same time."""
    random_ = random.Random(5)
    for name in SIDES:
        rows = [
            {
                "n": i,
                "ts": START
                + timedelta(milliseconds=i * 40 + random_.randrange(15_000))
                + timedelta(microseconds=i),
                "id": random_.randrange(60),
                "k": random_.choice([None, *range(25)]),
                "v": random_.randrange(100),
            }
            for i in range(count)
        ]
        for part in range(2):
            table = pa.Table.from_pylist(rows[part * count // 2 : (part + 1) * count // 2])
            pq.write_table(table, path / f"{name}-{part}.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Rows]]:
    """Files, and what DuckDB makes of them."""
    path = tmp_path_factory.mktemp("joins")
    make(path)
    with duckdb.connect() as connection:
        for name in SIDES:
            connection.execute(LATEST.format(name=name, path=path))
            connection.execute(ALL.format(name=name, path=path))
        right = {name: Counter(connection.execute(sql).fetchall()) for name, sql in SQL.items()}
    assert all(right.values())
    return path, right


COLUMNS = {
    "full": ("k", "id", "v", "id_right", "v_right"),
    "near": ("k", "n", "n_right"),
    "then": ("k", "n", "n_right"),
    "only": ("k",),
}
KEYS = {"full": ("id", "id_right"), "only": ("k",)}


def found(out: Path, sink: str) -> Rows:
    """What a sink has; of the changes of a batch those first that take back."""
    batches: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((out / sink).glob("part-*.jsonl")):
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        batches.setdefault(path.name.split("-")[1], []).extend(rows)
    table: dict[Any, list[tuple[Any, ...]]] = {}
    for rows in batches.values():
        for row in sorted(rows, key=lambda row: row.get("op") != "-"):
            value = tuple(row[name] for name in COLUMNS[sink])
            key = tuple(row[name] for name in KEYS.get(sink, COLUMNS[sink]))
            mine = table.setdefault(key, [])
            match row.get("op", "+"):
                case "-":
                    mine.remove(value)
                case "u":
                    assert len(mine) == 1, row
                    mine[:] = [value]
                case _:
                    mine.append(value)
    return Counter(value for mine in table.values() for value in mine)


def check_done(work: Path, right: dict[str, Rows]) -> None:
    for name, rows in right.items():
        left = found(work / "out", name)
        assert left == rows, f"{name}: {rows - left} missing, {left - rows} too many"
    lines, sound = examine(work / "ck")
    assert sound, lines


def failed(work: Path) -> str:
    return (work / "stderr.txt").read_text()[-2000:]


def test_killed_at_every_named_point(data: tuple[Path, dict[str, Rows]], tmp_path: Path) -> None:
    for batch, point in enumerate(POINTS):
        code = finish(spawn(data[0], tmp_path, crash_at=f"{point}:{batch}+", app=JOINS))
        assert code == -signal.SIGKILL, f"{point}: {code} {failed(tmp_path)}"
        check_readable(tmp_path / "out")
    assert finish(spawn(data[0], tmp_path, app=JOINS)) == 0, failed(tmp_path)
    check_done(tmp_path, data[1])


@pytest.mark.spark
@pytest.mark.long  # test_kill.py kills on Spark, and joins are killed above
def test_killed_on_spark(data: tuple[Path, dict[str, Rows]], tmp_path: Path) -> None:
    crashed = spawn(data[0], tmp_path, "local[2]", crash_at="after-manifest:3+", app=JOINS)
    assert finish(crashed) == -signal.SIGKILL, failed(tmp_path)
    assert finish(spawn(data[0], tmp_path, "local[2]", app=JOINS)) == 0, failed(tmp_path)
    check_done(tmp_path, data[1])
