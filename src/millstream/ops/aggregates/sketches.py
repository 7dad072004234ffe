"""Sketches: small states that answer nearly right, and quantiles of kept values that are exact.

The sketches are those of Apache DataSketches and are stored in its own format. It is imported on
first use: most flows never need it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.aggregates.holding import ObjectKernel, never
from millstream.ops.aggregates.kernels import as_numbers
from millstream.ops.chunks import Floats, Int64
from millstream.ops.codec import encode
from millstream.ops.keys.hashing import factorize, group_by, hash_keys

HLL_LG_K = 12  # 4096 registers of a byte: standard error 1.04 / sqrt(4096) = 1.6 %
KLL_K = 200  # rank error 1.33 % with 99 % confidence
_NOTHING = b""


def _nothing() -> bytes:
    return _NOTHING


# -- HyperLogLog ---------------------------------------------------------------------------------


def approximate_distinct(name: str) -> ObjectKernel:
    """About how many different values there are."""
    return ObjectKernel(name, _nothing, never, _unite, len, bulk=_hll_states, typed=_estimates)


def _unite(left: bytes, right: bytes) -> bytes:
    if not left or not right:
        return left or right
    return _serialized(_union(left, right))


def _union(*states: bytes) -> Any:
    import datasketches

    union = datasketches.hll_union(HLL_LG_K)
    for state in states:
        union.update(datasketches.hll_sketch.deserialize(state))
    return union.get_result(datasketches.tgt_hll_type.HLL_8)


def _serialized(sketch: Any) -> bytes:
    data: bytes = sketch.serialize_compact()
    return data


def _hll_states(columns: list[pa.Array], groups: Int64, count: int) -> pa.Array:
    import datasketches

    (values,) = columns
    there = np.asarray(pc.is_valid(values))
    if not there.all():
        values, groups = values.filter(pa.array(there)), groups[there]
    codes, uniques = factorize([values])
    hashes = hash_keys(uniques).view(np.int64) if len(values) else codes
    _, group, code = group_by(groups, codes)  # every value once per group
    states = [_NOTHING] * count
    for at, part in _parts(group, hashes[code]):
        sketch = datasketches.hll_sketch(HLL_LG_K, datasketches.tgt_hll_type.HLL_8)
        for value in part.tolist():
            sketch.update(value)
        states[at] = _serialized(sketch)
    return pa.array([encode(state) for state in states], pa.binary())


def _estimates(states: list[bytes]) -> pa.Array:
    # A sketch that never met another has an estimator which depends on the order of its values;
    # united with itself it has the one that depends on the values only.
    found = [round(_union(state, state).get_estimate()) if state else 0 for state in states]
    return pa.array(found, pa.int64())


def _parts(groups: Int64, values: np.ndarray[Any, Any]) -> Iterator[tuple[int, Any]]:
    """The values of every group that has any; groups ascend."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    for low, high in itertools.pairwise(np.append(starts, len(groups)).tolist()):
        yield int(groups[low]), values[low:high]


# -- KLL -----------------------------------------------------------------------------------------


class ApproximateQuantile:
    """Values whose rank is about q."""

    def __init__(self, q: float | tuple[float, ...]) -> None:
        self.q = q

    def kernel(self, name: str) -> ObjectKernel:
        """Its states and how they are combined."""
        return ObjectKernel(
            name, _nothing, never, _merge_kll, len, bulk=_kll_states, typed=self._answers
        )

    def _answers(self, states: list[bytes]) -> pa.Array:
        import datasketches

        several = isinstance(self.q, tuple)
        ranks = list(self.q) if isinstance(self.q, tuple) else [self.q]
        found: list[Any] = []
        for state in states:
            if not state:
                found.append(None)
                continue
            sketch = datasketches.kll_doubles_sketch.deserialize(state)
            ends = {0.0: sketch.get_min_value(), 1.0: sketch.get_max_value()}  # known exactly
            inner = sketch.get_quantiles(ranks, True)
            values = [ends.get(rank, value) for rank, value in zip(ranks, inner, strict=True)]
            found.append(values if several else values[0])
        return pa.array(found, pa.list_(pa.float64()) if several else pa.float64())


def _merge_kll(left: bytes, right: bytes) -> bytes:
    import datasketches

    if not left or not right:
        return left or right
    sketch = datasketches.kll_doubles_sketch.deserialize(left)
    sketch.merge(datasketches.kll_doubles_sketch.deserialize(right))
    data: bytes = sketch.serialize()
    return data


def _kll_states(columns: list[pa.Array], groups: Int64, count: int) -> pa.Array:
    import datasketches

    numbers, there = as_numbers(columns[0], "quantile")
    values = numbers.astype(np.float64)
    there &= ~np.isnan(values)
    values, groups = values[there], groups[there]
    order = np.argsort(groups, kind="stable")
    states = [_NOTHING] * count
    for at, part in _parts(groups[order], values[order]):
        sketch = datasketches.kll_doubles_sketch(KLL_K)
        sketch.update(part)
        states[at] = sketch.serialize()
    return pa.array([encode(state) for state in states], pa.binary())


# -- exact quantiles -----------------------------------------------------------------------------


class ExactQuantile:
    """Linear interpolation between the two values nearest in rank; NaN is the largest number."""

    def __init__(self, q: float | tuple[float, ...]) -> None:
        self.q = q

    def __call__(self, lists: pa.Array) -> pa.Array:
        """The quantiles of every list."""
        sizes = np.asarray(pc.list_value_length(lists))
        numbers, there = as_numbers(lists.flatten(), "quantile")
        owner = np.repeat(np.arange(len(lists)), sizes)[there]
        values = numbers.astype(np.float64)[there]
        values = values[np.lexsort((values, owner))]
        count = np.bincount(owner, minlength=len(lists))
        first = np.cumsum(count) - count
        if not isinstance(self.q, tuple):
            return pa.array(_at_rank(values, first, count, self.q), mask=count == 0)
        found = np.stack([_at_rank(values, first, count, q) for q in self.q], axis=1)
        offsets = pa.array(np.arange(len(lists) + 1) * len(self.q), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(found.ravel()), mask=pa.array(count == 0))


def _at_rank(values: Floats, first: Int64, count: Int64, q: float) -> Floats:
    if not len(values):
        return np.zeros(len(count))
    rank = np.maximum(count - 1, 0) * q
    below = np.floor(rank).astype(np.int64)
    share = rank - below
    top = len(values) - 1
    low = values[np.minimum(first + below, top)]
    high = values[np.minimum(first + np.minimum(below + 1, np.maximum(count - 1, 0)), top)]
    with np.errstate(invalid="ignore", over="ignore"):
        between = high - low
        found = np.where(share < 0.5, low + between * share, high - between * (1 - share))
    exact: Floats = np.where((share == 0) | (low == high), low, found)
    return exact
