"""Statements of SQL: what they build is what Python's API builds, and it gives the same."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

import millstream as ms
from millstream.testing import Driver, run_in_process

TRADES = """
CREATE STREAM trades (
    symbol STRING, price DOUBLE, qty INT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (path = 'in/', format = 'json', follow = true);
"""


def flow_of(sql: str = "") -> ms.Flow:
    flow = ms.Flow("trades")
    flow.sql(TRADES + sql)
    return flow


def python_flow() -> tuple[ms.Flow, ms.Stream]:
    flow = ms.Flow("trades")
    schema = "symbol string, price double, qty int, ts timestamp"
    files = ms.Files("in/", "json", schema=schema, time="ts", lateness="5s", follow=True)
    return flow, flow.source(files, name="trades")


def pushed(*rows: tuple[str, float, int, int]) -> list[dict[str, object]]:
    return [
        {"symbol": s, "price": p, "qty": q, "ts": f"2026-01-05T09:{t // 60:02d}:{t % 60:02d}Z"}
        for s, p, q, t in rows
    ]


ROWS = pushed(("A", 10.0, 1, 0), ("B", 20.0, 2, 1), ("A", 30.0, 3, 59), ("A", 5.0, 1, 61))


def test_a_view_has_the_plan_that_python_makes() -> None:
    flow = flow_of(
        "CREATE STREAMED VIEW fast AS CSELECT STREAMED T.symbol, T.price * qty AS notional "
        "FROM trades T WHERE T.price > 10"
    )
    python, trades = python_flow()
    trades.where("price > 10").select("symbol", "price * qty AS notional").named("fast")
    assert flow.explain() == python.explain()


def test_windows_have_the_plan_that_python_makes() -> None:
    flow = flow_of(
        """
        CREATE MATERIALIZED VIEW busy AS
        SELECT symbol, window_start, window_end, COUNT(*) AS n, AVG(price) AS mean
        FROM HOP(trades, ts, INTERVAL '1' MINUTE, INTERVAL '10 minutes')
        WHERE qty > 0
        GROUP BY window_start, window_end, symbol HAVING COUNT(*) > 1
        """
    )
    python, trades = python_flow()
    keyed = trades.where("qty > 0").key_by("symbol", nulls="keep")
    window = keyed.window(ms.sliding("10m", "1m"))
    window.agg(n=ms.count(), mean=ms.mean("price")).where("n > 1").named("busy").view("busy")
    assert flow.explain() == python.explain()


@pytest.mark.parametrize(
    ("function", "window"),
    [
        ("TABLE(TUMBLE(TABLE trades, DESCRIPTOR(ts), INTERVAL '1' MINUTE))", ms.tumbling("1m")),
        ("TUMBLE(trades, ts, INTERVAL '90 seconds')", ms.tumbling("90s")),
        ("HOP(trades, ts, INTERVAL '1' HOUR, INTERVAL '1' MINUTE)", ms.hopping("1m", "1h")),
        ("SESSION(trades, ts, INTERVAL '5' MINUTE)", ms.session("5m")),
    ],
)
def test_table_functions_are_windows(function: str, window: object) -> None:
    flow = flow_of(
        f"CREATE STREAMED VIEW v AS SELECT window_start, window_end, COUNT(*) AS n "
        f"FROM {function} GROUP BY window_start, window_end"
    )
    assert [node.window for node in flow.nodes if hasattr(node, "window")] == [window]


def test_one_bound_of_a_window_says_the_other() -> None:
    flow = flow_of()
    windows = "TUMBLE(trades, ts, INTERVAL '1' MINUTE)"
    for name, sql in {
        "sums": f"SELECT SUM(qty) AS n, window_start FROM {windows} GROUP BY window_start",
        "keys": f"SELECT symbol, window_end FROM {windows} GROUP BY symbol, window_end",
    }.items():
        flow.sql(sql).sink(ms.Memory(), name=name)
    with Driver(flow) as driver:
        driver.push("trades", ROWS).end()
        sums = {(row["window_start"].minute, row["n"]) for row in driver.output("sums")}
        keys = sorted((row["symbol"], row["window_end"].minute) for row in driver.output("keys"))
        assert all(list(row) == ["symbol", "window_end"] for row in driver.output("keys"))
    assert sums == {(0, 6), (1, 1)}
    assert keys == [("A", 1), ("A", 2), ("B", 1)]
    with pytest.raises(ms.SqlError, match="add window_end to GROUP BY"):
        flow.sql(
            "SELECT COUNT(*) AS n FROM CUMULATE(trades, ts, INTERVAL '20' SECOND, "
            "INTERVAL '1' MINUTE) GROUP BY window_start"
        )


def test_functions_of_users_go_before_those_that_only_the_parser_knows() -> None:
    flow = flow_of()
    flow.function("regexp_count", lambda text, how: f"{how} {text}", returns="string")
    flow.sql("SELECT REGEXP_COUNT(symbol, 'at') AS t FROM trades").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("trades", ROWS[:1]).end()
        assert driver.output("out") == [{"t": "at A"}]


def test_cumulate_gives_every_step_of_a_window() -> None:
    flow = flow_of(
        """
        SELECT window_start, window_end, SUM(qty) AS total
        FROM CUMULATE(trades, ts, INTERVAL '20' SECOND, INTERVAL '1' MINUTE)
        GROUP BY window_start, window_end
        """
    )
    stream = flow.sql(
        "SELECT window_start, window_end, SUM(qty) AS total FROM "
        "CUMULATE(trades, ts, INTERVAL '20' SECOND, INTERVAL '1' MINUTE) "
        "GROUP BY window_start, window_end"
    )
    stream.sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("trades", ROWS).end()
        found = {
            (row["window_start"].minute, (row["window_end"] - row["window_start"]).seconds): row[
                "total"
            ]
            for row in driver.output("out")
        }
    assert found == {(0, 20): 3, (0, 40): 3, (0, 60): 6, (1, 20): 1, (1, 40): 1, (1, 60): 1}


def test_aggregates_of_expressions_with_a_filter() -> None:
    flow = flow_of()
    stream = flow.sql(
        """
        SELECT window_start, upper(symbol) AS s, SUM(price * qty) AS total,
               COUNT(*) FILTER (WHERE qty > 1) AS big, COUNT(DISTINCT qty) AS kinds,
               MAX(price) - MIN(price) AS spread
        FROM TUMBLE(trades, ts, INTERVAL '1' MINUTE)
        GROUP BY window_start, window_end, s
        """
    )
    stream.sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("trades", ROWS).end()
        rows = sorted(driver.output("out"), key=lambda row: (row["window_start"], row["s"]))
    assert [tuple(row.values())[1:] for row in rows] == [
        ("A", 100.0, 1, 2, 20.0),
        ("B", 40.0, 1, 1, 0.0),
        ("A", 5.0, 0, 1, 0.0),
    ]


def test_python_and_sql_mix() -> None:
    flow, trades = python_flow()
    trades.where("qty > 1").named("large")
    flow.function("dear", lambda price: price > 25, returns="boolean")
    view = flow.sql(
        """
        WITH some AS (SELECT symbol, price FROM large UNION ALL SELECT 'all', price FROM large)
        SELECT DISTINCT symbol, dear(price) AS dear FROM (SELECT * FROM some) AS s
        """
    )
    view.where("dear").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("trades", ROWS).end()
        rows = driver.output("out")
    assert sorted(row["symbol"] for row in rows) == ["A", "all"]


def test_the_event_time_behind_functions_and_unions() -> None:
    """A function may have changed it, so at() says where it is; streams put together have both."""
    flow, trades = python_flow()
    windows = "SELECT window_end, COUNT(*) AS n FROM TUMBLE({}, ts, INTERVAL '1' DAY) GROUP BY 1"
    recent = "SELECT symbol FROM {} WHERE ts > now() - INTERVAL '5' MINUTE"
    trades.select("ts", "symbol").map(dict, schema="ts timestamp, symbol string").named("same")
    for query in (windows, recent):
        with pytest.raises(ms.SqlError, match=r'behind a Python function .at\("ts"\)'):
            flow.sql(query.format("same"))
    placed = flow.sql("SELECT * FROM same").at("ts").named("placed")
    placed.union(trades.select("ts", "symbol")).named("both")
    for table in ("placed", "both"):
        flow.sql(recent.format(table))
        flow.sql(windows.format(table)).sink(ms.Memory(), name=f"of {table}")
    with Driver(flow) as driver:
        timed = [row | {"ts": datetime.fromisoformat(row["ts"])} for row in ROWS]
        driver.push("trades", timed).end()
        for table, times in (("placed", 1), ("both", 2)):
            assert sum(row["n"] for row in driver.output(f"of {table}")) == times * len(ROWS)


def test_a_stream_with_a_key_is_changes() -> None:
    """The paper's figure 2: cars that exceed the limit, in two batches."""
    flow = ms.Flow("cars")
    flow.sql(
        """
        CREATE STREAM CarsSpeedStream (CarID INT, Speed INT, PRIMARY KEY (CarID))
        WITH (source = 'http', port = 8401);
        CREATE STREAMED VIEW SpeedyCarsView AS
        CSELECT STREAMED CarID, Speed FROM CarsSpeedStream CSS WHERE CSS.Speed > 50;
        """
    )
    flow.sql("SELECT * FROM SpeedyCarsView").sink(ms.Memory(), name="out")
    with Driver(flow) as driver:

        def changes(*cars: tuple[int, int]) -> set[tuple[str, int, int]]:
            before = len(driver.output("out"))
            driver.push("CarsSpeedStream_records", [{"CarID": c, "Speed": s} for c, s in cars])
            driver.step()
            rows = driver.output("out")[before:]
            return {(row["op"], row["CarID"], row["Speed"]) for row in rows}

        assert changes((1, 40), (2, 67), (3, 55), (4, 74)) == {
            ("+", 3, 55),
            ("+", 2, 67),
            ("+", 4, 74),
        }
        assert changes((1, 72), (4, 45), (2, 80)) == {("+", 1, 72), ("-", 4, 74), ("u", 2, 80)}


def test_sinks_and_inserts(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("symbol,price\nA,1.5\nB,2.5\n")
    flow = ms.Flow("files")
    flow.sql(
        f"""
        CREATE STREAM trades (symbol STRING, price DOUBLE) WITH (path = '{tmp_path}/in.csv');
        CREATE STREAMED VIEW dear AS SELECT * FROM trades WHERE price > 2;
        CREATE SINK first FROM dear WITH (sink = 'jsonl', path = '{tmp_path}/first');
        CREATE SINK second WITH (sink = 'jsonl', path = '{tmp_path}/second');
        INSERT INTO second SELECT symbol FROM trades;
        """
    )
    run_in_process(flow, tmp_path / "ck")
    texts = {
        name: "".join(sorted(one.read_text() for one in (tmp_path / name).glob("*.jsonl")))
        for name in ("first", "second")
    }
    assert texts == {
        "first": '{"symbol":"B","price":2.5}\n',
        "second": '{"symbol":"A"}\n{"symbol":"B"}\n',
    }


def test_show_describe_explain_and_drop() -> None:
    flow = flow_of("CREATE STREAMED VIEW v AS SELECT symbol, ts, price * 2 AS p FROM trades")
    assert flow.sql("SHOW TABLES") == "trades: stream\nv: view"
    assert flow.sql("DESCRIBE v") == "symbol: string\nts: timestamp (event time)\np: double"
    nodes = flow.nodes
    assert "where p > 1 <- v" in flow.sql("EXPLAIN SELECT symbol FROM v WHERE p > 1")
    assert flow.nodes == nodes, "EXPLAIN adds nothing"
    with pytest.raises(ms.SqlError, match="'v' uses 'trades'; drop that first"):
        flow.sql("DROP STREAM trades")
    flow.sql("DROP VIEW v; DROP STREAM trades; DROP VIEW IF EXISTS v")
    assert not flow.nodes and flow.sql("SHOW TABLES") == ""


def test_a_text_is_all_or_nothing() -> None:
    flow, trades = python_flow()
    trades.where("qty > 1")
    nodes, names = flow.nodes, [node.name for node in flow.nodes]
    with pytest.raises(ms.SqlError):
        flow.sql(
            "CREATE STREAMED VIEW where AS SELECT symbol FROM trades; SELECT nothing FROM trades"
        )
    assert flow.nodes == nodes and [node.name for node in flow.nodes] == names
    assert flow.sql("SHOW VIEWS") == ""


def test_columns_of_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("symbol,price\nA,1.5\n")
    flow = ms.Flow("files")
    flow.sql(f"CREATE STREAM trades WITH (path = '{tmp_path}/in.csv')")
    flow.source(ms.Files(tmp_path / "in.csv"), name="same")
    flow.source(ms.Files(tmp_path / "later.csv"), name="later")
    assert flow.sql("DESCRIBE trades") == "symbol: string\nprice: double"
    assert flow.sql("DESCRIBE same") == "symbol: string\nprice: double"
    assert flow.sql("DESCRIBE later") == "columns are not known before records come"
    flow.sql("SELECT anything FROM later")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ("", "window_end, n"),
        ("WITH (emit = 'delta')", "window_end, n"),
        ("WITH (emit = 'early', every_event = '10s')", "window_end, n, revision, final"),
    ],
)
def test_a_view_says_when_results_leave(options: str, columns: str) -> None:
    flow = flow_of(
        f"CREATE STREAMED VIEW v {options} AS SELECT window_end, COUNT(*) AS n FROM "
        "TUMBLE(trades, ts, INTERVAL '1' MINUTE) GROUP BY window_start, window_end"
    )
    (window,) = (node for node in flow.nodes if hasattr(node, "emission"))
    assert window.emission.mode == (options.split("'")[1] if options else "final")
    described = flow.sql("DESCRIBE v").splitlines()
    assert ", ".join(line.partition(":")[0] for line in described) == columns


def test_options_of_windows_need_windows() -> None:
    with pytest.raises(ms.SqlError, match="for windows, and there is none"):
        flow_of("CREATE STREAMED VIEW v WITH (emit = 'delta') AS SELECT symbol FROM trades")


def test_records_have_the_bounds_of_their_windows() -> None:
    flow = flow_of()
    flow.sql(
        "SELECT price, window_start, window_end "
        "FROM HOP(trades, ts, INTERVAL '20' SECOND, INTERVAL '50' SECOND) WHERE window_end > ts"
    ).sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("trades", ROWS).end()
        found = [(r["price"], r["window_start"], r["window_end"]) for r in driver.output("out")]
    expected = []
    for row in ROWS:
        second = int(datetime.fromisoformat(str(row["ts"])).timestamp())
        starts = [s for s in range(second - 100, second + 1) if s % 20 == 0 and s > second - 50]
        expected += [(row["price"], s, s + 50) for s in starts]
    assert sorted((p, a.timestamp(), b.timestamp()) for p, a, b in found) == sorted(expected)
