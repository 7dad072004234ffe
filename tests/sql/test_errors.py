"""What is wrong in a text of SQL is told with its place; what is not supported by its name."""

from __future__ import annotations

import pytest
from pyspark import cloudpickle

import millstream as ms
from tests.sql.test_statements import flow_of

PLACED = [
    ("SELECT symbol,\n  pric FROM trades", 2, 3, "unknown column 'pric'; did you mean price?"),
    ("SELECT t.pric FROM trades t", 1, 8, "t has no column 'pric'; did you mean price?"),
    ("SELECT x.price FROM trades t", 1, 8, "there is no table 'x' in FROM"),
    ("SELECT * FROM trade", 1, 15, "there is no stream or view 'trade'; did you mean trades?"),
    ("SELECT foo(price) FROM trades", 1, 8, "unsupported function 'foo'"),
    ("SELECT symbol, SUMM(price) FROM trades GROUP BY symbol", 1, 16, "did you mean sum"),
    ("SELECT 1 FROM trades WHERE price", 1, 28, "a condition must be true or false, not double"),
    ("SELECT symbol AND true FROM trades WHERE price AND true", 1, 42, "boolean is needed"),
    ("SELEC 1", 1, 1, "there is no statement SELEC; did you mean SELECT?"),
    ("SELECT symbol FROM trades WHERE", 1, 27, "cannot read this"),
    ("SELECT price FROM trades UNION ALL SELECT price, qty FROM trades", 1, 8, "the same number"),
    ("SELECT symbol FROM trades UNION SELECT price FROM trades", 1, 8, "do not go together"),
    ("SELECT price, price FROM trades", 1, 8, "two columns are called 'price'"),
    ("CREATE STREAM x (a INT, b FOO) WITH (path='i')", 1, 25, "'FOO' where a type should be"),
    ("CREATE STREAM x (a INT) WITH (path='i', lateness=5)", 1, 41, "expected a duration"),
    ("CREATE STREAM x (a INT) WITH (pathh='i')", 1, 25, "say which source"),
    ("CREATE STREAM x (a INT) WITH (source='fles')", 1, 31, "did you mean files?"),
    ("CREATE STREAM x (a INT) WITH (path='i', key=b)", 1, 41, "there is no column 'b'"),
    ("CREATE SINK s FROM v WITH (sink='jsonl', path='o')", 1, 20, "there is no stream or view"),
    ("CREATE STREAM trades (a INT) WITH (path='i')", 1, 15, "there is a 'trades' already"),
    ("INSERT INTO nothing SELECT * FROM trades", 1, 13, "there is no sink 'nothing'"),
    ("SELECT symbol, STRING_AGG(qty) FROM trades GROUP BY 1", 1, 16, "aggregate STRING_AGG is not"),
    ("SELECT listagg(DISTINCT qty) FROM trades", 1, 8, "LISTAGG(DISTINCT ...) is not"),
    ("SELECT string_agg(qty) OVER (ORDER BY ts) AS x FROM trades", 1, 8, "STRING_AGG is not"),
    ("SELECT symbol FROM trades\nQUALIFY RANK() OVER (ORDER BY ts) = 1", 2, 1, "put the query in"),
    ("SELECT RANK() OVER (ORDER BY ts) AS r FROM trades WHERE r = 1", 1, 57, "'r' is computed by"),
    ("SELECT qty * 2 AS twice FROM trades WHERE qty > 1 AND Twice > 3", 1, 55, "comes before that"),
    ("SELECT 1 FROM HOP(trades, ts, INTERVAL '1' DAY, INTERVAL '1' MONTH)", 1, 58, "TUMBLE takes"),
    (
        "SELECT symbol FROM TUMBLE(trades, ts, INTERVAL '1' MONTH)",
        1,
        20,
        "windows are for GROUP BY",
    ),
    ("SELECT symbol FROM TUMBLE(trades, price, INTERVAL '1' MINUTE)", 1, 35, "it is ts"),
]
REFUSED = [
    ("SELECT * FROM trades ORDER BY price", "ORDER BY"),
    ("SELECT (SELECT 1 FROM trades) FROM trades", "gives one value"),
    (
        "SELECT percent_rank() OVER (ORDER BY price) FROM trades",
        "PERCENT_RANK is not supported OVER",
    ),
    ("WITH r AS (SELECT 1 FROM trades), r AS (SELECT 2 FROM trades) SELECT * FROM r", "r is named"),
    ("WITH RECURSIVE r AS (SELECT 1 FROM r) SELECT * FROM r", "RECURSIVE"),
    ("SELECT * FROM trades LATERAL VIEW explode(x) y AS z", "LATERAL VIEW"),
    ("SELECT * FROM trades TABLESAMPLE (10 PERCENT)", "SAMPLE"),
    ("SELECT * FROM trades ORDER BY price LIMIT 10 PERCENT", "without PERCENT and BY"),
    ("SELECT * FROM trades ORDER BY price LIMIT 3 BY symbol", "without PERCENT and BY"),
    ("SELECT * FROM trades ORDER BY price WITH FILL LIMIT 3", "WITH FILL"),
    ("SELECT FROM trades", "SELECT what"),
    ("SELECT 1", "FROM"),
    ("VALUES (1)", "VALUES"),
    ("SELECT symbol, FROM trades", "something is missing after this comma"),
    ("SELECT symbol FROM trades WHERE SUM(price) > 3", "SUM is an aggregate: it stands in SELECT"),
    ("CREATE SINK s FROM trades WITH (sink = 'jsonl')", "sink 'jsonl' needs path"),
    ("SELECT CAST(price AS DECIMAL(10, x)) FROM trades", "at most 38 digits"),
    ("SELECT symbol FROM trades WHERE price > (SELECT AVG(1))", "a query needs FROM"),
    ("DELETE FROM trades", "there is no statement DELETE; there are SELECT"),
    ("SELECT symbol FROM nothing", "there is no stream or view 'nothing'; there are trades"),
    ("SELECT * FROM SESSION(trades, ts, INTERVAL '1' MINUTE)", "windows are for GROUP BY"),
    ("CREATE OR REPLACE STREAM t (a INT)", "drop it first"),
    ("CREATE VIEW v AS SELECT * FROM trades", "STREAMED VIEW"),
    ("INSERT OVERWRITE x SELECT * FROM trades", "OVERWRITE"),
    ("ALTER STREAM x", "no statement ALTER"),
    ("CREATE STREAMED VIEW SpeedyI-65View AS SELECT * FROM trades", "goes in `...`"),
    ("", "there is no statement"),
    ("SELECT " + "(" * 200 + "1" + ")" * 200 + " FROM trades", "too deeply"),
    ("SELECT " + "+".join("1" * 5000) + " FROM trades", "too deeply"),
    ("SELECT price FROM trades" + " UNION SELECT price FROM trades" * 500, "too many"),
    ("SELECT price AS `*` FROM trades", "a name cannot be *"),
]


