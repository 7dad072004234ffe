"""Clauses one by one: the plan is the one that Python makes, and the answer is right."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.testing import Driver

TABLES = """
CREATE STREAM cars (id INT, make STRING, speed INT, PRIMARY KEY (id))
WITH (source = 'http', port = 8401);
CREATE STREAM roads (id INT, car INT, name STRING, PRIMARY KEY (id))
WITH (source = 'http', port = 8402);
"""
CARS = [
    {"id": 1, "make": "A", "speed": 60},
    {"id": 2, "make": "A", "speed": 40},
    {"id": 3, "make": "B", "speed": 70},
    {"id": 4, "make": None, "speed": 55},
]
ROADS = [
    {"id": 1, "car": 1, "name": "I-65"},
    {"id": 2, "car": 3, "name": "I-65"},
    {"id": 3, "car": 3, "name": "A-1"},
    {"id": 4, "car": None, "name": "A-2"},
]


def both() -> tuple[ms.Flow, ms.Flow, ms.Stream, ms.Stream]:
    """A flow for SQL, and the same one for Python with its two streams."""
    flow, python = ms.Flow("cars"), ms.Flow("cars")
    flow.sql(TABLES)
    answers = python.answers(TABLES)
    cars, roads = (one.stream for one in answers)
    assert cars is not None and roads is not None
    return flow, python, cars, roads


def answer(sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query over both tables."""
    flow = ms.Flow("cars")
    flow.sql(TABLES)
    flow.sql(sql).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("cars_records", CARS).push("roads_records", ROADS).step()
        rows = driver.output("out")
        assert not driver.dead
    assert {row.pop("op") for row in rows} <= {"+"}
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_join_has_the_plan_that_python_makes() -> None:
    flow, python, cars, roads = both()
    flow.sql(
        "CREATE STREAMED VIEW fast AS SELECT name, speed FROM cars c JOIN roads r ON c.id = r.car "
        "AND c.speed > 50"
    )
    fast = cars.where("speed > 50")  # before the join, which remembers less
    fast.join(roads, on=[("id", "car")]).select("name", "speed").named("fast").view("fast")
    assert flow.explain() == python.explain()


def test_a_join_in_where_has_the_same_plan() -> None:
    flow, python, cars, roads = both()
    flow.sql(
        "CREATE STREAMED VIEW fast AS CSELECT STREAMED name, speed FROM cars c, roads r "
        "WHERE c.id == r.car AND speed > 50"
    )
    fast = cars.where("speed > 50")  # before the join, which remembers less
    fast.join(roads, on=[("id", "car")]).select("name", "speed").named("fast").view("fast")
    assert flow.explain() == python.explain()


