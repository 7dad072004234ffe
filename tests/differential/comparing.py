"""Rows of two worlds, compared as multisets with floats nearly equal."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from millstream.testing.laws import alike

Rows = list[dict[str, Any]]


def _sortable(value: Any) -> str:
    """A text that is equal for equal values and does not depend on the last digits of floats."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_sortable, value)) + "]"
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int | float):
        return "nan" if math.isnan(value) else f"{value + 0.0:.6e}".replace("-0.0", "0.0")
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def tidy(rows: Rows) -> Rows:
    """Rows without nulls (a column a batch never saw is absent there), in a fixed order."""
    full = [{n: v for n, v in sorted(row.items()) if v is not None} for row in rows]
    return sorted(full, key=lambda row: [(name, _sortable(value)) for name, value in row.items()])


def assert_same(found: Rows, expected: Rows, *, scale: float = 0.0, what: str = "rows") -> None:
    """The same rows, however often each; floats to 1e-12 of themselves or of `scale`."""
    one, other = tidy(found), tidy(expected)
    for left, right in zip(one, other, strict=False):
        assert alike(left, right, 1e-12, scale), (
            f"{what}: {len(one)} rows against {len(other)}; first difference\n"
            f"  engine    {left}\n  reference {right}"
        )
    assert len(one) == len(other), (
        f"{what}: {len(one)} rows against {len(other)}; too many: {(one + other)[-1]}"
    )


def magnitude(batches: list[dict[str, Rows]], column: str = "x") -> float:
    """The largest square of an input: what errors of sums and variances are measured by."""
    values = [row.get(column) for batch in batches for rows in batch.values() for row in rows]
    finite = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v)]
    return max(finite, default=0.0) ** 2


def assert_windows_ascend(rows: Rows) -> None:
    """Results leave in the order of their windows."""
    ends = [row["window_end"] for row in rows if row.get("window_end") is not None]
    assert ends == sorted(ends), "results are not in the order of their windows"
