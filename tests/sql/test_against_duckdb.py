"""After every batch, what the changes of a query come to is what DuckDB answers on all input."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.ops.chunks import Chunk
from millstream.run import tasks
from millstream.testing import Driver
from tests.sql.queries import Grammar

KINDS = frozenset({"sets", "group", "join", "in"})
STREAMS = """
CREATE STREAM t_log (id INT, k INT, v INT, x DOUBLE, s STRING, alive BOOLEAN, PRIMARY KEY (id))
WITH (source = 'http', port = 8401);
CREATE STREAM u_log (id INT, k INT, w INT, s STRING, alive BOOLEAN, PRIMARY KEY (id))
WITH (source = 'http', port = 8402);
CREATE STREAMED VIEW t AS SELECT id, k, v, x, s FROM t_log WHERE alive;
CREATE STREAMED VIEW u AS SELECT id, k, w, s FROM u_log WHERE alive;
"""
COLUMNS = {"t": ("id", "k", "v", "x", "s"), "u": ("id", "k", "w", "s")}
TYPES = {"id": "INT", "k": "INT", "v": "INT", "w": "INT", "x": "DOUBLE", "s": "VARCHAR"}


@pytest.fixture(autouse=True)
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks get rows as they are inside, added or taken back, so that they can be counted."""

    def raw(chunks: list[Chunk], *_: Any) -> list[Chunk]:
        return [
            one.with_table(
                one.table.append_column("sign", pa.array(one.weights().astype(np.int64)))
            )
            for one in chunks
        ]

    monkeypatch.setattr(tasks, "leaving", raw)


def batch(rng: random.Random, table: str, size: int) -> list[dict[str, Any]]:
    """Inserts, updates and deletes of few objects."""
    values = {
        "k": lambda: rng.choice([None, 0, 1, 2, 3]),
        "v": lambda: rng.choice([None, *range(-3, 7)]),
        "w": lambda: rng.choice([None, *range(-3, 7)]),
        "x": lambda: rng.choice([None, 0.25, 0.5, 2.0, -1.75]),
        "s": lambda: rng.choice([None, "a", "b", "ab", ""]),
    }
    return [
        {"id": rng.randint(1, 12), "alive": rng.random() < 0.8}
        | {name: values[name]() for name in COLUMNS[table] if name != "id"}
        for _ in range(size)
    ]


def plain(value: Any) -> Any:
    """One way to write a number, for both sides."""
    if isinstance(value, float):
        return round(value, 9) + 0.0
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def integrated(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """What signed rows come to; none may be taken back that is not there."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sign = row.pop("sign")
        found[tuple(map(plain, row.values()))] += sign
    assert min(found.values(), default=0) >= 0, found
    return +found


class Oracle:
    """Both tables in DuckDB: the latest record of every object that is alive."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, dict[str, Any]]] = {"t": {}, "u": {}}
        self.db = duckdb.connect()

    def take(self, table: str, records: list[dict[str, Any]]) -> None:
        self.rows[table].update({one["id"]: one for one in records})
        columns = ", ".join(f"{name} {TYPES[name]}" for name in COLUMNS[table])
        self.db.execute(f"CREATE OR REPLACE TABLE {table} ({columns})")
        alive = [one for one in self.rows[table].values() if one["alive"]]
        if alive:
            marks = ", ".join("?" * len(COLUMNS[table]))
            self.db.executemany(
                f"INSERT INTO {table} VALUES ({marks})",
                [[one[name] for name in COLUMNS[table]] for one in alive],
            )

    def answer(self, sql: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(map(plain, row)) for row in self.db.execute(sql).fetchall())


def compare(seed: int, batches: int, queries: int, parallelism: int, restarts: bool) -> None:
    rng = random.Random(seed)
    flow = ms.Flow("queries")
    flow.sql(STREAMS)
    asked = []
    for number in range(queries):
        sql, _ = Grammar(rng, KINDS).query()
        asked.append(sql)
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    oracle = Oracle()
    with Driver(flow, parallelism=parallelism) as driver:
        for _ in range(batches):
            for table in ("t", "u"):
                records = batch(rng, table, rng.choice([0, 1, 3, 8]))
                driver.push(f"{table}_log_records", records)
                oracle.take(table, records)
            driver.step()
            if restarts and rng.random() < 0.3:
                driver.restart()
            for number, sql in enumerate(asked):
                found = integrated(driver.output(f"out{number}"))
                expected = oracle.answer(sql)
                assert found == expected, (
                    f"seed {seed}: {sql}\nmissing {expected - found}, too many {found - expected}"
                )
        assert not driver.dead


@pytest.mark.parametrize("seed", range(12))
def test_random_queries(seed: int) -> None:
    compare(seed, batches=4, queries=5, parallelism=1 + seed % 2, restarts=seed % 3 == 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_queries(seed: int) -> None:
    compare(seed, batches=20, queries=5, parallelism=1 + seed % 4, restarts=True)
