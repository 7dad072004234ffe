"""Expressions as keys and arguments of aggregates, and names that only look like one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.api.computed import expression_of
from millstream.testing import Driver, reference

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"ts": NOON + timedelta(minutes=at), "price": price, "qty": qty, "Length (cm)": 1.5}
    for at, price, qty in [(0, 2.5, 4), (10, 1.0, 3), (70, 4.0, 1)]
]


def source(flow: ms.Flow) -> ms.Stream:
    schema = "ts timestamp, price double, qty int, `Length (cm)` double"
    return flow.source(ms.Generator(tuple, time="ts", schema=schema), name="in")


@pytest.mark.parametrize("emit", ["final", "delta"])
def test_keys_and_aggregates_of_expressions(emit: str) -> None:
    flow = ms.Flow("sales")
    hourly = source(flow).key_by("date_trunc('hour', ts) AS hour")
    hourly.agg(emit=emit, total=ms.sum("price * qty"), n=ms.count(), most=ms.max("qty + 1")).sink(
        ms.Memory(), name="out"
    )
    with Driver(flow) as driver:
        driver.push("in", ROWS).end()
        found = [{n: v for n, v in row.items() if n != "op"} for row in driver.output("out")]
    assert sorted(found, key=lambda row: row["hour"]) == [
        {"hour": NOON, "total": 13.0, "n": 2, "most": 5},
        {"hour": NOON + timedelta(hours=1), "total": 4.0, "n": 1, "most": 2},
    ]
    assert reference(flow, {"in": ROWS})["out"] == found


def test_windows_of_expressions() -> None:
    flow = ms.Flow("sales")
    windows = source(flow).key_by("qty % 2").window(ms.tumbling("1h"))
    windows.agg(total=ms.sum("price * qty"), long=ms.mean("Length (cm)")).sink(
        ms.Memory(), name="out"
    )
    with Driver(flow) as driver:
        driver.push("in", ROWS).end()
        found = [(row["qty % 2"], row["total"], row["long"]) for row in driver.output("out")]
    assert sorted(found) == [(0, 10.0, 1.5), (1, 3.0, 1.5), (1, 4.0, 1.5)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("price", None),
        ("a-b", None),
        ("Length (cm)", None),
        ("Rate (%)", None),
        ("a.b", None),
        ("price * qty", "price * qty"),
        ("length(name)", "length(name)"),
        ("a % 3 AS rest", "rest"),
        ("temp(C)", None),
        ("Price / kg", None),
        ("a-b", None),
        ("Use case at the end", None),
        ("(a - b)", "(a - b)"),
        ("a / b AS rate", "rate"),
        ("CASE WHEN a THEN b END", "CASE WHEN a THEN b END"),
        ("a is not null", "a is not null"),
    ],
)
def test_what_is_an_expression(text: str, name: str | None) -> None:
    assert expression_of(text) == name


def test_what_may_be_a_name_is_told_how_to_be_computed() -> None:
    flow = ms.Flow("sales")
    stream = source(flow)
    for step, told in [
        (
            lambda: stream.key_by().agg(s=ms.sum("price / qty")),
            r'write "\(price / qty\)"; columns:',
        ),
        (lambda: stream.dedup("price - qty"), r"write \.with_column\(\"c\", \"price - qty\"\)"),
    ]:
        with pytest.raises(ms.ConfigError, match=told), flow.attempt(keep=False):
            step().head()
    with pytest.raises(ms.ConfigError, match=r"leave AS rate out; .* agg\(rate=ms\.sum"):
        stream.key_by().agg(s=ms.sum("price / qty AS rate"))
    made = stream.key_by("(qty - 4)").agg(s=ms.sum("(price / 2)"))
    made.sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("in", ROWS).end()
        found = sorted((row["(qty - 4)"], row["s"]) for row in driver.output("out"))
    assert found == [(-3, 2.0), (-1, 0.5), (0, 1.25)]


def test_a_column_that_sql_named_after_an_expression_is_one() -> None:
    flow = ms.Flow("sales")
    source(flow)
    flow.sql("CREATE STREAMED VIEW rests AS SELECT qty % 2, price FROM in")
    made = flow.sql("SELECT `qty % 2` AS rest, SUM(price) AS s FROM rests GROUP BY `qty % 2`")
    made.sink(ms.Memory(), name="out")
    with Driver(flow) as driver:
        driver.push("in", ROWS).end()
        found = sorted((row["rest"], row["s"]) for row in driver.output("out"))
    assert found == [(0, 2.5), (1, 5.0)]


def test_windows_can_be_used_twice() -> None:
    flow = ms.Flow("sales")
    windows = source(flow).key_by("qty").window(ms.tumbling("1h"))
    before = windows.keyed
    windows.agg(total=ms.sum("price * qty"))
    assert windows.keyed is before
    windows.agg(n=ms.count())
    assert sum(node.kind == "select" for node in flow.nodes) == 1


def test_streams_that_fork_and_meet_many_times_are_walked_once() -> None:
    flow = ms.Flow("forks")
    stream = flow.source(ms.Generator(tuple, schema="x bigint"))
    for _ in range(60):
        stream = stream.where("x > 1").union(stream.where("x <= 1"))
    stream.key_by("x + 1").agg(n=ms.count()).sink(ms.Memory())
    assert flow.explain()
