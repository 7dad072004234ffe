"""A `u` is given only where a reader can find the row that it replaces."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

TABLES = """
    CREATE STREAM t (id INT, v INT, g STRING, PRIMARY KEY (id)) WITH (source = 'http', port = 8401);
    CREATE STREAM s (k INT, w INT, PRIMARY KEY (k)) WITH (source = 'http', port = 8402);
    CREATE STREAM r (id INT, n INT) WITH (source = 'http', port = 8403);
"""


def told(flow: ms.Flow) -> list[tuple[Any, ...]]:
    with Driver(flow) as driver:
        driver.push("r", [{"id": 1, "n": 7}, {"id": 1, "n": 7}])
        driver.push("s_records", [{"k": 1, "w": 5}])
        driver.push("t_records", [{"id": n, "v": 1, "g": "a"} for n in (1, 2)]).step()
        driver.push("t_records", [{"id": 1, "v": 2, "g": "a"}, {"id": 2, "v": 1, "g": "b"}]).step()
        return [tuple(row.values()) for row in driver.output("out")]


@pytest.mark.parametrize(
    ("query", "updates", "left"),
    [
        ("SELECT id, v FROM t", True, [(1, 2), (2, 1)]),
        ("SELECT v, id AS k FROM t WHERE v > 0", True, [(2, 1), (1, 2)]),
        ("SELECT v FROM t", False, [(2,), (1,)]),
        ("SELECT id + 1 AS id, v FROM t", False, [(2, 2), (3, 1)]),
        ("SELECT g, COUNT(*) AS n FROM t GROUP BY g", True, [("a", 1), ("b", 1)]),
        ("SELECT COUNT(*) AS n FROM t GROUP BY g", False, [(1,), (1,)]),
        ("SELECT SUM(v) AS n FROM t", True, [(3,)]),
        ("SELECT id, v, w FROM t JOIN s ON t.id = s.k", True, [(1, 2, 5)]),
        ("SELECT v, w FROM t JOIN s ON t.id = s.k", False, [(2, 5)]),
        ("SELECT t.id, n, v FROM r JOIN t ON r.id = t.id", False, [(1, 7, 2)] * 2),
        ("SELECT id, v FROM t UNION ALL SELECT id, v FROM t", False, [(1, 2), (2, 1)] * 2),
        ("SELECT id, v FROM t WHERE id IN (SELECT k FROM s)", True, [(1, 2)]),
    ],
)
def test_sql(query: str, updates: bool, left: list[tuple[Any, ...]]) -> None:
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    flow.sql(query).sink(ms.Memory(), name="out")
    rows = told(flow)
    assert ("u" in {row[-1] for row in rows}) is updates
    if not updates:  # then rows by themselves say everything
        count = Counter[tuple[Any, ...]]()
        for *row, op in rows:
            count[tuple(row)] += 1 if op == "+" else -1
        assert +count == Counter(left) and min(count.values()) >= 0


def test_what_functions_give_is_believed_to_have_the_key() -> None:
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    flow.sql("SELECT id, v FROM t").map(lambda row: {"v": row["v"]}).sink(ms.Memory(), name="out")
    assert [row[-1] for row in told(flow)] == ["+", "+", "u"]