def test_membership_has_the_plan_that_python_makes() -> None:
    flow, python, cars, roads = both()
    flow.sql(
        "CREATE STREAMED VIEW v AS SELECT * FROM cars WHERE speed > 50 AND id IN "
        "(SELECT car FROM roads WHERE name = 'I-65')"
    )
    fast = cars.where("speed > 50")
    some = roads.where("name = 'I-65'")
    fast.join(some, on=[("id", "car")], how="semi").named("v").view("v")
    assert flow.explain() == python.explain()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT c.id, r.id AS road FROM cars c LEFT JOIN roads r ON c.id = r.car AND r.id > 2",
            [(1, None), (2, None), (3, 3), (4, None)],
        ),
        (
            "SELECT c.id, r.id AS road FROM cars c FULL JOIN roads r ON c.id = r.id AND c.id = car",
            [(1, 1), (2, None), (3, 3), (4, None), (None, 2), (None, 4)],
        ),
        ("SELECT id, make, name FROM cars JOIN roads USING (id) WHERE id < 3",
         [(1, "A", "I-65"), (2, "A", "I-65")]),
        ("SELECT a.id, b.id AS other FROM cars a JOIN cars b ON a.make = b.make WHERE a.id < b.id",
         [(1, 2)]),
        ("SELECT c.id FROM cars c CROSS JOIN roads r WHERE r.name = 'A-1' AND c.speed > r.id * 20",
         [(3,)]),
        ("SELECT id FROM cars WHERE id NOT IN (SELECT car FROM roads WHERE car > 1)",
         [(1,), (2,), (4,)]),
        ("SELECT id FROM cars WHERE id NOT IN (SELECT car FROM roads)", []),
        ("SELECT id FROM cars WHERE make NOT IN (SELECT name FROM roads)", [(1,), (2,), (3,)]),
        ("SELECT id FROM cars c WHERE NOT EXISTS (SELECT 1 FROM roads r WHERE r.car = c.id)",
         [(2,), (4,)]),
        ("SELECT id FROM cars c WHERE EXISTS (SELECT * FROM roads WHERE car = c.id AND "
         "name IN (SELECT name FROM roads WHERE id = 3))", [(3,)]),
        ("SELECT id FROM cars WHERE EXISTS (SELECT 1 FROM roads WHERE id > 99)", []),
        ("SELECT id FROM cars WHERE NOT EXISTS (SELECT 1 FROM roads WHERE id > 99) AND id < 2",
         [(1,)]),
        ("SELECT c.id FROM cars c LEFT SEMI JOIN roads r ON c.id = r.car AND r.name = 'A-1'",
         [(3,)]),
        ("SELECT c.id FROM cars c LEFT ANTI JOIN roads r ON c.id + 1 = r.car", [(1,), (3,), (4,)]),
        ("SELECT c.id FROM cars c JOIN roads r ON c.id = r.car AND r.car = c.id AND r.id = 1",
         [(1,)]),
        ("SELECT speed FROM cars AS car, roads AS r WHERE r.car = car.id AND r.id = 1", [(60,)]),
        ("SELECT speed FROM cars AS car WHERE EXISTS (SELECT 1 FROM roads WHERE car = car.id)",
         [(60,), (70,)]),
    ],
)  # fmt: skip
def test_joins(sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert answer(sql) == sorted(expected, key=repr)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT id FROM cars c JOIN roads r ON c.id = r.car", "'id' is ambiguous"),
        ("SELECT * FROM cars c JOIN roads c ON c.id = c.car", "c is there twice"),
        ("SELECT * FROM cars c LEFT JOIN roads r ON c.id = r.car AND c.id > 1", "LEFT JOIN takes"),
        ("SELECT * FROM cars c LEFT JOIN roads r", "say ON"),
        ("SELECT * FROM cars NATURAL JOIN roads", "NATURAL JOIN"),
        ("SELECT * FROM cars c JOIN roads r ON c.id = r.car", "two columns are called 'id'"),
        ("SELECT 1 FROM cars c JOIN roads r ON c.make = r.car AND c.id = r.nothing", "nothing"),
        ("SELECT id IN (SELECT id FROM roads) FROM cars", "IN (SELECT ...)"),
        ("SELECT id FROM cars WHERE id IN (SELECT id, car FROM roads)", "one column"),
        ("SELECT id FROM cars WHERE id IN (SELECT 1 FROM roads) OR id = 2", "IN (SELECT ...)"),
        (
            "SELECT id FROM cars c WHERE EXISTS (SELECT 1 FROM roads WHERE car > c.id)",
            "an equality",
        ),
        ("SELECT id FROM cars c WHERE id IN (SELECT c.id FROM roads GROUP BY car)", "around this"),
        ("SELECT soundex(make) FROM cars", "unsupported function 'soundex'"),
        ("SELECT date_format(make, 'x') FROM cars", "the pattern 'x' has 'x'"),
    ],
)
def test_joins_that_are_refused(sql: str, told: str) -> None:
    flow = ms.Flow("cars")
    flow.sql(TABLES)
    with pytest.raises(ms.SqlError) as caught:
        flow.sql(sql)
    assert told in str(caught.value)


