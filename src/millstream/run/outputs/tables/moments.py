"""Times that tables of other systems, or their clients, cannot hold: such rows are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.ops.zones import MAX_MICROS, MIN_MICROS

_IN_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def beyond(table: pa.Table) -> dict[int, str]:
    """Rows with a time that other systems or their clients cannot hold, by number, and why.

    Tasks ask, because a batch that is committed can leave out none of its rows.
    """
    found: dict[int, str] = {}
    for one in table.schema:
        if not _has_times(one.type):
            continue
        column = table.column(one.name)
        far = np.concatenate([_far(chunk) for chunk in column.chunks] or [np.zeros(0, np.bool_)])
        for row in np.flatnonzero(far).tolist():
            found.setdefault(row, f"column {one.name!r} has a time beyond the years 1 to 9999")
    return found


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    times = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_duration)
    return any(is_one(kind) for is_one in times)


def _far(values: Any) -> npt.NDArray[np.bool_]:
    """Which values have such a time, somewhere inside."""
    kind = values.type
    there: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    far = np.zeros(len(values), np.bool_)
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            far |= _far(values.field(at))
        return far & there
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = values.offsets.to_numpy()
        parts = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
        for part in parts:  # of all values, one after the other
            inside = np.flatnonzero(_far(part.slice(ends[0], ends[-1] - ends[0])))
            far[np.searchsorted(ends - ends[0], inside, side="right") - 1] = True
        return far & there
    if not _has_times(kind) or pa.types.is_nested(kind):
        return far
    low, high = _limits(kind)
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    numbers = values.view(width).fill_null(0).to_numpy(zero_copy_only=False)
    far |= (numbers < low) | (numbers > high)
    return far & there


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_date(kind):
        day = 1 if pa.types.is_date32(kind) else 86_400_000
        return MIN_MICROS // 86_400_000_000 * day, MAX_MICROS // 86_400_000_000 * day + day - 1
    per = _IN_SECOND[kind.unit]
    if pa.types.is_duration(kind):  # as microseconds of 64 bits
        most = (2**63 - 1) // 1_000_000 * per if per < 1_000_000 else 2**63 - 1
        return -most, most
    return MIN_MICROS * per // 1_000_000, MAX_MICROS * per // 1_000_000
