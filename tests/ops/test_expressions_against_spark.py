"""Decimals, times and casts: what Spark gives in ANSI mode, or a failure where it fails."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.ops.expressions import ExpressionError, parse_projection
from millstream.ops.sql.types import type_name
from tests.ops.rowwise import evaluate_row

pytestmark = pytest.mark.spark

ROWS: list[dict[str, Any]] = [
    {
        "a": Decimal("1.25"), "b": Decimal("3.1234"), "w": Decimal("12345678901234567890.678"),
        "i": 1, "l": 10, "d": 0.5, "s": "1.50", "dd": date(2024, 1, 31),
        "t": datetime(2024, 2, 29, 23, 59, 58, 123456, tzinfo=UTC),
        "u": datetime(2025, 3, 30, 1, 30, tzinfo=UTC), "o": True,
    },
    {
        "a": Decimal("-7.55"), "b": Decimal("-2.0005"), "w": Decimal("-0.999"), "i": -3,
        "l": 2**62, "d": -2.675, "s": " -7 ", "dd": date(2023, 12, 25),
        "t": datetime(1969, 12, 31, 1, 2, 3, tzinfo=UTC),
        "u": datetime(1970, 1, 31, 1, 2, 2, 999999, tzinfo=UTC), "o": False,
    },
    {
        "a": Decimal("99999999.99"), "b": Decimal("0.0001"), "w": Decimal("1.005"), "i": 7,
        "l": -1, "d": 1e7, "s": "12", "dd": date(2000, 2, 29),
        "t": datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        "u": datetime(2026, 9, 30, tzinfo=UTC), "o": True,
    },
    dict.fromkeys(["a", "b", "w", "i", "l", "d", "s", "dd", "t", "u", "o"]),
]  # fmt: skip
SCHEMA = pa.schema(
    {
        "a": pa.decimal128(10, 2), "b": pa.decimal128(12, 4), "w": pa.decimal128(38, 3),
        "i": pa.int32(), "l": pa.int64(), "d": pa.float64(), "s": pa.string(), "dd": pa.date32(),
        "t": pa.timestamp("us", "UTC"), "u": pa.timestamp("us", "UTC"), "o": pa.bool_(),
    }
)  # fmt: skip
EXPRESSIONS = """
a + b; a - b; a * b; a / b; a % b; b % a; a + i; i - a; a * l; l / a; a div b; a div i; w / a
w + w
w - a; w / i; w * a; a * a * a; (a + b) / (i + 1); a + d; d * a; -a; -w; abs(w); sign(a); a + 1
a * 0.9; a / 3; a * 1.10; 10 / a; a + 0.001; a - 100; a % 3; 1.5BD * a; 2 * w
round(a); round(a, 1); round(b, 2); round(b, -1); round(w, 2); floor(a); ceil(a); floor(b); ceil(w)
a = b; a < b; a > 1.25; a >= 1.25; a = i; a <> 1; a <=> b; a IN (1.25, 2); a BETWEEN 0 AND 10
a > d; w > l; a = '1.25'; greatest(a, b); least(a, i); greatest(a, w, b); coalesce(a, b)
coalesce(a, 0)
nullif(a, 1.25); if(o, a, b); CASE WHEN o THEN a ELSE i END; CASE WHEN o THEN a ELSE d END
CASE WHEN o THEN a ELSE 0.125 END; CAST(a AS INT); CAST(a AS BIGINT); CAST(a AS DOUBLE)
CAST(w AS DOUBLE)
CAST(a AS STRING); CAST(b AS STRING); CAST(a AS BOOLEAN); CAST(a AS DECIMAL(12,1))
CAST(b AS DECIMAL(10,2))
CAST(i AS DECIMAL(5,2)); CAST(l AS DECIMAL(20,0)); CAST(d AS DECIMAL(10,2))
CAST(d AS DECIMAL(20,10))
CAST(s AS DECIMAL(10,2)); CAST(s AS DECIMAL); CAST(o AS DECIMAL(3,1)); CAST(t AS DECIMAL(20,6))
CAST(a AS FLOAT); TRY_CAST(a AS DECIMAL(3,1)); TRY_CAST(a AS TINYINT); CAST(0.1BD AS STRING)
sqrt(a + 8); power(b, 2); concat(a, '-', b); CAST(CAST(1e-7 AS DECIMAL(10,7)) AS STRING)
t + INTERVAL '1' MONTH; t - INTERVAL '1' YEAR; dd + INTERVAL '1' MONTH; dd - INTERVAL '2' DAY
dd + INTERVAL '5' HOUR; t + INTERVAL '1 02:03:04' DAY TO SECOND; t + INTERVAL '1-2' YEAR TO MONTH
t - INTERVAL '90' MINUTE; INTERVAL '1' WEEK + t; t + INTERVAL '1.5' SECOND
t + INTERVAL '1 day 2 hours'
t - u > INTERVAL '5' MINUTE; u - t <= INTERVAL '30' DAY
from_utc_timestamp(t, 'Europe/Paris'); to_utc_timestamp(u, 'Europe/Paris')
to_utc_timestamp(t, 'America/New_York')
from_utc_timestamp(u, '+05:30'); to_utc_timestamp(TIMESTAMP '2024-03-31 02:30:00', 'Europe/Paris')
to_utc_timestamp(TIMESTAMP '2024-10-27 02:30:00', 'Europe/Paris')
from_utc_timestamp(t, 'Asia/Kolkata')
dayofweek(t); dayofweek(dd); weekday(dd); weekofyear(dd); dayofyear(dd); last_day(dd)
add_months(dd, i)
date_add(dd, i); date_sub(dd, 40); datediff(dd, t); datediff(u, t); trunc(dd, 'month')
trunc(dd, 'YEAR')
trunc(dd, 'week'); trunc(dd, 'quarter'); timestampadd(HOUR, i, t); timestampadd(MONTH, i, t)
timestampadd(QUARTER, 1, u); timestampadd(DAY, i, t); timestampdiff(MONTH, t, u)
timestampdiff(DAY, t, u)
timestampdiff(HOUR, u, t); timestampdiff(YEAR, u, t); timestampdiff(SECOND, t, u)
timestampdiff(QUARTER, t, u)
extract(SECOND FROM t); extract(DOW FROM t); extract(WEEK FROM t); extract(DOY FROM t)
date_part('year', t)
date_trunc('week', t); date_trunc('quarter', u); make_date(2024, 2, 29)
date_format(t, 'yyyy-MM-dd HH:mm:ss'); date_format(t, 'd/M/yy h:mm a')
date_format(t, 'EEE, dd MMM yyyy')
date_format(t, 'EEEE MMMM'); date_format(t, 'HHmmss.SSS'); date_format(t, 'SSSSSS')
date_format(dd, 'DDD')
date_format(t, "yyyy-MM-dd'T'HH:mm:ssXXX"); date_format(t, "hh 'o''clock' a")
date_format(t, 'y D E Z')
to_timestamp('2026-01-05 08:15:30', 'yyyy-MM-dd HH:mm:ss')
to_timestamp('1/5/2026 8:15 PM', 'M/d/yyyy h:mm a')
to_timestamp('05Jan2026', 'ddMMMyyyy')
to_timestamp('2026-01-05T08:15:30+02:00', "yyyy-MM-dd'T'HH:mm:ssXXX")
to_timestamp('12:30', 'HH:mm'); to_timestamp('2026-01-05 08.5', 'yyyy-MM-dd HH.SSS')
to_date('3/5/26', 'M/d/yy')
to_date('20260105', 'yyyyMMdd'); unix_timestamp('2026-01-05', 'yyyy-MM-dd')
from_unixtime(l % 1000000)
from_unixtime(i, 'yyyy/MM/dd HH'); to_timestamp('2026 005', 'yyyy DDD')
to_timestamp('12 AM', 'hh a')
to_timestamp('2026-01-05 08:15:30.123456', 'yyyy-MM-dd HH:mm:ss.SSSSSS'); to_date('2026-02-03')
to_timestamp('2026-02-03 04:05'); CAST('2024-02-29 01:02:03 Europe/Paris' AS TIMESTAMP)
"""
FAILING = """
CAST(99999.5 AS DECIMAL(4,1)); CAST('x' AS DECIMAL(4,1)); CAST(1e10 AS DECIMAL(5,0)); 1BD / 0
1.5BD % 0
CAST(99999999999999999999999999999999999999BD AS DECIMAL(38,0)) + 1BD; CAST('' AS DECIMAL(3,1))
CAST('1e400' AS DECIMAL(38,0)); CAST(300BD AS TINYINT); to_timestamp('2026-1-5', 'yyyy-MM-dd')
to_timestamp('2026-02-30', 'yyyy-MM-dd'); to_timestamp('2026-01-05 ', 'yyyy-MM-dd')
to_date('x', 'yyyy')
make_date(2023, 2, 29); to_timestamp('25:00', 'HH:mm'); to_timestamp('13 PM', 'hh a')
"""


def listed(text: str) -> list[str]:
    return [one.strip() for line in text.strip().splitlines() for one in line.split("; ")]


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.12g}")
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return value


@pytest.fixture
def sql_session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    session = SparkSession(spark).newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    assert session.conf.get("spark.sql.ansi.enabled") == "true"
    return session


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_values(sql_session: Any, every: int) -> None:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    frame = sql_session.createDataFrame(table)
    asked = listed(EXPRESSIONS)[::every]
    found = frame.selectExpr(*(f"{sql} AS _{at}" for at, sql in enumerate(asked))).toArrow()
    wrong = []
    for at, sql in enumerate(asked):
        (expression,) = parse_projection(sql)
        got = expression.evaluate(table)
        rows = [evaluate_row(expression, row, SCHEMA) for row in table.to_pylist()]
        theirs = found.column(at)
        answers = [[*map(plain, one)] for one in (got.to_pylist(), rows, theirs.to_pylist())]
        if not answers[0] == answers[1] == answers[2] or got.type != theirs.type:
            wrong.append((sql, type_name(got.type), type_name(theirs.type), answers))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_failures(sql_session: Any, every: int) -> None:
    for sql in listed(FAILING)[::every]:
        with pytest.raises(Exception):  # noqa: B017 (whatever Spark raises)
            sql_session.range(1).selectExpr(sql).toArrow()
        (expression,) = parse_projection(sql)
        with pytest.raises(ExpressionError):
            expression.evaluate(pa.table({"x": [0]}))
        with pytest.raises(ExpressionError):
            evaluate_row(expression, {})