def test_groups_have_the_plan_that_python_makes() -> None:
    flow, python, cars, _ = both()
    flow.sql(
        "CREATE STREAMED VIEW v AS SELECT make, COUNT(*) AS n, MAX(speed) AS top FROM cars "
        "GROUP BY make HAVING COUNT(*) > 1"
    )
    groups = cars.key_by("make", nulls="keep").agg(n=ms.count(), top=ms.max("speed"))
    groups.where("n > 1").named("v").view("v")
    assert flow.explain() == python.explain()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT make, SUM(speed) / COUNT(*) AS m FROM cars GROUP BY make",
         [("A", 50.0), ("B", 70.0), (None, 55.0)]),
        ("SELECT speed > 50 AS fast, COUNT(make) AS n FROM cars GROUP BY fast HAVING n > 1",
         [(True, 2)]),
        ("SELECT COUNT(*) AS n, SUM(speed) AS s FROM cars WHERE speed > 99", [(0, None)]),
        ("SELECT make FROM cars GROUP BY 1", [("A",), ("B",), (None,)]),
        ("SELECT make, COUNT(*) AS n FROM cars GROUP BY ROLLUP (make)",
         [("A", 2), ("B", 1), (None, 1), (None, 4)]),
        ("SELECT r.name, COUNT(*) AS n, MAX(c.speed) - 1 AS s FROM cars c JOIN roads r "
         "ON c.id = r.car GROUP BY r.name", [("A-1", 1, 69), ("I-65", 2, 69)]),
        ("SELECT id FROM cars INTERSECT SELECT car FROM roads", [(1,), (3,)]),
        ("SELECT car FROM roads EXCEPT SELECT id FROM cars WHERE id < 2", [(3,), (None,)]),
        ("SELECT id, make FROM cars UNION SELECT id, make FROM cars WHERE id = 1",
         [(1, "A"), (2, "A"), (3, "B"), (4, None)]),
        ("SELECT id FROM cars WHERE make IN "
         "(SELECT make FROM cars GROUP BY make HAVING COUNT(*) > 1)",
         [(1,), (2,)]),
        ("SELECT make, MIN(speed) AS a, COUNT(DISTINCT speed) AS d, "
         "AVG(speed) FILTER (WHERE speed > 50) AS f FROM cars GROUP BY make",
         [("A", 40, 2, 60.0), ("B", 70, 1, 70.0), (None, 55, 1, 55.0)]),
    ],
)  # fmt: skip
def test_groups_and_sets(sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert answer(sql) == sorted(expected, key=repr)


def test_views_of_the_paper() -> None:
    """Figures 3 and 4: a join and a group with HAVING, before and after a change."""
    flow = ms.Flow("paper")
    flow.sql(
        """
        CREATE STREAM speedy (CarID INT, fast BOOLEAN, PRIMARY KEY (CarID))
        WITH (source = 'http', port = 8401);
        CREATE STREAM road (CarID INT, PRIMARY KEY (CarID)) WITH (source = 'http', port = 8402);
        CREATE STREAM makes (CarID INT, Make STRING, PRIMARY KEY (CarID))
        WITH (source = 'http', port = 8403);
        CREATE STREAMED VIEW joined AS CSELECT STREAMED SC.CarID FROM speedy SC, road S65
        WHERE SC.CarID == S65.CarID AND fast;
        CREATE STREAMED VIEW counted AS CSELECT STREAMED Make, COUNT(CarID) AS n FROM makes
        WHERE Make IS NOT NULL GROUP BY Make HAVING COUNT(CarID) > 2;
        """
    )
    for name in ("joined", "counted"):
        flow.sql(f"SELECT * FROM {name}").sink(ms.Memory(), name=f"{name}_out")
    with Driver(flow) as driver:
        seen = {"joined": 0, "counted": 0}

        def told(name: str) -> set[tuple[Any, ...]]:
            rows = driver.output(f"{name}_out")[seen[name] :]
            seen[name] += len(rows)
            return {(row.pop("op"), *row.values()) for row in rows}

        def speedy(*cars: int, fast: bool = True) -> None:
            driver.push("speedy_records", [{"CarID": car, "fast": fast} for car in cars])

        def on_road(*cars: int) -> None:
            driver.push("road_records", [{"CarID": car} for car in cars])

        def made(makes: dict[int, str | None]) -> None:
            rows = [{"CarID": car, "Make": make} for car, make in makes.items()]
            driver.push("makes_records", rows)

        speedy(1, 2, 3, 4, 7)
        on_road(1, 2, 3, 9)
        made(dict(enumerate("AAACBBBBD")))
        driver.step()
        assert told("joined") == {("+", 1), ("+", 2), ("+", 3)}
        assert told("counted") == {("+", "A", 3), ("+", "B", 4)}
        speedy(1, fast=False)
        on_road(7, 4)
        made({0: None, 4: None, 20: "C", 21: "C"})
        driver.step()
        assert told("joined") == {("-", 1), ("+", 7), ("+", 4)}
        assert told("counted") == {("-", "A", 3), ("+", "C", 3), ("u", "B", 3)}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id, speed FROM cars ORDER BY speed DESC LIMIT 2", [(1, 60), (3, 70)]),
        ("SELECT make FROM cars ORDER BY make LIMIT 1", [(None,)]),
        ("SELECT make, COUNT(*) AS n FROM cars GROUP BY make ORDER BY COUNT(*) DESC, 1 LIMIT 1",
         [("A", 2)]),
        ("SELECT id FROM cars UNION ALL SELECT car FROM roads ORDER BY id DESC LIMIT 2",
         [(3,), (4,)]),
        ("SELECT id, n FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY make ORDER BY speed) AS n "
         "FROM cars) WHERE n <= 2 AND id < 4", [(1, 2), (2, 1), (3, 1)]),
        ("WITH r AS (SELECT *, ROW_NUMBER() OVER (ORDER BY speed DESC) AS n FROM cars) "
         "SELECT id FROM r WHERE n = 2", [(1,)]),
        ("SELECT * FROM (SELECT id, speed % 20 AS m, ROW_NUMBER() OVER (PARTITION BY speed % 20 "
         "ORDER BY id) AS n FROM cars) AS q WHERE 1 >= n", [(1, 0, 1), (3, 10, 1), (4, 15, 1)]),
    ],
)  # fmt: skip
def test_first_rows(sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert answer(sql) == sorted(expected, key=repr)


def test_first_rows_have_the_plan_that_python_makes() -> None:
    flow, python, cars, _ = both()
    flow.sql(
        "CREATE STREAMED VIEW v AS SELECT id, make, speed FROM (SELECT *, ROW_NUMBER() OVER "
        "(PARTITION BY make ORDER BY speed DESC) AS n FROM cars) WHERE n <= 3"
    )
    top = cars.key_by("make", nulls="keep").top(3, by="speed DESC")
    top.select("id", "make", "speed").named("v").view("v")
    assert flow.explain() == python.explain()


def test_a_join_by_time_forgets() -> None:
    flow = ms.Flow("times")
    for name in ("a", "b"):
        schema = f"{name} int, ts timestamp"
        flow.source(ms.Generator(list, schema=schema, time="ts"), name=name)
    flow.sql(
        "SELECT a.a, b.b FROM a JOIN b ON a = b AND b.ts BETWEEN a.ts - INTERVAL '5' SECOND AND "
        "a.ts + INTERVAL '1 minute'"
    )
    python = ms.Flow("times")
    a, b = (
        python.source(ms.Generator(list, schema=f"{n} int, ts timestamp", time="ts"), name=n)
        for n in ("a", "b")
    )
    a.join(b, on=[("a", "b")], between=("-5s", "1m")).select("a", "b")
    assert flow.explain() == python.explain()


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT id FROM cars ORDER BY id", "ORDER BY goes with LIMIT"),
        ("SELECT id FROM cars LIMIT 3", "LIMIT goes with ORDER BY"),
        ("SELECT id FROM cars ORDER BY id LIMIT 0", "a whole number from 1"),
        ("SELECT id FROM cars ORDER BY id LIMIT 2 OFFSET 2", "OFFSET"),
        ("SELECT id, NTILE(2) OVER (ORDER BY id) AS n FROM cars", "NTILE is not supported OVER"),
        ("SELECT id, RANK() OVER (PARTITION BY id) AS n FROM cars", "RANK needs ORDER BY in OVER"),
        ("SELECT SUM(id) OVER (ORDER BY id RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM cars",
         "this frame is not supported"),
        ("SELECT make, RANK() OVER (ORDER BY COUNT(*)) AS n FROM cars GROUP BY make",
         "a query around the groups"),
        ("SELECT id FROM cars WHERE RANK() OVER (ORDER BY id) < 3", "stand in SELECT only"),
        ("SELECT LAG(id) IGNORE NULLS OVER (ORDER BY id) FROM cars", "IGNORE NULLS is not"),
        ("SELECT id FROM cars WHERE id = ANY (SELECT id FROM cars)", "ANY (...) is not supported"),
        ("SELECT id FROM cars WHERE id > ALL (SELECT id FROM cars)", "ALL (...) is not supported"),
        ("SELECT id FROM cars WHERE id = (SELECT id FROM cars)", "gives one value has an"),
        ("SELECT * FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY id) AS n FROM cars) "
         "WHERE n < 3",
         "needs ORDER BY"),
    ],
)  # fmt: skip
def test_orders_that_are_refused(sql: str, told: str) -> None:
    flow = ms.Flow("cars")
    flow.sql(TABLES)
    with pytest.raises(ms.SqlError) as caught:
        flow.sql(sql)
    assert told in str(caught.value)


