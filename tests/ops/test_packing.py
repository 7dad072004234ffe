"""Records packed column by column are those packed one by one."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.codec import decode_row, encode_rows
from millstream.ops.packing import pack_rows

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2400, 1, 1)).map(
    lambda at: at.replace(tzinfo=UTC)
)
TYPES: list[tuple[Any, Any]] = [
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.timestamp("us", "UTC"), TIMES),
    (pa.timestamp("ms", "Europe/Berlin"), TIMES.map(lambda at: at.replace(microsecond=0))),
]


@st.composite
def tables(draw: Any) -> pa.Table:
    rows = draw(st.integers(0, 6))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=18))
    columns = {
        f"{draw(st.text('aü', max_size=3))}{number}": pa.array(
            draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind
        )
        for number, (kind, values) in enumerate(kinds)
    }
    return pa.table(columns)


@settings(max_examples=100)
@given(tables())
def test_both_ways_give_the_same_records(table: pa.Table) -> None:
    packed = pack_rows(table)
    assert packed is not None and packed.type == pa.binary()
    found = [decode_row(data) for data in packed.to_pylist()]
    wanted = [decode_row(data) for data in encode_rows(table)]
    assert found == wanted
    assert [list(map(type, row.values())) for row in found] == [
        list(map(type, row.values())) for row in wanted
    ]


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_long_texts(size: int) -> None:
    table = pa.table({"t": ["x" * size, "ü" * (size // 2), None], "n": [1, 2, 3]})
    assert [decode_row(data) for data in pack_rows(table).to_pylist()] == table.to_pylist()


def test_chunks_slices_and_odd_numbers() -> None:
    whole = pa.table({"s": ["a", None, "c", "d"], "x": [float("inf"), -0.0, None, 1e-300]})
    table = pa.concat_tables([whole.slice(1, 2), whole.slice(3)])
    assert [decode_row(data) for data in pack_rows(table).to_pylist()] == table.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]]),
        pa.array([Decimal("1.5")]),
        pa.array([2**63], pa.uint64()),
        pa.array([datetime(2024, 1, 1)]),
        pa.array([datetime(1900, 1, 1, tzinfo=UTC)]),
        pa.array([b"x"]),
        pa.array([1], pa.timestamp("ns", "UTC")),
    ],
)
def test_other_types_are_left_to_the_other_way(column: pa.Array) -> None:
    assert pack_rows(pa.table({"a": column})) is None
