"""Nexmark's queries, as DuckDB answers them on all events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from millstream.cli.loading import load_module
from millstream.io.schemas import parse_schema
from millstream.testing import Driver
from tests.sql.comparing import integrated, plain, sign_rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "nexmark.py"
# What DuckDB has no word for: windows as table functions.
_TUMBLED = "time_bucket(INTERVAL '10 seconds', ts)"
_IN_DUCKDB = {
    "q5": """
        WITH counts AS (
            SELECT auction, COUNT(*) AS num, start + INTERVAL '10 seconds' AS window_end FROM (
                SELECT *, unnest(generate_series(time_bucket(INTERVAL '2 seconds', ts)
                    - INTERVAL '8 seconds', time_bucket(INTERVAL '2 seconds', ts),
                    INTERVAL '2 seconds')) AS start FROM bid)
            GROUP BY auction, start)
        SELECT auction, num, window_end FROM counts
        QUALIFY num = MAX(num) OVER (PARTITION BY window_end)""",
    "q7": f"""
        SELECT auction, price, bidder, {_TUMBLED} + INTERVAL '10 seconds' FROM bid
        QUALIFY price = MAX(price) OVER (PARTITION BY {_TUMBLED})""",
    "q8": f"""
        SELECT DISTINCT p.id, p.name, {_TUMBLED.replace("ts", "p.ts")} FROM person p
        JOIN auction a ON p.id = a.seller
        AND {_TUMBLED.replace("ts", "p.ts")} = {_TUMBLED.replace("ts", "a.ts")}""",
    "q11": """
        SELECT bidder, COUNT(*), MIN(ts), MAX(ts) + INTERVAL '3 seconds' FROM (
            SELECT *, SUM(new) OVER (PARTITION BY bidder ORDER BY ts) AS session FROM (
                SELECT *, CASE WHEN ts - LAG(ts) OVER (PARTITION BY bidder ORDER BY ts)
                    < INTERVAL '3 seconds' THEN 0 ELSE 1 END AS new FROM bid))
        GROUP BY bidder, session""",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVENTS", "2500")
    monkeypatch.delenv("QUERIES", raising=False)
    return load_module(EXAMPLE)


def compare(module: Any, driver: Driver, events: dict[str, list[Any]], queries: list[str]) -> None:
    with duckdb.connect() as db:
        db.execute("SET timezone = 'UTC'")
        for kind, schema in module.SCHEMAS.items():
            db.register(kind, pa.Table.from_pylist(events[kind], schema=parse_schema(schema)))
        for query in queries:
            asked = db.execute(_IN_DUCKDB.get(query, module.QUERIES[query])).fetchall()
            expected = Counter(tuple(map(plain, row)) for row in asked)
            found = integrated(driver.output(query))
            assert expected and found == expected, (
                query,
                str([expected - found, found - expected])[:800],
            )


def test_answers(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every batch for queries without windows, in the end for all."""
    sign_rows(monkeypatch)
    events: dict[str, list[Any]] = {kind: [] for kind in module.SCHEMAS}
    at_once = [one for one in module.QUERIES if one not in _IN_DUCKDB]
    with Driver(module.flow, parallelism=2) as driver:
        every = list(module.events())
        for start in range(0, len(every), 900):
            part = every[start : start + 900]
            for kind, known in events.items():
                new = [event for one, event in part if one == kind]
                driver.push(kind, new)
                known.extend(new)
            driver.step()
            compare(module, driver, events, at_once)
        driver.end()
        compare(module, driver, events, list(module.QUERIES))
        assert not driver.dead
