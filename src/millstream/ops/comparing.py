"""Whether two results are the same: floats nearly so, tuples like lists."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa


def plain(value: Any) -> Any:
    """Arrow arrays as lists, also within dicts."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.to_pylist() if isinstance(value, pa.Array) else value


def magnitude(value: Any) -> float:
    """The largest finite number in a value."""
    value = plain(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return max(map(magnitude, value), default=0.0)
    if isinstance(value, int | float) and math.isfinite(value):
        return abs(float(value))
    return 0.0


def alike(one: Any, other: Any, tolerance: float = 1e-9, scale: float = 0.0) -> bool:
    """Whether two results are the same, floats nearly so and tuples like lists.

    Floats may differ by `tolerance` relative to themselves or to `scale`.
    """
    one, other = plain(one), plain(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            alike(value, other[name], tolerance, scale) for name, value in one.items()
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            alike(a, b, tolerance, scale) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        if not (isinstance(one, int | float) and isinstance(other, int | float)):
            return False
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance * scale)
    try:
        return bool(one == other)
    except Exception:  # a user's type may refuse to be compared
        return False
