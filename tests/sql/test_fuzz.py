"""Whatever the text, there is an answer or a SqlError: never another exception."""

from __future__ import annotations

import random

import pytest

import millstream as ms
from tests.sql.queries import KINDS, Grammar
from tests.sql.test_statements import TRADES

TABLES = """
CREATE STREAM t (id INT, k INT, v INT, x DOUBLE, d DECIMAL(8,2), s STRING, ts TIMESTAMP)
WITH (source = 'http', port = 8401, time = 'ts');
CREATE STREAM u (id INT, k INT, w INT, s STRING, PRIMARY KEY (id))
WITH (source = 'http', port = 8402);
"""
STATEMENTS = [
    *TRADES.strip().split(";"),
    "CREATE STREAMED VIEW v AS CSELECT STREAMED id, k FROM t WHERE k > 1",
    "CREATE SINK o FROM t WITH (sink = 'jsonl', path = 'o')",
    "CREATE SINK o WITH (sink = 'console', limit = 3); INSERT INTO o SELECT * FROM u",
    "EXPLAIN SELECT * FROM t", "DESCRIBE t", "SHOW TABLES", "DROP STREAM IF EXISTS t",
    "SELECT window_start, window_end, COUNT(*) AS n FROM HOP(t, ts, INTERVAL '1' MINUTE, "
    "INTERVAL '5' MINUTE) GROUP BY window_start, window_end",
    "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY w DESC) AS r FROM u) "
    "WHERE r <= 3",
    "SELECT k, w FROM u ORDER BY w DESC LIMIT 3",
    "SELECT id, RANK() OVER (PARTITION BY k ORDER BY w DESC) AS r, LAG(w, 2, 0) OVER (ORDER BY id) "
    "AS l, SUM(w) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM u",
    "SELECT id FROM t WHERE v > (SELECT AVG(w) FROM u WHERE u.k = t.k) AND x < (SELECT MAX(x) "
    "FROM t)",
    "SELECT k, SUM(v) - (SELECT COUNT(*) FROM u) AS s FROM t GROUP BY k HAVING SUM(v) > 2",
    "SELECT CAST(x AS DECIMAL(10,2)) * 1.5 + v AS d, ts + INTERVAL '1' MONTH AS m, "
    "date_format(ts AT TIME ZONE 'Europe/Paris', 'yyyy-MM-dd HH:mm') AS f FROM t "
    "WHERE ts - TIMESTAMP '2026-01-01 00:00:00' > INTERVAL '5' MINUTE",
    "SELECT id, window_start FROM HOP(t, ts, INTERVAL '1' MINUTE, INTERVAL '5' MINUTE)",
]  # fmt: skip
_WORDS = r"""
SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT UNION ALL INTERSECT EXCEPT JOIN LEFT FULL ON USING
( ) , . ; * + - / % = <> < > <=> || :: [ ] { } ' " ` `` \ ? @ $ : => -> ! ~ ^ & | -- /* */ # 1 0
2.5 1e400 99999999999999999999 -1 'a' "b" `c` NULL TRUE CASE WHEN THEN ELSE END CAST AS INT DATE
DECIMAL(10,2) STRING TIMESTAMP INTERVAL MINUTE IN NOT EXISTS AND OR IS LIKE BETWEEN DISTINCT
OVER PARTITION ROW_NUMBER COUNT SUM AVG MIN MAX FIRST PERCENTILE GROUPING SETS ROLLUP CUBE
FILTER WITH RECURSIVE LATERAL VALUES TABLE TUMBLE HOP SESSION CUMULATE DESCRIPTOR CREATE STREAM
STREAMED VIEW MATERIALIZED SINK INSERT INTO SHOW TABLES DESCRIBE EXPLAIN DROP IF WATERMARK FOR
PRIMARY KEY CSELECT t u id k v x s ts w window_start nothing t.k u.k t.* explode struct array
map PIVOT QUALIFY WINDOW TABLESAMPLE FETCH OFFSET NATURAL CROSS SEMI ANTI date_trunc('hour',ts)
RANK LAG ROWS RANGE PRECEDING UNBOUNDED FOLLOWING AT ZONE 'UTC'
to_timestamp(s,'yyyy') timestampdiff(DAY,ts,ts) extract(SECOND DAY MONTH 1.5BD IGNORE NULLS
upper(s) concat(s,k) x IN(1) regexp_replace(s,'(','x') \u00e9 \u65e5
"""
WORDS = [*_WORDS.split(), "\x00", "\t", "\n", "é日"]


def mutated(rng: random.Random, text: str) -> str:
    """A text with some words taken out, doubled, put elsewhere or replaced, or cut."""
    words = text.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at = rng.randrange(len(words)) if words else 0
        match rng.randrange(6):
            case 0:
                words[at : at + 1] = []
            case 1:
                words[at:at] = words[at : at + 1]
            case 2:
                words.insert(rng.randrange(len(words) + 1), words.pop(at) if words else "")
            case 3:
                words[at : at + 1] = [rng.choice(WORDS)]
            case 4:
                words.insert(at, rng.choice(WORDS))
            case 5:
                words[at:] = words[at : at + rng.randrange(1, 4)]
    made = " ".join(words)
    if rng.random() < 0.1 and made:
        at = rng.randrange(len(made))
        made = made[:at] + rng.choice("'\"`()[];\\\x00é$") + made[at + rng.randrange(2) :]
    return made


def texts(rng: random.Random) -> str:
    match rng.randrange(8):
        case 0:
            return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 25)))
        case 1 | 2:
            return mutated(rng, rng.choice(STATEMENTS))
        case _:
            return mutated(rng, Grammar(rng, KINDS).query(rng.randrange(3))[0])


def fuzz(seed: int, count: int) -> None:
    rng = random.Random(seed)
    answers = 0
    for number in range(count):
        if number % 50 == 0:
            flow = ms.Flow("fuzz")
            flow.sql(TABLES)
        text = texts(rng)
        before = [(node, node.name) for node in flow.nodes]
        try:
            flow.sql(text)
            answers += 1
        except ms.SqlError as error:
            assert str(error).startswith("line "), (text, error)
            assert [(node, node.name) for node in flow.nodes] == before, text
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} for {text!r}") from error
    assert answers > count // 20


@pytest.mark.parametrize("seed", range(3))
def test_some_texts(seed: int) -> None:
    fuzz(seed, 250)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_many_texts(seed: int) -> None:
    fuzz(seed, 1000)
