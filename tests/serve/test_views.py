"""Views: what is read is what the query says of all records so far, however it is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.ops.expressions import parse_bounded, parse_condition
from millstream.serve.changes import find_changes
from millstream.serve.following import Follower
from millstream.serve.moves import moves
from millstream.serve.slates import Snapshot, Unknown
from millstream.serve.views import BadRequest, place_of, read_all, read_page
from millstream.testing import Driver, reference
from tests.variants import variants

CARS = """
    CREATE STREAM cars (id INT, make STRING, speed INT, PRIMARY KEY (id))
    WITH (source = 'http', port = 8401);
    CREATE STREAMED VIEW fast AS SELECT id, make, speed FROM cars WHERE speed > 50;
    CREATE MATERIALIZED VIEW makes AS SELECT make, COUNT(*) AS n FROM fast GROUP BY make;
"""
Rows = Counter[tuple[Any, ...]]


def cars() -> ms.Flow:
    flow = ms.Flow("cars")
    flow.sql(CARS)
    return flow


def counted(rows: list[dict[str, Any]]) -> Rows:
    return Counter(tuple(row.values()) for row in rows)


def rows_in(snapshot: Snapshot, view: str) -> Rows:
    return counted(read_all(snapshot, snapshot.view(view)).to_pylist())


def pages(snapshot: Snapshot, view: str, limit: int, **more: Any) -> Iterator[list[dict[str, Any]]]:
    after = None
    while True:
        page = read_page(snapshot, snapshot.view(view), after=after, limit=limit, **more)
        yield page.rows.to_pylist()
        if page.next is None:
            return
        after = place_of(page.next)


@pytest.mark.parametrize("parallelism", variants([3, 1]))
def test_a_view_is_the_answer_after_every_batch(tmp_path: Path, parallelism: int) -> None:
    made, speeds = random.Random(11), dict[int, tuple[str, int]]()
    with Driver(cars(), checkpoint=tmp_path / "ck", parallelism=parallelism) as driver:
        follower = Follower(tmp_path / "ck")
        for number in range(24):
            some = [(made.randrange(30), made.choice("ab"), made.randrange(100)) for _ in range(9)]
            speeds |= {car: (make, speed) for car, make, speed in some}
            names = ("id", "make", "speed")
            driver.push("cars_records", [dict(zip(names, one, strict=True)) for one in some]).step()
            if number == 12:
                driver.restart()
            if number == 18:
                driver.reshard(5)
            follower.advance()
            fast = Counter((i, make, v) for i, (make, v) in speeds.items() if v > 50)
            assert rows_in(follower.current, "fast") == fast
            makes = Counter(make for _, make, _ in fast)
            assert rows_in(follower.current, "makes") == Counter(makes.items())
            for limit in (1, 7, 1000) if number % 8 == 7 else ():
                read = [row for page in pages(follower.current, "fast", limit) for row in page]
                assert counted(read) == fast


@pytest.mark.parametrize("where", [None, "speed > 70", "make = 'a'"])
def test_changes_since_any_batch_lead_to_the_view(tmp_path: Path, where: str | None) -> None:
    made = random.Random(5)
    condition = None if where is None else parse_condition(where)

    def seen(snapshot: Snapshot) -> Rows:
        some = pages(snapshot, "fast", 100, where=condition)
        return counted([row for page in some for row in page])

    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        follower = Follower(tmp_path / "ck", eager=True)
        before: list[Snapshot] = []
        for _ in range(16):
            some = [
                {"id": made.randrange(20), "make": made.choice("ab"), "speed": made.randrange(100)}
                for _ in range(6)
            ]
            driver.push("cars_records", some).step()
            follower.advance()
            now = follower.current
            for old in before[-4:]:
                rows, ops = seen(old), list[str]()
                view = now.view("fast")
                for move in moves(old, view, find_changes(old, now, view), condition):
                    ops.append(move.op)
                    gone = move.row if move.op == "-" else move.before
                    if gone is not None:
                        rows[tuple(gone.values())] -= 1
                    if move.op != "-":
                        rows[tuple(move.row.values())] += 1
                    if move.op == "u":
                        assert gone is not None and gone["id"] == move.row["id"]
                assert +rows == seen(now) and min(rows.values(), default=0) >= 0
                assert ops == sorted(ops, key="-u+".index)
            before.append(now)


def test_equal_rows_are_given_as_often_as_they_are_there(tmp_path: Path) -> None:
    flow = ms.Flow("copies")
    numbers = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, n long"), name="in")
    numbers.flat_map(lambda row: [{"n": 7}] * row["n"]).view("copies")
    with Driver(flow, checkpoint=tmp_path / "ck") as driver:
        at = "2026-01-01T00:00:0{}Z".format
        driver.push("in", [{"ts": at(n), "n": n} for n in range(5)]).step()
        snapshot = Follower(tmp_path / "ck").current
        assert rows_in(snapshot, "copies") == Counter({(7,): 10})
        for limit in (1, 3, 4, 10, 11):
            found = list(pages(snapshot, "copies", limit))
            assert sum(map(len, found)) == 10 and max(map(len, found)) <= limit


def test_a_small_page_ends_early_and_goes_on(tmp_path: Path) -> None:
    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        many = [{"id": n, "make": "x" * 1000, "speed": 99} for n in range(300)]
        driver.push("cars_records", many).step()
        snapshot = Follower(tmp_path / "ck").current
        found = list(pages(snapshot, "fast", 1000, size=20_000))
        assert len(found) > 10 and sum(map(len, found)) == 300
        five = parse_condition("id = 5")
        rare = list(pages(snapshot, "fast", 10, where=five, size=20_000, seconds=0.0))
        assert [row["id"] for page in rare for row in page] == [5] and len(rare) > 1


def test_views_are_read_as_tables(tmp_path: Path) -> None:
    import duckdb

    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        view = ms.views(tmp_path / "ck", "FAST")
        assert view.batch == -1 and view.arrow().column_names == ["id", "make", "speed"]
        driver.push("cars_records", [{"id": n, "make": "a", "speed": 50 + n} for n in range(4)])
        driver.step()
        assert sorted(row["speed"] for row in view) == [51, 52, 53] and view.batch == 0
        assert view.pandas()["speed"].sum() == 156
        connection = duckdb.connect()
        assert view.duckdb(connection).aggregate("max(speed)").fetchall() == [(53,)]
        with pytest.raises(Unknown, match="there is no view 'fats'; did you mean 'fast'"):
            ms.views(tmp_path / "ck", "fats")


def test_a_query_over_views_is_answered_as_they_are(tmp_path: Path) -> None:
    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        some = [(1, "a", 60), (2, "b", 70), (3, "a", 80), (4, "a", 10)]
        driver.push(
            "cars_records", [{"id": i, "make": make, "speed": v} for i, make, v in some]
        ).step()

        def ask(sql: str) -> list[tuple[Any, ...]]:
            return [tuple(row.values()) for row in ms.query(tmp_path / "ck", sql).to_pylist()]

        assert ask("SELECT id, speed FROM fast ORDER BY speed DESC") == [(3, 80), (2, 70), (1, 60)]
        assert ask("SELECT id FROM fast ORDER BY id LIMIT 1 OFFSET 1") == [(2,)]
        joined = "SELECT f.id, n FROM fast f JOIN makes m ON f.make = m.make WHERE n > 1 ORDER BY 1"
        assert ask(joined) == [(1, 2), (3, 2)]
        assert ask("SELECT COUNT(*) AS n FROM fast WHERE speed > 1000") == [(0,)]
        with pytest.raises(ms.SqlError, match="did you mean speed"):
            ask("SELECT sped FROM fast")
        with pytest.raises(ms.SqlError, match="only queries"):
            ask("DROP VIEW fast")
        with pytest.raises(ms.RunError, match="divide by zero"):
            ask("SELECT id / 0 FROM fast")


def test_who_asks_for_a_view_that_is_not_kept_is_told_so(tmp_path: Path) -> None:
    flow = ms.Flow("records")
    flow.sql("""
        CREATE STREAM trades (symbol STRING, price INT) WITH (source = 'http', port = 8401);
        CREATE STREAMED VIEW dear AS SELECT * FROM trades WHERE price > 5;
        CREATE MATERIALIZED VIEW counts AS SELECT symbol, COUNT(*) AS n FROM dear GROUP BY symbol;
    """)
    with Driver(flow, checkpoint=tmp_path / "ck") as driver:
        driver.push("trades", [{"symbol": "A", "price": 7}]).step()
        assert ms.query(tmp_path / "ck", "SELECT n FROM counts").to_pylist() == [{"n": 1}]
        for name in ("dear", "Trades"):
            with pytest.raises(ms.SqlError, match=r"are not kept.*MATERIALIZED.*kept are: counts"):
                ms.query(tmp_path / "ck", f"SELECT * FROM {name}")
        with pytest.raises(ms.SqlError, match="did you mean counts"):
            ms.query(tmp_path / "ck", "SELECT * FROM count")
        with pytest.raises(ms.SqlError, match="no statement DELETE; there are SELECT\n"):
            ms.query(tmp_path / "ck", "DELETE FROM counts")


def test_nulls_are_ordered_as_in_spark(tmp_path: Path) -> None:
    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        some = [(1, "b"), (2, None), (3, "a")]
        driver.push("cars_records", [{"id": i, "make": m, "speed": 99} for i, m in some]).step()
        for order, expected in (
            ("make", [2, 3, 1]),
            ("make DESC", [1, 3, 2]),
            ("make NULLS LAST", [3, 1, 2]),
            ("make DESC NULLS FIRST", [2, 1, 3]),
        ):
            found = ms.query(tmp_path / "ck", f"SELECT id, make FROM fast ORDER BY {order}")
            assert found.column("id").to_pylist() == expected, order


def test_which_views_are_kept(tmp_path: Path) -> None:
    flow = ms.Flow("kept")
    flow.sql("""
        CREATE STREAM t (id INT, v INT, PRIMARY KEY (id)) WITH (source = 'http', port = 8401);
        CREATE STREAM r (id INT) WITH (source = 'http', port = 8402);
        CREATE STREAMED VIEW changes AS SELECT id FROM t;
        CREATE STREAMED VIEW not_kept WITH (kept = false) AS SELECT id FROM t;
        CREATE STREAMED VIEW records AS SELECT id FROM r;
        CREATE MATERIALIZED VIEW all_records AS SELECT id FROM r;
        CREATE STREAMED VIEW wanted WITH (kept = true) AS SELECT id FROM r;
    """)
    with Driver(flow, checkpoint=tmp_path / "ck"):
        assert set(Follower(tmp_path / "ck").current.views) == {"changes", "all_records", "wanted"}
    with pytest.raises(ms.SqlError, match="expected TRUE or FALSE"):
        flow.sql("CREATE STREAMED VIEW v WITH (kept = 'yes') AS SELECT id FROM r")


def test_another_query_under_the_same_name_is_refused(tmp_path: Path) -> None:
    with Driver(cars(), checkpoint=tmp_path / "ck") as driver:
        driver.push("cars_records", [{"id": 1, "make": "a", "speed": 60}]).step()
    other = ms.Flow("cars")
    other.sql(CARS.replace("speed > 50", "speed > 60"))
    with pytest.raises(ms.CheckpointError, match=r"fast.view.*query was"):
        Driver(other, checkpoint=tmp_path / "ck")


def test_the_reference_knows_that_a_view_gives_nothing_on() -> None:
    flow = ms.Flow("both")
    source = flow.source(ms.Generator(tuple, time="ts", schema="ts timestamp, n long"), name="in")
    source.view("seen").where("n > 1").sink(ms.Memory(), name="out")
    rows = [{"ts": f"2026-01-01T00:00:0{n}Z", "n": n} for n in range(4)]
    assert [row["n"] for row in reference(flow, {"in": rows})["out"]] == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "name RLIKE '(a+)+b'",
        "replace(name, 'a', 'aaaaaaaa') = 'b'",
        "repeat(name, 1000000) = 'b'",
        "n = (SELECT 1)",
        "name LIKE name",
        "(" * 500 + "n" + ")" * 500,
        "NOT " * 400 + "n",
        "n >",
        "",
    ],
)
def test_conditions_of_strangers_take_a_known_time(text: str) -> None:
    with pytest.raises(ms.ConfigError):
        parse_bounded(text)


def test_a_place_is_what_a_page_gave() -> None:
    for text in ("", "x", "0" * 31, "0" * 32 + "-x", "G" * 32, "0" * 32 + "-²"):
        with pytest.raises(BadRequest):
            place_of(text)
