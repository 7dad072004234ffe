"""The order of rows in bags: found column by column, and as all columns at once say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millstream.state.bags import Order, arranged

START = datetime(2024, 1, 1, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "i": (pa.int64(), [0, 1, -(2**63), 2**63 - 1, 2**62, -(2**62), 7]),
    "t": (pa.timestamp("us", "UTC"), [START, START + timedelta(1)]),
    "s": (pa.string(), ["", "a", "ab", "ä", "b"]),
    "f": (pa.float64(), [0.0, -0.0, 1.5, float("inf"), -2.0]),
    "d": (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("-1.50"), Decimal("0.01")]),
    "b": (pa.bool_(), [True, False]),
}


@st.composite
def tables(draw: Any) -> tuple[pa.Table, tuple[Order, ...]]:
    rows = draw(st.integers(0, 25))
    columns = {
        name: pa.array(
            draw(st.lists(st.sampled_from([None, *values]), min_size=rows, max_size=rows)), kind
        )
        for name, (kind, values) in VALUES.items()
    }
    named = draw(st.permutations(sorted(VALUES)))[: draw(st.integers(0, 4))]
    order = tuple(Order(one, draw(st.booleans()), draw(st.booleans())) for one in named)
    columns["head"] = pa.array(draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    return pa.table({**columns, "head": columns["head"].cast(pa.int64())}), order


def compared(row: dict[str, Any], order: tuple[Order, ...], last: bool) -> list[Any]:
    """A row as Python sorts it: by the order, then by its other columns by name."""
    rest = sorted(set(VALUES) - {one.column for one in order})
    key: list[Any] = [row["head"]]
    for one in (*order, *map(Order, rest)):
        value = row[one.column]
        null = value is None
        place = (-1 if one.nulls_first else 1) if null else 0
        key.append(_Way(place, last))
        key.append(_Way(0 if null else value, one.descending != last))
    return key


class _Way:
    def __init__(self, value: Any, backwards: bool) -> None:
        self.value, self.backwards = value, backwards

    def __lt__(self, other: _Way) -> bool:
        one, two = (other, self) if self.backwards else (self, other)
        return bool(one.value < two.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Way) and self.value == other.value


@given(tables(), st.booleans())
def test_rows_are_in_order_and_others_begin_where_one_differs(made: Any, last: bool) -> None:
    table, order = made
    head = np.asarray(table.column("head"))
    place, begins = arranged(table.drop_columns(["head"]), [head], order, last)
    keys = [compared(row, order, last) for row in table.to_pylist()]
    assert sorted(place.tolist()) == list(range(len(table)))
    found = [keys[at] for at in place.tolist()]
    assert found == sorted(keys)
    assert begins.tolist() == [at == 0 or found[at] != found[at - 1] for at in range(len(found))]
