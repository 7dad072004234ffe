"""Queries of shapes that random ones seldom have, beside DuckDB after every batch.

All are in one flow, over objects that come, change (their keys too) and go, with equal rows, nulls
and groups that become empty.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver
from tests.sql.comparing import integrated, sign_rows
from tests.sql.test_against_duckdb import STREAMS, Oracle, batch
from tests.variants import variants

VIEWS = {
    "pairs": "SELECT a.id AS a, b.id AS b, a.k AS k FROM t AS a JOIN t AS b ON a.k = b.k",
    "twice": "SELECT k, s FROM t UNION ALL SELECT k, s FROM t",
    "sizes": "SELECT k, COUNT(*) AS n, SUM(v) AS total FROM t GROUP BY k",
    "large": "SELECT k, n FROM sizes WHERE n > 1",
    "joined": "SELECT l.k AS k, l.n AS n, u.w AS w FROM large AS l LEFT JOIN u ON u.k = l.k",
}
SHAPES = [
    # equal rows in joins: each is there as often as both sides say
    "SELECT d.k, d.s, u.w FROM twice AS d JOIN u ON d.k = u.k",
    "SELECT d.k, d.s, u.w FROM twice AS d LEFT JOIN u ON d.k = u.k",
    "SELECT a.k, a.s FROM twice AS a JOIN twice AS b ON a.k = b.k AND a.s = b.s",
    "SELECT k, COUNT(*) AS n FROM twice WHERE k NOT IN (SELECT w FROM u WHERE w > 1) GROUP BY k",
    "SELECT k, s FROM twice INTERSECT ALL SELECT k, s FROM u",
    "SELECT k, s FROM twice EXCEPT ALL SELECT k, s FROM u",
    "SELECT DISTINCT k FROM twice WHERE EXISTS (SELECT 1 FROM u WHERE u.s = twice.s)",
    # self-joins and views over views
    "SELECT k, COUNT(*) AS n FROM pairs GROUP BY k HAVING COUNT(*) > 2",
    "SELECT p.a, q.b FROM pairs AS p JOIN pairs AS q ON p.b = q.a WHERE p.a < q.b",
    "SELECT k, n, w FROM joined WHERE w IS NULL OR w > 1",
    "SELECT n, COUNT(*) AS m FROM sizes GROUP BY n HAVING COUNT(*) > 1",
    "SELECT MAX(n) AS most, COUNT(*) AS groups FROM large",
    "SELECT s.k, l.n FROM sizes AS s FULL JOIN large AS l ON s.n = l.n AND s.k = l.k",
    # nulls: as a key of a group, in a join, in NOT IN and in an outer join's condition
    "SELECT k, s, COUNT(*) AS n, COUNT(v) AS m, AVG(v) AS a FROM t GROUP BY k, s",
    "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u)",
    "SELECT id FROM t WHERE NOT (k > 1)",
    "SELECT a.id, b.id AS other FROM t AS a LEFT JOIN u AS b ON a.k = b.k AND b.w > 2",
    "SELECT id FROM t WHERE k IS NOT DISTINCT FROM v",
    # queries that give one value, by themselves and for each row
    "WITH one AS (SELECT MAX(w) AS m FROM u) SELECT id FROM t WHERE v >= (SELECT m FROM one)",
    "WITH a AS (SELECT SUM(w) AS m FROM u), b AS (SELECT m - 1 AS n FROM a WHERE m > 2) "
    "SELECT id, (SELECT n FROM b) AS n FROM t",
    "SELECT id FROM t WHERE v < (SELECT m FROM (SELECT MAX(w) AS m FROM u) AS q WHERE m > 2)",
    "SELECT id, v FROM t WHERE v > (SELECT AVG(w) FROM u)",
    "SELECT id, (SELECT MAX(w) FROM u) AS m, (SELECT COUNT(*) FROM u WHERE u.k = t.k) AS n FROM t",
    "SELECT id FROM t AS a WHERE v >= (SELECT MAX(b.v) FROM t AS b WHERE b.k = a.k AND b.v < 5)",
    "SELECT k, SUM(v) AS s FROM t GROUP BY k HAVING SUM(v) > (SELECT AVG(w) FROM u)",
    "SELECT k, COUNT(*) - (SELECT COUNT(*) FROM u WHERE w > 0) AS d FROM t GROUP BY k",
    "SELECT id, (SELECT w FROM u ORDER BY w DESC NULLS LAST, id LIMIT 1) AS m FROM t",
    "SELECT id, v + (SELECT COALESCE(SUM(w), 0) + COUNT(*) FROM u WHERE u.k = t.k) AS n FROM t",
    "SELECT id FROM t WHERE EXISTS "
    "(SELECT 1 FROM u WHERE u.k = t.k AND u.w > (SELECT AVG(w) FROM u))",
    # orders by what is not selected
    "SELECT k AS v, s FROM t ORDER BY t.v NULLS FIRST, t.id LIMIT 3",
    "SELECT k, COUNT(*) AS n FROM t GROUP BY k ORDER BY SUM(id) DESC, k NULLS FIRST LIMIT 2",
    # functions over rows
    "SELECT id, RANK() OVER (PARTITION BY k ORDER BY v NULLS FIRST) AS r, "
    "DENSE_RANK() OVER (ORDER BY v DESC NULLS LAST) AS d FROM t",
    "SELECT id, SUM(v) OVER (PARTITION BY k ORDER BY v NULLS FIRST, id) AS s, "
    "COUNT(*) OVER (PARTITION BY s) AS n, AVG(x) OVER () AS a FROM t",
    "SELECT id, LAG(v) OVER (PARTITION BY k ORDER BY id) AS p, "
    "LEAD(s, 2, 'zz') OVER (ORDER BY id) AS q FROM t WHERE x > 0",
    "SELECT id, MIN(v) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)"
    " AS m, SUM(x) OVER (ORDER BY k NULLS FIRST) AS q, ROW_NUMBER() OVER (ORDER BY id) AS n FROM t",
    "SELECT r, COUNT(*) AS n FROM (SELECT RANK() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST) "
    "AS r FROM t) AS q WHERE r <= 2 GROUP BY r",
    # groups that become empty, and a row of nothing
    "SELECT COUNT(*) AS n, SUM(x) AS s, MIN(s) AS m FROM t WHERE v > 5",
    "SELECT k, MIN(v) AS low, MAX(v) AS high, COUNT(DISTINCT s) AS d FROM t WHERE v > 3 GROUP BY k",
    "SELECT k FROM t GROUP BY k HAVING SUM(v) > 3 AND MIN(v) IS NOT NULL",
    "SELECT k, s, COUNT(*) AS n FROM t GROUP BY ROLLUP (k, s) HAVING COUNT(*) > 1",
]


def check_shapes(seed: int, batches: int, shapes: list[str]) -> None:
    rng, flow = random.Random(seed), ms.Flow("shapes")
    flow.sql(STREAMS)
    for name, sql in VIEWS.items():
        flow.sql(f"CREATE STREAMED VIEW {name} AS {sql}")
    for number, sql in enumerate(shapes):
        flow.sql(sql).sink(ms.Memory(), name=f"out{number}")
    oracle = Oracle()
    with Driver(flow, parallelism=1 + seed % 4) as driver:
        for number in range(batches):
            for table in ("t", "u"):
                records = batch(rng, table, rng.choice([0, 1, 3, 8]) if number else 6)
                driver.push(f"{table}_log_records", records)
                oracle.take(table, records)
            driver.step()
            if rng.random() < 0.2:
                driver.restart()
            for name, sql in VIEWS.items():
                oracle.db.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")
            for at, sql in enumerate(shapes):
                found, expected = integrated(driver.output(f"out{at}")), oracle.answer(sql)
                assert found == expected, (
                    f"seed {seed}, batch {number}: {sql}\n"
                    f"missing {expected - found}, too many {found - expected}"
                )
        assert not driver.dead


@pytest.mark.parametrize("seed", variants(range(40)))
def test_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_rows(monkeypatch)
    check_shapes(seed, batches=3 if seed == 0 else 20, shapes=SHAPES)


def test_equal_rows_meet_as_often_as_both_sides_have_them(monkeypatch: Any) -> None:
    """Seed 154 of the random queries: rows that were there twice counted four times."""
    sign_rows(monkeypatch)
    check_shapes(154, 3, SHAPES[:4])
