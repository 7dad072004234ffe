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


@pytest.mark.parametrize("name", [1, None, b"a", ("a",), "\ud800"])
def test_a_record_with_a_name_that_is_no_text_is_a_dead_letter(name: Any) -> None:
    """As the fields too many that `csv.DictReader` keeps under None; it ended the run."""
    flow = ms.Flow("names")
    numbers = flow.source(ms.Generator(lambda: ({"n": n} for n in range(3))))
    found = numbers.map(lambda row: {name: 1} if row["n"] == 1 else row).head()
    assert [row["n"] for row in found] == [0, 2] and found.dead == 1
    table, bad = to_table([{"n": 1}, {"n": 2, name: 3}], None)
    assert not len(table) and [*bad] == [1]
