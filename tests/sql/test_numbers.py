"""Sums that are exact or refused: decimals beside DuckDB, and whole numbers beyond 64 bits."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import duckdb
import pytest

import millstream as ms
from millstream.testing import Driver
from tests.sql.comparing import integrated, sign_rows
from tests.variants import variants

ITEMS = """
CREATE STREAM items (id INT, k STRING, price DECIMAL(12,2), qty INT, l BIGINT, ts TIMESTAMP,
PRIMARY KEY (id)) WITH (source = 'http', port = 8401, time = 'ts');
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def item(rng: random.Random) -> dict[str, Any]:
    price = rng.choice([None, Decimal(rng.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-2)])
    return {"id": rng.randint(1, 9), "k": rng.choice("ab"), "price": price,
            "qty": rng.randint(-5, 5), "l": rng.randint(0, 9), "ts": NOON}  # fmt: skip


@pytest.mark.parametrize("seed", variants([0, 1]))
def test_decimals_of_groups_are_those_of_duckdb(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_rows(monkeypatch)
    rng, flow = random.Random(seed), ms.Flow("items")
    flow.sql(ITEMS)
    sql = """SELECT k, SUM(price) AS s, SUM(price * qty) AS t, MIN(price) AS m, COUNT(price) AS n,
             SUM(price * 0.07) AS tax FROM items WHERE qty > -4 GROUP BY k"""
    flow.sql(sql).sink(ms.Memory(), name="out")
    flow.sql("SELECT k, AVG(price) AS mean FROM items GROUP BY k").sink(ms.Memory(), name="mean")
    rows: dict[int, dict[str, Any]] = {}
    with Driver(flow) as driver:
        for _ in range(6):
            new = [item(rng) for _ in range(4)]
            rows |= {one["id"]: one for one in new}
            driver.push("items_records", new).step()
            database = duckdb.connect()
            database.execute("CREATE TABLE items (k VARCHAR, price DECIMAL(12,2), qty INT)")
            given = [[one["k"], one["price"], one["qty"]] for one in rows.values()]
            database.executemany("INSERT INTO items VALUES (?, ?, ?)", given)
            assert table_of(driver.output("out")) == sorted(database.execute(sql).fetchall())
            assert table_of(driver.output("mean")) == means(list(rows.values()))


def table_of(signed: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found: dict[tuple[Any, ...], int] = {}
    for row in signed:
        sign = row.pop("sign")
        found[tuple(row.values())] = found.get(tuple(row.values()), 0) + sign
    assert set(found.values()) <= {0, 1}
    return sorted(row for row, count in found.items() if count)


def means(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """With four digits more than the values have, rounded half up."""
    made = []
    for key in sorted({one["k"] for one in rows}):
        there = [one["price"] for one in rows if one["k"] == key and one["price"] is not None]
        mean = sum(there) / len(there) if there else None
        made.append((key, mean and mean.quantize(Decimal("0.000001"), ROUND_HALF_UP)))
    return made


def test_a_group_whose_sum_does_not_fit_is_a_dead_letter_until_it_does() -> None:
    flow = ms.Flow("items")
    flow.sql(ITEMS)
    flow.sql("SELECT k, SUM(l) AS s FROM items GROUP BY k").sink(ms.Memory(), name="out")
    row = {"k": "a", "price": None, "qty": 1, "ts": NOON}
    with Driver(flow) as driver:
        driver.push("items_records", [row | {"id": n, "l": 2**62} for n in (1, 2)]).step()
        assert driver.output("out") == []
        driver.push("items_records", [row | {"id": 3, "l": 1}]).step()
        (letter,) = driver.dead  # and not one for every batch it fails in
        assert "9223372036854775808, which does not fit in 64 bits" in letter["error"]
        driver.push("items_records", [row | {"id": 3, "l": 0}]).step()
        driver.push("items_records", [row | {"id": 1, "l": -1}]).step()
        assert driver.output("out") == [{"k": "a", "s": 2**62 - 1, "op": "+"}]


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    "over",
    ["ORDER BY id", "ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", "PARTITION BY k"],
)
def test_a_sum_over_rows_that_does_not_fit_costs_its_rows(
    over: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batches; also where few rows of a group are read at first."""
    monkeypatch.setattr("millstream.operators.over.FEW", 1)
    sign_rows(monkeypatch)
    values = [2**62, 2**62, 5, -(2**62), -(2**62), 7, 2**62]
    rows = [
        {"k": "a", "price": None, "qty": 1, "id": n, "l": value, "ts": NOON}
        for n, value in enumerate(values)
    ]
    frames = {
        "ORDER BY id": [values[: n + 1] for n in range(7)],
        "PARTITION BY k": [values] * 7,
    }.get(over, [values[max(0, n - 1) : n + 1] for n in range(7)])
    sums = {n: sum(frame) for n, frame in enumerate(frames)}
    flow = ms.Flow("items")
    flow.sql(ITEMS)
    flow.sql(f"SELECT id, SUM(l) OVER ({over}) AS s FROM items").sink(ms.Memory(), name="out")
    with Driver(flow, dead_letter_limit=1) as driver:
        for at in range(0, 7, size):
            driver.push("items_records", rows[at : at + size]).step()
        assert integrated(driver.output("out")) == Counter(
            {(n, one): 1 for n, one in sums.items() if one < 2**63}
        )
        ledger, lost = driver.ledger["over"], {n for n, one in sums.items() if one >= 2**63}
        assert ledger.get("failed", 0) == len(driver.dead)
        assert lost <= {json.loads(letter["raw"])["id"] for letter in driver.dead}
        assert all("cast the column to DOUBLE" in letter["error"] for letter in driver.dead)
        if "ORDER" in over:  # each is told once
            assert len(driver.dead) == len(lost) == {"ORDER BY id": 2}.get(over, 1)


@pytest.mark.parametrize("window", [ms.sliding("10s", "1s"), ms.tumbling("10s"), ms.session("5s")])
def test_a_window_whose_sum_does_not_fit_has_failed(window: Any) -> None:
    flow = ms.Flow("items")
    schema = "ts timestamp, v bigint"
    stream = flow.source(ms.Generator(tuple, time="ts", schema=schema), name="in")
    stream.key_by().window(window).agg(s=ms.sum("v")).sink(ms.Memory(), name="out")
    with Driver(flow, dead_letter_limit=1) as driver:
        for second in range(12):
            moment = NOON + timedelta(seconds=second)
            driver.push("in", [{"ts": moment, "v": 2**61}]).step()
        driver.end()
        assert all(row["s"] in (2**61, 2**62, 3 * 2**61) for row in driver.output("out"))
        assert driver.dead and all("64 bits; cast the column" in x["error"] for x in driver.dead)


def test_windows_of_decimals() -> None:
    flow = ms.Flow("items")
    flow.sql(
        "CREATE STREAM items (price DECIMAL(38,2), ts TIMESTAMP) "
        "WITH (source = 'http', port = 8401, time = 'ts')"
    )
    flow.sql(
        "SELECT window_end, SUM(price) AS s, AVG(price) AS a FROM "
        "HOP(items, ts, INTERVAL '1' MINUTE, INTERVAL '2' MINUTE) GROUP BY window_end"
    ).sink(ms.Memory(), name="out")
    large = Decimal(9).scaleb(35)
    with Driver(flow) as driver:
        given = [(0, Decimal("0.10")), (60, Decimal("0.25")), (121, large), (122, large)]
        records = [{"price": price, "ts": NOON + timedelta(seconds=at)} for at, price in given]
        driver.push("items", records).end()
        assert [(row["s"], row["a"]) for row in driver.output("out")] == [
            (Decimal("0.10"), Decimal("0.100000")),
            (Decimal("0.35"), Decimal("0.175000")),
        ]
        assert len(driver.dead) == 2
        assert all("sum: 18000" in one["error"] for one in driver.dead)
