"""Which aggregates have an estimator from the totals of blocks, and what blocks say of them."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.kernels import Count, Sum, Variance
from millstream.ops.chunks import Floats, flat
from millstream.ops.codec import decode
from millstream.ops.windows.jobs import Measure


class Kind(Enum):
    """What of the values of a group is asked for."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    VARIANCE = "variance"


def kind_of(measure: Measure) -> Kind | None:
    """The estimator of an aggregate; None if totals of blocks are not enough for it."""
    match measure.kernel:
        case Count():
            return Kind.COUNT
        case Sum(mean=mean):
            return Kind.MEAN if mean else Kind.SUM
        case Variance():
            return Kind.VARIANCE
    decimals = None if measure.objects is None else measure.objects.decimals
    if decimals is None:
        return None
    return Kind.MEAN if decimals.mean else Kind.SUM


def totals_of(given: pa.Table, measure: Measure) -> tuple[Floats, Floats]:
    """How many values rows stand for, and their totals, of a sum or a mean."""
    if measure.objects is not None and measure.objects.decimals is not None:
        states = flat(given.column(f"state.{measure.state}.state")).to_pylist()
        return measure.objects.decimals.near([decode(one) for one in states])
    return state_of(given, measure, "n"), _sums(given, measure)


def _sums(given: pa.Table, measure: Measure) -> Floats:
    """Totals as near as a float is, also where whole numbers have left 64 bits."""
    total = state_of(given, measure, "sum")
    if f"state.{measure.state}.upper" not in given.column_names:
        return total
    about = state_of(given, measure, "upper") * 2.0**32
    found: Floats = total + 2.0**64 * np.rint((about - total) / 2.0**64)
    return found


def state_of(given: pa.Table, measure: Measure, field: str) -> Floats:
    """A number of the states of an aggregate."""
    column = flat(given.column(f"state.{measure.state}.{field}"))
    return np.asarray(column.cast(pa.float64(), safe=False).fill_null(0.0))


def answer_type(given: pa.Table, measure: Measure) -> pa.DataType | None:
    """The type of exact answers, where that is no float."""
    kind = kind_of(measure)
    if kind is Kind.COUNT:
        return pa.int64()
    if measure.objects is not None and measure.objects.decimals is not None:
        return measure.objects.decimals.type
    if kind is Kind.SUM:
        of = given.schema.field(f"state.{measure.state}.sum").type
        return pa.int64() if pa.types.is_integer(of) else None
    return None
