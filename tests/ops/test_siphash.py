"""Texts are hashed as pandas hashes them: where the state of a key lies depends on it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.ops.keys import hashing as keys
from millstream.ops.keys import siphash

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def by_pandas(values: list[str]) -> list[int]:
    found = pd.util.hash_array(np.array(values, object), hash_key=keys._HASH_KEY, categorize=False)
    return [int(one) for one in found]


@given(st.lists(texts, max_size=30), st.integers(0, 3), st.sampled_from([2, 8192]))
def test_texts_are_hashed_as_by_pandas(values: list[str], before: int, at_once: int) -> None:
    column = pa.array(["another"] * before + values, pa.string()).slice(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(siphash, "_AT_ONCE", at_once)
        assert keys._hashed_texts(column).tolist() == by_pandas(values)


@pytest.mark.parametrize("size", [siphash.LONGEST, siphash.LONGEST + 1, 100_000])
def test_long_texts_too(size: int) -> None:
    values = ["x" * size, "short", ""]
    assert keys._hashed_texts(pa.array(values)).tolist() == by_pandas(values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.floats()))
def test_numbers_are_hashed_as_by_pandas(whole: list[int], real: list[float]) -> None:
    for values in (np.array(whole, np.int64), np.array(real, np.float64)):
        assert keys._hashed(values).tolist() == pd.util.hash_array(values).tolist()


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), texts))
def test_one_key_is_hashed_as_in_a_column(value: int | str) -> None:
    salts = (0, 7)
    found = tuple(int(keys.hash_keys([pa.array([value])], salt)[0]) for salt in salts)
    assert keys.hash_one(value, salts) == found
