"""Queries where answers go wrong easily, asked by hand; DuckDB answers after every batch.

Nulls in keys and in NOT IN, conditions beside outer joins, groups without rows, duplicates in sets,
views over views over joins, texts with the signs of LIKE, and a zero that is negative.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import Driver
from tests.sql.comparing import integrated, plain, sign_rows
from tests.sql.queries import for_duckdb

KINDS = {
    "t": "id INT, k INT, v INT, x DOUBLE, d DECIMAL(8,2), s STRING, b BOOLEAN, tm TIMESTAMP, "
    "day DATE",
    "u": "id INT, k INT, w INT, s STRING",
}
VIEWS = {
    "tu": "SELECT t.id, t.k, t.v, u.w, u.s FROM t LEFT JOIN u ON t.k = u.k",
    "tuu": "SELECT k, COUNT(*) AS n, SUM(w) AS sw, MAX(s) AS ms FROM tu GROUP BY k",
}
COLUMNS = {name: [one.split()[0] for one in kinds.split(", ")] for name, kinds in KINDS.items()}
START = datetime(2024, 3, 30, 22, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "k": [0, 1, 2, 3],
    "v": [*range(-3, 7)],
    "w": [*range(-3, 7)],
    "x": [0.25, 0.5, 2.0, -1.75, -0.0, 0.0],
    "d": [*map(Decimal, ("0.10", "2.25", "-1.75", "3.00", "0.00"))],
    "s": ["a", "b", "ab", "", "a%b", "a_b", "A", "ä", "a\\b", "Z", " a", "a "],
    "b": [True, False],
    "tm": [START + timedelta(minutes=37 * nth) for nth in range(6)],
    "day": [START.date() + timedelta(days=nth) for nth in range(3)],
}


def queries() -> list[str]:
    lines = Path(__file__).with_name("hard.sql").read_text().splitlines()
    return [line for line in lines if not line.startswith("--")]


def compare(asked: list[str], seed: int, batches: int) -> None:
    rng, flow = random.Random(seed), ms.Flow("hard")
    for port, (name, kinds) in enumerate(KINDS.items(), 8401):
        flow.sql(
            f"CREATE STREAM {name}_log ({kinds}, alive BOOLEAN, PRIMARY KEY (id)) "
            f"WITH (source = 'http', port = {port}); CREATE STREAMED VIEW {name} AS "
            f"SELECT {', '.join(COLUMNS[name])} FROM {name}_log WHERE alive"
        )
    for name, sql in VIEWS.items():
        flow.sql(f"CREATE STREAMED VIEW {name} AS {sql}")
    for number, sql in enumerate(asked):
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    there: dict[str, dict[int, Any]] = {"t": {}, "u": {}}
    with Driver(flow, parallelism=1 + seed % 4) as driver:
        for number in range(batches):
            for name in KINDS:
                records = _batch(rng, name, rng.choice([0, 1, 3, 8]) or int(number == 0))
                driver.push(f"{name}_log_records", records)
                there[name] |= {one["id"]: one for one in records}
            driver.step()
            if rng.random() < 0.25:
                driver.restart()
            db = _tables(there)
            for nth, sql in enumerate(asked):
                found = integrated(driver.output(f"out{nth}"))
                rows = db.execute(for_duckdb(sql)).fetchall()
                right = Counter(tuple(map(plain, row)) for row in rows)
                assert found == right, f"seed {seed}: {sql}\n{right - found}\n{found - right}"
        assert not driver.dead


def _batch(rng: random.Random, name: str, size: int) -> list[dict[str, Any]]:
    """Objects that come, change and go, with a null in every fifth value."""
    made: list[dict[str, Any]] = [
        {"id": rng.randint(1, 10), "alive": rng.random() < 0.75} for _ in range(size)
    ]
    for one in made:
        for column in COLUMNS[name][1:]:
            one[column] = None if rng.random() < 0.2 else rng.choice(VALUES[column])
    return made


def _tables(there: dict[str, dict[int, Any]]) -> Any:
    """What is there, in DuckDB."""
    db = duckdb.connect()
    db.execute("SET timezone = 'UTC'")
    for name, rows in there.items():
        kinds = KINDS[name].replace("TIMESTAMP", "TIMESTAMPTZ")
        db.execute(f"CREATE TABLE {name} ({kinds})")
        for row in rows.values():
            if row["alive"]:
                marks = ", ".join("?" * len(COLUMNS[name]))
                values = [row[column] for column in COLUMNS[name]]
                db.execute(f"INSERT INTO {name} VALUES ({marks})", values)
    for name, sql in VIEWS.items():
        db.execute(f"CREATE VIEW {name} AS {sql}")
    return db


def test_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_rows(monkeypatch)
    compare(queries()[::12], 1, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nth", range(16))
def test_all_of_them(nth: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_rows(monkeypatch)
    compare(queries()[nth::16], seed, 12)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT u.k FROM t LEFT JOIN u USING (k)",
        "SELECT u.* FROM t LEFT JOIN u USING (k)",
        "SELECT t.k FROM t RIGHT JOIN u USING (k)",
        "SELECT t.* FROM t FULL JOIN u USING (k)",
    ],
)
def test_the_key_of_a_side_that_may_be_missing(sql: str) -> None:
    """USING leaves one column of two, which is not that of this side alone."""
    flow = ms.Flow("using")
    for port, (name, kinds) in enumerate(KINDS.items(), 8401):
        flow.sql(f"CREATE STREAM {name} ({kinds}) WITH (source = 'http', port = {port})")
    with pytest.raises(
        ms.SqlError, match=r"may be missing in this join, and USING \(k\) keeps one"
    ):
        flow.sql(sql)
