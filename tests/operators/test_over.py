"""Functions over rows, from the first on that a change reaches; DuckDB answers for all rows."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest

import millstream as ms
from millstream.operators import over
from millstream.state.bags import KeyedBag
from millstream.testing import Driver
from tests.sql.comparing import integrated, sign_rows
from tests.sql.test_against_duckdb import STREAMS, Oracle
from tests.variants import variants

ROWS = "ROWS BETWEEN {} AND {}"
RUNNING = [  # which go on from the row before
    "ROW_NUMBER() OVER ({})", "DENSE_RANK() OVER ({})", "COUNT(*) OVER ({})", "COUNT(v) OVER ({})",
    "SUM(v) OVER ({})", "SUM(d) OVER ({} ROWS UNBOUNDED PRECEDING)", "MIN(x) OVER ({})",
    "MAX(s) OVER ({} ROWS UNBOUNDED PRECEDING)", "FIRST_VALUE(v) OVER ({})",
    "LAST_VALUE(v) OVER ({} ROWS UNBOUNDED PRECEDING)",
]  # fmt: skip
NEAR = [  # which look at rows around
    "LAG(v, 2) OVER ({})", "LEAD(s) OVER ({})",
    f"SUM(x) OVER ({{}} {ROWS.format('3 PRECEDING', 'CURRENT ROW')})",
    f"AVG(v) OVER ({{}} {ROWS.format('1 PRECEDING', '2 FOLLOWING')})",
    f"MAX(v) OVER ({{}} {ROWS.format('4 PRECEDING', '2 PRECEDING')})",
    f"COUNT(s) OVER ({{}} {ROWS.format('1 FOLLOWING', '3 FOLLOWING')})",
]  # fmt: skip
WHOLE = ["RANK() OVER ({})", "SUM(x) OVER ({})", "AVG(v) OVER (PARTITION BY k)"]
BY = "PARTITION BY k ORDER BY v NULLS FIRST, id"  # no two are equal
TIES = "PARTITION BY k ORDER BY w NULLS LAST"


def batch(rng: random.Random, size: int) -> list[dict[str, Any]]:
    """Objects that come, move within their groups, and go."""
    return [
        {
            "id": rng.randrange(60), "k": rng.choice([0, 0, 0, 1, None]),
            "v": rng.choice([None, *range(9)]), "x": rng.choice([None, 0.25, -1.5]),
            "d": rng.choice([None, Decimal("0.10"), Decimal("7.25")]),
            "s": rng.choice([None, "a", "b"]), "alive": rng.random() < 0.85,
        }
        for _ in range(size)
    ]  # fmt: skip


def compare(seed: int, queries: list[str], batches: int = 8) -> None:
    rng, flow, oracle = random.Random(seed), ms.Flow("over"), Oracle()
    flow.sql(STREAMS)
    for number, sql in enumerate(queries):
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    with Driver(flow, parallelism=1 + seed % 3) as driver:
        for _ in range(batches):
            records = batch(rng, rng.choice([1, 2, 5, 30]))
            driver.push("t_log_records", records).step()
            oracle.take("t", records)
            if rng.random() < 0.2:
                driver.restart()
            for number, sql in enumerate(queries):
                found, right = integrated(driver.output(f"out{number}")), oracle.answer(sql)
                assert found == right, f"seed {seed}: {sql}\n{right - found}\n{found - right}"
        assert not driver.dead


@pytest.mark.parametrize("few", variants([1, 5]))
@pytest.mark.parametrize("kind", ["running", "near", "both", "ties", "doubled"])
def test_every_function_after_every_batch(kind: str, few: int, monkeypatch: Any) -> None:
    """few: how many rows are read at first, so that also small groups are larger than that."""
    sign_rows(monkeypatch)
    monkeypatch.setattr(over, "FEW", few)
    calls = {"running": RUNNING, "near": NEAR, "both": [*RUNNING[:5], *NEAR]}.get(kind, [])
    named = ", ".join(f"{call.format(BY)} AS o{nth}" for nth, call in enumerate(calls))
    queries = [f"SELECT id, {named} FROM t"]
    if kind == "ties":  # values of equal rows are those of all of them together
        calls = [
            "DENSE_RANK() OVER ({})",
            "COUNT(*) OVER ({})",
            "SUM(v) OVER ({})",
            "MIN(s) OVER ({})",
        ]
        by = TIES.replace("w", "v")
        named = ", ".join(f"{call.format(by)} AS o{nth}" for nth, call in enumerate(calls))
        queries = [f"SELECT id, {named} FROM t", f"SELECT id, {WHOLE[0].format(by)} AS r FROM t"]
    if kind == "doubled":  # rows that are there twice
        source = "(SELECT k, v, s FROM t UNION ALL SELECT k, v, s FROM t) AS q"
        by = "PARTITION BY k ORDER BY v NULLS FIRST, s NULLS LAST"
        named = f"ROW_NUMBER() OVER ({by}) AS n, LAG(v) OVER ({by}) AS l, COUNT(s) OVER ({by}) AS c"
        queries = [f"SELECT k, v, s, {named} FROM {source}"]
    compare(few, queries)


def test_a_group_whose_last_row_goes(monkeypatch: Any) -> None:
    """Nothing is left to be said, whatever the functions; and the group may come back."""
    sign_rows(monkeypatch)
    calls = [*RUNNING, *NEAR]
    queries = [f"SELECT id, {call.format(BY)} AS o FROM t" for call in calls]
    queries += [f"SELECT id, {call.format(BY)} AS o FROM t" for call in WHOLE]
    named = ", ".join(f"{call.format(BY)} AS o{nth}" for nth, call in enumerate(calls))
    queries += [f"SELECT id, {named} FROM t"]
    flow, oracle = ms.Flow("gone"), Oracle()
    flow.sql(STREAMS)
    for number, sql in enumerate(queries):
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    one = {"id": 1, "k": 0, "v": 3, "x": 0.25, "d": Decimal("0.10"), "s": "a"}
    with Driver(flow) as driver:
        for alive in (True, False, True):
            driver.push("t_log_records", [one | {"alive": alive}]).step()
            oracle.take("t", [one | {"alive": alive}])
            for number, sql in enumerate(queries):
                assert integrated(driver.output(f"out{number}")) == oracle.answer(sql), sql


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_more_of_them(seed: int, monkeypatch: Any) -> None:
    sign_rows(monkeypatch)
    monkeypatch.setattr(over, "FEW", 1 + seed % 7)
    rng = random.Random(seed)
    calls = rng.sample([*RUNNING, *NEAR], rng.randint(1, 4))
    named = ", ".join(f"{call.format(BY)} AS o{nth}" for nth, call in enumerate(calls))
    compare(seed, [f"SELECT id, {named} FROM t"], batches=20)


def test_what_comes_at_the_end_of_a_large_group_reads_its_end(monkeypatch: Any) -> None:
    """The cost of a batch follows the change: of 20,000 rows it reads some dozens."""
    read: list[int] = []
    first = KeyedBag.first

    def counting(self: KeyedBag, *args: Any, **options: Any) -> Any:
        before = self.looked_at
        found = first(self, *args, **options)
        read.append(self.looked_at - before)
        return found

    monkeypatch.setattr(KeyedBag, "first", counting)
    flow = ms.Flow("end")
    flow.sql("CREATE STREAM t (id BIGINT, v BIGINT) WITH (source = 'http', port = 8401)")
    flow.sql(
        "SELECT id, SUM(v) OVER (ORDER BY id) AS s, LAG(v, 3) OVER (ORDER BY id) AS l FROM t"
    ).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("t", [{"id": n, "v": 1} for n in range(20_000)]).step()
        read.clear()
        driver.push("t", [{"id": 20_000 + n, "v": 1} for n in range(10)]).step()
        assert sum(read) < 1_000
        assert [row["s"] for row in driver.output("out")[-10:]] == list(range(20_001, 20_011))
