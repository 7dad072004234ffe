"""Aggregate functions of SQL as aggregates of the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.api import aggregates as api
from millstream.ops.sql.types import INTEGERS, is_decimal, is_numeric
from millstream.sql.places import Text


@dataclass(frozen=True)
class Call:
    """An aggregate: of which expression, made how from the name of a column."""

    argument: exp.Expr | None  # None: of whole records
    make: Callable[[str | None], Any]
    type: Callable[[pa.DataType | None], pa.DataType | None]
    numeric: bool = False
    decimal: bool | None = None  # of decimals: their mean, or their total; None: not of them


def _same(of: pa.DataType | None) -> pa.DataType | None:
    return of


def total_of(of: pa.DataType | None) -> pa.DataType | None:
    if of is None or is_decimal(of):
        return None
    return pa.int64() if of in INTEGERS else pa.float64()


def double_of(of: pa.DataType | None) -> pa.DataType | None:
    return None if of is None or is_decimal(of) else pa.float64()


def _whole(of: pa.DataType | None) -> pa.DataType | None:
    return pa.int64()


_PLAIN: dict[str, tuple[Callable[[str], Any], Callable[..., Any], bool]] = {
    "sum": (api.sum, total_of, True),
    "avg": (api.mean, double_of, True),
    "min": (api.min, _same, False),
    "max": (api.max, _same, False),
    "stddev": (api.std, double_of, True),
    "stddevsamp": (api.std, double_of, True),
    "variance": (api.var, double_of, True),
    "first": (api.first, _same, False),
    "last": (api.last, _same, False),
    "approxdistinct": (lambda c: api.distinct(c, approx=True), _whole, False),
    "median": (lambda c: api.quantile(c, 0.5), double_of, True),
}
_ANONYMOUS = {"std": "stddev", "mean": "avg"}
NAMES = "count, sum, avg, min, max, stddev, variance, median, percentile, approx_count_distinct"


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a call of an aggregate function, known or not."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _ANONYMOUS
    return isinstance(node, exp.AggFunc) and node.key not in ("greatest", "least")


def read_call(text: Text, node: exp.Expr) -> Call:
    """What an aggregate of the text computes."""
    key, given = node.key, node.this
    if key == "anonymous":
        key, arguments = _ANONYMOUS[node.name.lower()], node.args.get("expressions") or []
        if len(arguments) != 1:
            raise text.error(f"{node.name} takes one argument", node)
        given = arguments[0]
    if key == "count":
        return _count(text, node)
    if given is not None and not isinstance(given, str) and given.key == "distinct":
        if key not in ("min", "max") or len(given.expressions) != 1:
            raise text.error(
                f"{text.name_of(node)}(DISTINCT ...) is not supported; COUNT(DISTINCT column) is",
                node,
            )
        given = given.expressions[0]
    if key in ("quantile", "approxquantile"):
        return _quantile(text, node, approx=key == "approxquantile")
    if key not in _PLAIN:
        raise text.error(
            f"the aggregate {text.name_of(node)} is not supported; there are {NAMES}", node
        )
    _only(text, node, "this", "expressions")
    make, type_of, numeric = _PLAIN[key]
    decimal = {"sum": False, "avg": True}.get(key)
    return Call(given, lambda column: make(str(column)), type_of, numeric, decimal)


def _only(text: Text, node: exp.Expr, *keys: str) -> None:
    extra = [key for key, value in node.args.items() if value and key not in {*keys, "big_int"}]
    if extra:
        raise text.error(f"{node.key} with {', '.join(extra)} is not supported", node)


def _count(text: Text, node: exp.Expr) -> Call:
    _only(text, node, "this", "expressions")
    given = node.this
    if node.expressions:
        raise text.error("COUNT of several columns is not supported", node)
    if given is None:
        raise text.error("COUNT of what? COUNT(*) counts rows", node)
    if given.key in ("star", "literal", "boolean"):
        return Call(None, api.count, _whole)
    if given.key == "distinct":
        if len(given.expressions) != 1 or given.args.get("on"):
            raise text.error("COUNT(DISTINCT ...) takes one column", node)
        return Call(given.expressions[0], lambda column: api.distinct(str(column)), _whole)
    return Call(given, api.count, _whole)


def _quantile(text: Text, node: exp.Expr, approx: bool) -> Call:
    _only(text, node, "this", "quantile")
    share = node.args.get("quantile")
    try:
        value = float(share.name) if share is not None and share.key == "literal" else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise text.error("the share must be a number from 0 to 1", node)
    make: Callable[[str | None], Any] = lambda column: api.quantile(  # noqa: E731
        str(column), value, approx
    )
    return Call(node.this, make, double_of, True)


def check_type(text: Text, node: exp.Expr, call: Call, of: pa.DataType | None) -> None:
    """An aggregate of numbers over something else would make dead letters of all records."""
    if call.numeric and call.decimal is None and of is not None and is_decimal(of):
        raise text.error(
            f"{node.key.upper()} of decimals is not supported; CAST(... AS DOUBLE) first", node
        )
    if call.numeric and of is not None and not is_numeric(of) and of != pa.null():
        raise text.error(f"{node.key.upper()} needs numbers, not {of}", node)