@pytest.mark.parametrize(("sql", "line", "column", "told"), PLACED)
def test_mistakes_have_a_place(sql: str, line: int, column: int, told: str) -> None:
    with pytest.raises(ms.SqlError) as caught:
        flow_of().sql(sql)
    assert told in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize(("sql", "told"), REFUSED, ids=lambda one: one[:40])
def test_what_is_not_supported_is_refused_by_name(sql: str, told: str) -> None:
    with pytest.raises(ms.SqlError) as caught:
        flow_of().sql(sql)
    assert told in str(caught.value)


def test_long_statements_are_not_deep() -> None:
    """Many columns stand beside each other; and what is let through can be sent to workers."""
    flow = flow_of()
    columns = ", ".join(f"c{nth} INT" for nth in range(450))
    flow.sql(f"CREATE STREAM wide ({columns}) WITH (source = 'http', port = 8409)")
    cases = (f"CASE WHEN w.c{n} > 1 OR w.c1 = 2 THEN 1 ELSE w.c2 END AS d{n}" for n in range(90))
    flow.sql(f"SELECT {', '.join(cases)} FROM wide w")
    flow.sql(" UNION ALL ".join(["SELECT c1 FROM wide"] * 200))
    deep = flow.sql(f"SELECT {'+'.join(['c1'] * 199)} AS x FROM wide")
    assert cloudpickle.dumps(deep.node)


def test_the_text_is_underlined() -> None:
    with pytest.raises(ms.SqlError) as caught:
        flow_of().sql("SELECT symbol,\n       pric AS p\nFROM trades")
    assert str(caught.value).splitlines()[1:] == ["         pric AS p", "         ^^^^"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("upper", len, "int"), "SQL has a function of this name"),
        (("sum", len, "int"), "a word of SQL"),
        (("extract", len, "int"), "already|a word of SQL"),
        (("f g", len, "int"), "expected a name"),
        (("f", 5, "int"), "expected a plain function"),
        (("f", lambda x: x, None), "say what it gives"),
        (("f", len, "number"), "'number' where a type should be"),
    ],
)
def test_functions_are_checked(given: tuple[str, object, object], told: str) -> None:
    with pytest.raises(ms.ConfigError, match=told):
        ms.Flow("f").function(*given)  # type: ignore[arg-type]
