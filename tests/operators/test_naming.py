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
RANKED = "SELECT *, ROW_NUMBER() OVER (ORDER BY v DESC, id) AS nth FROM t"


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
        ("SELECT id, SUM(v) OVER (ORDER BY id) AS n FROM t", True, [(1, 2), (2, 3)]),
        ("SELECT g, SUM(v) OVER (ORDER BY id) AS n FROM t", False, [("a", 2), ("b", 3)]),
        ("SELECT t.id, v FROM t, (SELECT DISTINCT k, w FROM s) d", False, [(1, 2), (2, 1)]),
        (
            "SELECT t.id, v FROM t, (SELECT k FROM s EXCEPT SELECT n FROM r) d",
            False,
            [(1, 2), (2, 1)],
        ),
        (
            "SELECT t.id, v FROM t, (SELECT n FROM r ORDER BY n LIMIT 2) d",
            False,
            [(1, 2), (2, 1)] * 2,
        ),
        (f"SELECT v, nth FROM ({RANKED}) WHERE nth <= 2", True, [(2, 1), (1, 2)]),
        (f"SELECT v FROM ({RANKED}) WHERE nth <= 2", False, [(2,), (1,)]),
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


def applied(flow: ms.Flow, *names: str) -> list[tuple[Any, ...]]:
    """The table that a reader has who finds rows by these columns, and by nothing else."""
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    with Driver(flow) as driver:
        for batch in ([(1, 10), (2, 20), (3, 30)], [(2, 5), (3, 30)], [(4, 25)]):
            told = len(driver.output("out"))
            driver.push("t_records", [{"id": i, "v": v, "g": "a"} for i, v in batch]).step()
            rows = [dict(row) for row in driver.output("out")[told:]]
            for row in sorted(rows, key=lambda row: row["op"] != "-"):
                name, op = tuple(row[one] for one in names), row.pop("op")
                if op == "-":
                    assert table.pop(name) == row
                else:
                    assert (name in table) is (op == "u")
                    table[name] = row
    return sorted(tuple(row.values()) for row in table.values())


def test_a_number_in_a_group_names_its_row() -> None:
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    best = flow.sql("SELECT g, id, v FROM t").key_by("g").top(2, by="v", rank="nth")
    best.sink(ms.Memory(), name="out")
    assert applied(flow, "g", "nth") == [("a", 3, 30, 1), ("a", 4, 25, 2)]


def test_functions_over_rows_are_found_by_the_key_of_the_rows() -> None:
    """Expected by hand, from what SQL says of LAG."""
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    flow.sql("SELECT id, LAG(v) OVER (ORDER BY v) AS b FROM t").sink(ms.Memory(), name="out")
    assert applied(flow, "id") == [(1, 5), (2, None), (3, 25), (4, 10)]


def test_what_functions_leave_out_names_no_row() -> None:
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    given = flow.sql("SELECT id, v FROM t")
    given.map(lambda row: {"v": row["v"]}).sink(ms.Memory(), name="out")
    assert [row[-1] for row in told(flow)] == ["+", "+", "-", "+"]


def test_what_functions_pass_on_names_it() -> None:
    flow = ms.Flow("naming")
    flow.sql(TABLES)
    given = flow.sql("SELECT id, v FROM t")
    given.map(lambda row: {"id": row["id"], "v": -row["v"]}).sink(ms.Memory(), name="out")
    assert [row[-1] for row in told(flow)] == ["+", "+", "u"]
