"""Rows as columns: no value becomes another because of those beside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.ops.records import to_table

NAIVE = datetime(2024, 1, 1)
AWARE = datetime(2024, 1, 1, 5, tzinfo=UTC)
EAST = AWARE.astimezone(timezone(timedelta(hours=5)))
STAMP = pa.schema([("t", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("values", "schema", "wrong"),
    [
        ([NAIVE, AWARE, None], None, {1: "with a zone offset"}),
        ([AWARE, None, NAIVE], None, {2: "with no zone offset"}),
        ([NAIVE, AWARE], STAMP, {0: "with no zone offset"}),
    ],
)
def test_a_time_neither_gets_nor_loses_an_offset(
    values: list[Any], schema: pa.Schema | None, wrong: dict[int, str]
) -> None:
    _, bad = to_table([{"t": value} for value in values], schema)
    assert bad.keys() == wrong.keys()
    assert all(wrong[row] in why for row, why in bad.items())


@pytest.mark.parametrize("schema", [None, STAMP])
def test_a_zone_holds_for_times_without_an_offset(schema: pa.Schema | None) -> None:
    rows = [{"t": value} for value in (EAST, NAIVE, None, AWARE)]
    table, bad = to_table(rows, schema, zone="America/New_York")
    assert not bad and table.column("t").to_pylist() == [AWARE, AWARE, None, AWARE]


@pytest.mark.parametrize("schema", [None, "t timestamp"])
def test_a_generator_is_read_in_its_zone_with_and_without_a_schema(schema: str | None) -> None:
    source = ms.Generator(lambda: [{"t": NAIVE}], time="t", schema=schema, zone="America/New_York")
    hours = ms.Flow("zone").source(source).key_by().window(ms.tumbling("1h")).agg(n=ms.count())
    assert [row["window_start"] for row in hours.head()] == [AWARE]


def test_columns_of_a_generator_may_have_any_name() -> None:
    rows = [{"__error": "none", "__raw": 1, "op": "x", "": 2}, {"__error": None}]
    found = ms.Flow("names").source(ms.Generator(lambda: [*rows, 5])).head()
    assert [{k: v for k, v in row.items() if v is not None} for row in found] == [
        rows[0],
        {},
    ] and found.dead == 1
