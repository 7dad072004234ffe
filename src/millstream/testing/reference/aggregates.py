"""Aggregates by their definition, from the list of their values."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from millstream.api.aggregates import Aggregate, Builtin
from millstream.errors import ConfigError
from millstream.testing.reference.records import Row, identity


def aggregate(agg: Builtin | Aggregate, rows: list[Row]) -> Any:
    """An aggregate of some records, which must be in order, by its definition."""
    values = rows if agg.column is None else [row.get(agg.column) for row in rows]
    there = [value for value in values if value is not None]
    if isinstance(agg, Aggregate):
        state = agg.zero()
        for value in there:
            state = agg.add(state, value)
        return agg.result(state)
    match agg.kind:
        case "count":
            return len(there)
        case "collect":
            return values
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "min":
            return min(there, key=_nan_last, default=None)
        case "max":
            return max(there, key=_nan_last, default=None)
        case "mean" if any(isinstance(value, Decimal) for value in there):
            raise ConfigError(
                f"reference() does not know how many digits {agg} has: those of decimals follow "
                "the type of their column, which records do not tell"
            )
        case "sum":
            return _total(there) if there else None
        case "mean":
            return _divided(_total(there), len(there)) if there else None
        case "decimal_sum" | "decimal_mean":
            return _exact_total(there, dict(agg.options)["of"], agg.kind == "decimal_mean")
        case "var" | "std":
            return _spread(there, root=agg.kind == "std")
        case "top_k":
            return _top(rows, agg.column, agg.by, dict(agg.options)["k"])
        case "distinct":
            return len({identity(value, exact=False) for value in there})
        case "quantile":
            q = dict(agg.options)["q"]
            ordered: list[float] = sorted(there, key=_nan_last)  # type: ignore[arg-type]
            if not ordered:
                return None
            if isinstance(q, tuple):
                return [_quantile(ordered, one) for one in q]
            return _quantile(ordered, q)
    raise ConfigError(f"reference() does not know the aggregate {agg}")


def _exact_total(values: list[Any], of: Any, mean: bool) -> Decimal | None:
    """The sum of decimals with ten digits more than they have, or their mean with four more."""
    if not values:
        return None
    total = sum((Fraction(value) for value in values), Fraction(0))
    scale = min(of.scale + (4 if mean else 0), 38)
    exact = (total / len(values) if mean else total) * 10**scale
    rounded = int(abs(exact) + Fraction(1, 2)) * (-1 if exact < 0 else 1)
    return Decimal(rounded).scaleb(-scale, Context(prec=60))


def _top(rows: list[Row], column: str | None, by: str | None, k: int) -> list[Row]:
    """The values that occur most often, or have the largest totals."""
    found: dict[Any, list[Any]] = {}
    values: dict[Any, Any] = {}
    for row in rows:
        value, size = row.get(column or ""), 1 if by is None else row.get(by)
        if value is not None and size is not None:
            name = identity(value, exact=False)
            values.setdefault(name, value)
            found.setdefault(name, []).append(size)
    totals = {name: _total(sizes) for name, sizes in found.items()}
    order = sorted(totals, key=lambda one: (_descending(totals[one]), one))
    name = "count" if by is None else "total"
    return [{"value": values[one], name: totals[one]} for one in order[:k]]


def _descending(total: Any) -> tuple[bool, Any]:
    return (False, 0) if total != total else (True, -total)


def _quantile(ordered: list[float], q: float) -> float:
    """Between the two values nearest in rank."""
    rank = (len(ordered) - 1) * q
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    share = rank - math.floor(rank)
    return low if low == high or not share else low * (1 - share) + high * share


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0) if isinstance(value, float) and math.isnan(value) else (False, value)


def _total(values: list[Any]) -> Any:
    if any(isinstance(value, Decimal) for value in values):
        scale = max(-int(value.as_tuple().exponent) for value in map(Decimal, values))
        return _exact_total(values, pa.decimal128(38, max(scale, 0)), mean=False)
    if not any(isinstance(value, float) for value in values):
        return sum(map(int, values))
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # infinities of both signs, or too large in between
        return sum(map(float, values))


def _divided(total: Any, count: int) -> float:
    return float(total / count)


def _spread(values: list[Any], *, root: bool) -> float | None:
    if len(values) < 2:
        return None
    mean = _divided(_total(values), len(values))
    squares = [(float(value) - mean) ** 2 for value in values]
    variance = _divided(_total(squares), len(values) - 1)
    return math.sqrt(variance) if root and not math.isnan(variance) else variance
