"""Totals of decimals, which need the type of their column: SQL and the plan know it."""

from __future__ import annotations

import pyarrow as pa

from millstream.api.aggregates import Builtin
from millstream.ops.totals import DecimalTotal


def decimal_total(column: str, of: pa.DataType, mean: bool = False) -> Builtin:
    """The exact total of decimals, or their average."""
    kind = "decimal_mean" if mean else "decimal_sum"
    name = f"{kind}({column})"
    kernel = DecimalTotal(of, mean).kernel(name)
    return Builtin(kind, column, objects=kernel, state=name, options=(("of", of),))
