"""What aggregates give, by the types of the columns they look at; totals of decimals are exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from millstream.api.aggregates import Builtin
from millstream.graph.nodes import Node
from millstream.ops.aggregates.totals import DecimalTotal
from millstream.ops.sql.types import INTEGERS, is_decimal, is_floating, logical_type

Aggs = tuple[tuple[str, Any], ...]
_SAME = ("min", "max", "first", "last")
_FIXED = {"count": pa.int64(), "distinct": pa.int64(), "mean": pa.float64()}
_FIXED |= {"var": pa.float64(), "std": pa.float64()}


def typed_aggregates(node: Node, types: Mapping[str, pa.DataType]) -> Aggs | None:
    """The aggregates of a step with those of decimals that are exact; None if it has none such."""
    aggs: Aggs = getattr(node, "aggs", ())
    made = tuple((name, _of_decimals(agg, types)) for name, agg in aggs)
    return None if all(new is old for (_, new), (_, old) in zip(made, aggs, strict=True)) else made


def _of_decimals(agg: Any, types: Mapping[str, pa.DataType]) -> Any:
    if not isinstance(agg, Builtin) or agg.kind not in ("sum", "mean"):
        return agg
    of = types.get(agg.column or "")
    if of is None or not pa.types.is_decimal128(of):
        return agg
    return decimal_total(str(agg.column), of, agg.kind == "mean")


def decimal_total(column: str, of: pa.DataType, mean: bool) -> Builtin:
    """The exact total of decimals, which needs the type of their column, or their average."""
    kind = "decimal_mean" if mean else "decimal_sum"
    name = f"{kind}({column})"
    kernel = DecimalTotal(of, mean).kernel(name)
    return Builtin(kind, column, objects=kernel, state=name, options=(("of", of),))


def answer_types(aggs: Iterable[tuple[str, Any]], types: Mapping[str, pa.DataType]) -> Any:
    """The types of results, where they are known."""
    found = ((name, _answer_type(agg, types)) for name, agg in aggs if isinstance(agg, Builtin))
    return {name: kind for name, kind in found if kind is not None}


def _answer_type(agg: Builtin, types: Mapping[str, pa.DataType]) -> pa.DataType | None:
    of = types.get(agg.column or "")
    if agg.kind in _FIXED:
        return _FIXED[agg.kind]
    if of is None:
        return None
    if agg.kind in _SAME:
        return of
    if is_decimal(of) and agg.kind in ("decimal_sum", "decimal_mean"):
        return DecimalTotal(of, agg.kind == "decimal_mean").type
    if agg.kind == "sum":
        whole = logical_type(of) in INTEGERS or pa.types.is_boolean(of)
        return pa.int64() if whole else pa.float64() if is_floating(of) else None
    return None
