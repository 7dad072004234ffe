"""Keys: hashes that never change, and codes in the order of keys."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.keys.hashing import canonical, dense, factorize, group_by, hash_keys, hash_one


def hash_of(*values: Any, kind: pa.DataType | None = None) -> int:
    return int(hash_keys([canonical(pa.array([value], kind)) for value in values])[0])


PINNED: list[tuple[tuple[Any, ...], int]] = [
    ((1,), 0xA479ADD547F37BCF),
    ((-1,), 0x9BA580A4EB805BE3),
    ((1.5,), 0xF37C32A6226F8AE4),
    (("1",), 0x52FB236F892FD38E),
    (("ä",), 0x2E70309807884AD8),
    (("",), 0x1D7688E03E746F0F),
    ((True,), 0xF541F2F0EB38D1E),
    ((None,), 0x48218226FF3CD4BF),
    ((datetime(2024, 1, 1, 0, 0, tzinfo=UTC),), 0x8D24556AB8349D86),
    ((b"1",), 0x90FC9A874792DDE1),
    (("a", 1), 0x1F795FA730CFC939),
]


@pytest.mark.parametrize(("key", "expected"), PINNED, ids=repr)
def test_hashes_are_fixed_for_ever(key: tuple[Any, ...], expected: int) -> None:
    """State lies where they say: a change would make every checkpoint unreadable."""
    assert hash_of(*key) == expected


def test_hashes_do_not_depend_on_what_else_is_in_the_column() -> None:
    assert hash_of(None, kind=pa.int64()) == hash_of(None, kind=pa.string()) == hash_of(None)
    assert hash_of(2, kind=pa.int8()) == hash_of(2, kind=pa.int64())
    assert hash_of(2.0) == hash_of(2)  # one chunk has [2], another [2, 2.5]
    assert hash_of(0.0) == hash_of(-0.0)
    assert hash_of(math.nan) == hash_of(-math.nan)
    assert hash_of("a", kind=pa.large_string()) == hash_of("a")
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    assert int(hash_keys([canonical(words)])[2]) == hash_of("a")


def test_keys_of_different_types_do_not_collide() -> None:
    values = [1, "1", True, None, "", 0, False, b"1", 1.5, datetime(1970, 1, 1, tzinfo=UTC)]
    assert len({hash_of(value) for value in values}) == len(values)


def test_the_order_of_columns_matters() -> None:
    assert hash_of(1, 2) != hash_of(2, 1)
    assert hash_of("a", "") != hash_of("", "a")


def test_hashes_spread_over_shards() -> None:
    hashes = hash_keys([pa.array(range(10_000))])
    counts = np.bincount((hashes % np.uint64(16)).astype(np.int64), minlength=16)
    assert counts.min() > 500


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["b", None, "a", "b", ""], ["", "a", "b", None]),
        ([3, -1, 2, 3], [-1, 2, 3]),
        ([0.5, math.inf, -0.0, 0.0], [0.0, 0.5, math.inf]),
        ([True, False, True], [False, True]),
        ([[2], [1], [2]], [[1], [2]]),
    ],
)
def test_codes_are_dense_and_ascend_with_keys(values: list[Any], expected: list[Any]) -> None:
    codes, (uniques,) = factorize([pa.array(values)])
    assert uniques.to_pylist() == expected
    assert uniques.take(pa.array(codes)).to_pylist() == [v if v != 0 else v + 0 for v in values]


def test_nan_is_one_key() -> None:
    codes, (uniques,) = factorize([pa.array([math.nan, 1.0, -math.nan])])
    assert codes.tolist() == [1, 0, 1]
    assert len(uniques) == 2


def test_nothing_but_nulls_is_one_key() -> None:
    codes, (uniques,) = factorize([pa.nulls(3)])
    assert codes.tolist() == [0, 0, 0]
    assert uniques.to_pylist() == [None]


pairs = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-3, 3))


@settings(max_examples=60, derandomize=True)
@given(st.lists(pairs, min_size=1, max_size=20))
def test_composite_keys_ascend_column_by_column(rows: list[tuple[str | None, int]]) -> None:
    columns = [pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows])]
    codes, uniques = factorize(columns)
    keys = list(zip(*(unique.to_pylist() for unique in uniques), strict=True))
    assert keys == sorted(set(rows), key=lambda row: (row[0] is None, row[0] or "", row[1]))
    assert [keys[code] for code in codes] == rows


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([-(2**60), -1, 0, 7, 2**60])), max_size=20
    )
)
def test_groups_ascend_even_when_panes_are_far_apart(rows: list[tuple[int, int]]) -> None:
    keys = np.array([row[0] for row in rows], np.int64)
    panes = np.array([row[1] for row in rows], np.int64)
    groups, group_key, group_pane = group_by(keys, panes)
    found = list(zip(group_key.tolist(), group_pane.tolist(), strict=True))
    assert found == sorted(set(rows))
    assert [found[group] for group in groups] == rows


def test_dense_codes_of_sparse_ones() -> None:
    codes, kept = dense(np.array([10**12, 5, 10**12]))
    assert codes.tolist() == [1, 0, 1]
    assert kept.tolist() == [5, 10**12]


@given(st.text() | st.integers(-(2**63), 2**63 - 1))
def test_the_hash_of_one_value_is_that_of_a_column(value: str | int) -> None:
    column = [pa.array([value])]
    expected = (int(hash_keys(column)[0]), int(hash_keys(column, 0x5EED)[0]))
    assert hash_one(value, (0, 0x5EED)) == expected
