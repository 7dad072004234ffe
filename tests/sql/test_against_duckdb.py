"""After every batch, what the changes of a query come to is what DuckDB answers on all input."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import Driver
from tests.sql.comparing import integrated, plain, sign_rows
from tests.sql.queries import KINDS, Grammar, for_duckdb
from tests.variants import variants

STREAMS = """
CREATE STREAM t_log (id INT, k INT, v INT, x DOUBLE, d DECIMAL(8,2), s STRING,
                     alive BOOLEAN, PRIMARY KEY (id))
WITH (source = 'http', port = 8401);
CREATE STREAM u_log (id INT, k INT, w INT, s STRING, alive BOOLEAN, PRIMARY KEY (id))
WITH (source = 'http', port = 8402);
CREATE STREAMED VIEW t AS SELECT id, k, v, x, d, s FROM t_log WHERE alive;
CREATE STREAMED VIEW u AS SELECT id, k, w, s FROM u_log WHERE alive;
"""
COLUMNS = {"t": ("id", "k", "v", "x", "d", "s"), "u": ("id", "k", "w", "s")}
TYPES = {"id": "INT", "k": "INT", "v": "INT", "w": "INT", "x": "DOUBLE", "s": "VARCHAR"}
TYPES |= {"d": "DECIMAL(8,2)"}


@pytest.fixture(autouse=True)
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_rows(monkeypatch)


def batch(rng: random.Random, table: str, size: int) -> list[dict[str, Any]]:
    """Inserts, updates and deletes of few objects."""
    values = {
        "k": lambda: rng.choice([None, 0, 1, 2, 3]),
        "v": lambda: rng.choice([None, *range(-3, 7)]),
        "w": lambda: rng.choice([None, *range(-3, 7)]),
        "x": lambda: rng.choice([None, 0.25, 0.5, 2.0, -1.75]),
        "d": lambda: rng.choice([None, *map(Decimal, ("0.10", "2.25", "-1.75", "3.00"))]),
        "s": lambda: rng.choice([None, "a", "b", "ab", ""]),
    }
    return [
        {"id": rng.randint(1, 12), "alive": rng.random() < 0.8}
        | {name: values[name]() for name in COLUMNS[table] if name != "id"}
        for _ in range(size)
    ]


class Oracle:
    """Both tables in DuckDB: the latest record of every object, or all records; if alive."""

    def __init__(self, keyed: bool = True) -> None:
        self.rows: dict[str, dict[int, dict[str, Any]]] = {"t": {}, "u": {}}
        self.keyed, self.db = keyed, duckdb.connect()

    def take(self, table: str, records: list[dict[str, Any]]) -> None:
        for one in records:
            self.rows[table][one["id"] if self.keyed else len(self.rows[table])] = one
        columns = ", ".join(f"{name} {TYPES[name]}" for name in COLUMNS[table])
        self.db.execute(f"CREATE OR REPLACE TABLE {table} ({columns})")
        alive = [one for one in self.rows[table].values() if one["alive"]]
        if alive:
            marks = ", ".join("?" * len(COLUMNS[table]))
            self.db.executemany(
                f"INSERT INTO {table} VALUES ({marks})",
                [[one[name] for name in COLUMNS[table]] for one in alive],
            )

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.db.execute(for_duckdb(sql)).fetchall()

    def answer(self, sql: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(map(plain, row)) for row in self._rows(sql))


def compare(seed: int, batches: int, queries: int, keyed: bool = True) -> None:
    """Queries over changes, or over records, which stay; in one flow, with restarts."""
    rng = random.Random(seed)
    flow = ms.Flow("queries")
    flow.sql(STREAMS if keyed else STREAMS.replace(", PRIMARY KEY (id)", ""))
    asked = []
    for number in range(queries):
        sql, _ = Grammar(rng, KINDS if keyed else KINDS - {"top"}).query()
        asked.append(sql)
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    oracle = Oracle(keyed)
    with Driver(flow, parallelism=1 + seed % 4) as driver:
        for number in range(batches):
            for table in ("t", "u"):  # before the first record there is no batch, and no answer
                size = rng.choice([0, 1, 3, 8])
                records = batch(rng, table, size if number else max(size, 1))
                driver.push(f"{table}_log_records" if keyed else f"{table}_log", records)
                oracle.take(table, records)
            driver.step()
            while not keyed and driver.advance("1h").step():
                pass  # until the watermark has passed what came
            if rng.random() < 0.2:
                driver.restart()
            for number, sql in enumerate(asked):
                found = integrated(driver.output(f"out{number}"))
                expected = oracle.answer(sql)
                assert found == expected, (
                    f"seed {seed}: {sql}\nmissing {expected - found}, too many {found - expected}"
                )
        assert not driver.dead


@pytest.mark.parametrize("seed", variants(range(9), 3))
def test_random_queries_over_changes(seed: int) -> None:
    compare(seed, batches=4, queries=5)


@pytest.mark.parametrize("seed", range(3))
def test_random_queries_over_records(seed: int) -> None:
    compare(seed, batches=4, queries=5, keyed=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_queries(seed: int) -> None:
    compare(seed, batches=20, queries=5, keyed=seed % 4 > 0)