def test_rows_of_the_last_minutes() -> None:
    """The paper's parking lot: cars that were there within the last five minutes, per lot."""
    table = "(car INT, lot STRING, ts TIMESTAMP) WITH (source = 'http', port = 8401, time = 'ts')"
    flow, python = ms.Flow("lots"), ms.Flow("lots")
    for one in (flow, python):
        one.sql(f"CREATE STREAM parked {table}")
    flow.sql(
        "CREATE STREAMED VIEW v AS SELECT lot, COUNT(*) AS n FROM parked WHERE car > 0 AND "
        "ts > now() - INTERVAL '5' MINUTE GROUP BY lot"
    )
    parked = python.sql("CREATE STREAM IF NOT EXISTS parked (car INT)").where("car > 0")
    parked.last("5m").key_by("lot", nulls="keep").agg(n=ms.count()).named("v").view("v")
    assert flow.explain() == python.explain()
    flow.sql("SELECT lot, n FROM v").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        for minute, car in ((0, 1), (1, 2), (4, 3), (7, 4)):
            at = f"2026-01-05T09:{minute:02d}:00Z"
            driver.push("parked", [{"car": car, "lot": "A", "ts": at}]).step()
        told = [(row["op"], row["n"]) for row in driver.output("out")]
    assert told == [("+", 1), ("u", 2), ("u", 3), ("u", 2)]


@pytest.mark.parametrize(
    "condition",
    ["speed > now() - INTERVAL '5' MINUTE", "now() > 1", "now() - INTERVAL '1' DAY >= speed"],
)
def test_now_stands_beside_event_time_only(condition: str) -> None:
    flow = ms.Flow("cars")
    flow.sql(TABLES)
    with pytest.raises(ms.SqlError, match="now"):
        flow.sql(f"SELECT id FROM cars WHERE {condition}")


@pytest.mark.parametrize(
    "group",
    ["ROLLUP(name)", "ROLLUP(1)", "make WITH ROLLUP", "make, speed GROUPING SETS (make, ())"],
)
def test_sets_of_keys_by_alias_place_and_spark_s_other_words(group: str) -> None:
    """DuckDB has no such words; `name` stands for make, and is null where all are summed up."""
    found = answer(f"SELECT make AS name, SUM(speed) AS s FROM cars GROUP BY {group}")
    assert sorted(found, key=str) == [("A", 100), ("B", 70), (None, 225), (None, 55)]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT id FROM cars GROUP BY CUBE(id, make, speed, id+1, id+2, id+3, id+4)", "128 sets"),
        ("SELECT make FROM cars GROUP BY GROUPING SETS (ROLLUP(make), id)", "within another"),
        ("SELECT COUNT() AS n FROM cars", "COUNT of what"),
        ("SELECT LAG(speed, -1) OVER (ORDER BY id) AS s FROM cars", "a constant number of rows"),
        ("SELECT LAG(speed, 1 + 1) OVER (ORDER BY id) AS s FROM cars", "a constant number of rows"),
        ("SELECT SUM(speed) OVER (ORDER BY id ROWS 1 + 1 PRECEDING) AS s FROM cars", "this frame"),
        ("SELECT SUM(speed) OVER (ORDER BY id ROWS 9223372036854775807 PRECEDING) AS s FROM cars",
         "this frame"),
        ("SELECT ts FROM seen WHERE ts > now() - INTERVAL -5 MINUTE", "expected an interval"),
        ("SELECT window_end FROM TUMBLE(seen, ts, INTERVAL -5 MINUTE) GROUP BY 1", "an interval"),
        ("SELECT id FROM cars WHERE id > (SELECT FETCH (id) FROM roads)", "needs columns"),
        ("SELECT (SELECT MAX(id) FROM roads WHERE car = cars.id ORDER BY 1 LIMIT 1) AS m FROM cars",
         "no HAVING, ORDER BY or LIMIT"),
        ("SELECT id FROM ROWS FROM (range(1, 2)) AS t", "expected a stream, a view or a query"),
        ("SELECT DISTINCT c.id FROM cars c JOIN roads r ON c.id = r.car ORDER BY r.id LIMIT 1",
         "ORDER BY of SELECT DISTINCT"),
    ],
)  # fmt: skip
def test_what_would_be_answered_wrongly_is_refused(sql: str, told: str) -> None:
    flow = ms.Flow("cars")
    flow.sql(TABLES)
    flow.sql("CREATE STREAM seen (ts TIMESTAMP) WITH (source = 'http', port = 8403, time = 'ts')")
    with pytest.raises(ms.SqlError, match=told):
        flow.sql(sql)


def test_what_star_leaves_out_by_its_table() -> None:
    over = "FROM cars c JOIN roads r ON c.id = r.car"
    found = answer(f"SELECT * EXCEPT (c.id, R.ID, make) {over}")
    assert sorted(found) == [(60, 1, "I-65"), (70, 3, "A-1"), (70, 3, "I-65")]
    assert sorted(answer(f"SELECT * EXCEPT (c.id, make, speed, car) {over}")) == [
        (1, "I-65"), (2, "I-65"), (3, "A-1")
    ]  # fmt: skip
    for left_out, told in (("c.nam", "no column 'c.nam'"), ("id, car, name", "leaves no column")):
        flow = ms.Flow("cars")
        flow.sql(TABLES)
        with pytest.raises(ms.SqlError, match=told):
            flow.sql(f"SELECT * EXCEPT ({left_out}) FROM roads")
