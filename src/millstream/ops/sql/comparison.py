"""Comparisons, `IN`, `NOT`, tests for NULL and NaN, and the greatest and least of several values.

NaN equals NaN and is greater than every other number. IEEE comparisons with NaN are false, so
against a constant that is not NaN the right operator, or the negation of its opposite, is right
as it is: that keeps `price > 0` as fast as the bare kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.applying import Function, kernel
from millstream.ops.sql.coercion import alike, all_of, anything, extreme, fixed
from millstream.ops.sql.types import Datum, is_floating, row_count


def _never_nan(of: Datum) -> bool:
    if not is_floating(of.type):
        return True
    return isinstance(of, pa.Scalar) and not (of.is_valid and math.isnan(of.as_py()))


def _greater(x: Datum, y: Datum) -> Datum:
    if not is_floating(x.type) or _never_nan(x):
        return pc.greater(x, y)
    below = pc.invert(pc.less_equal(x, y))
    return below if _never_nan(y) else pc.and_(below, pc.invert(pc.is_nan(y)))


def _equal(x: Datum, y: Datum) -> Datum:
    same = pc.equal(x, y)
    if _never_nan(x) or _never_nan(y):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(x), pc.is_nan(y)))


def _null_safe_equal(x: Datum, y: Datum) -> Datum:
    both_null = pc.and_(pc.is_null(x), pc.is_null(y))
    return pc.coalesce(_equal(x, y), both_null)


def _is_in(args: Sequence[Datum]) -> Datum:
    value, *members = args
    if not is_floating(value.type) and all(isinstance(m, pa.Scalar) for m in members):
        known = pa.array([m.as_py() for m in members if m.is_valid], value.type)
        found = pc.if_else(pc.is_valid(value), pc.is_in(value, known), pa.scalar(None, pa.bool_()))
        if len(known) == len(members):
            return found
        return pc.or_kleene(found, pa.scalar(None, pa.bool_()))
    return reduce(pc.or_kleene, (_equal(value, member) for member in members))


def _extreme(args: Sequence[Datum], better: Callable[[Datum, Datum], Datum]) -> Datum:
    def pick(best: Datum, other: Datum) -> Datum:
        return pc.if_else(pc.coalesce(better(other, best), pc.is_valid(other)), other, best)

    if args[0].type == pa.null():  # nulls do not compare, not even to NULL
        return pa.nulls(max(map(row_count, args)))
    return reduce(pick, args)


def _is_nan(args: Sequence[Datum]) -> Datum:
    return pc.fill_null(pc.is_nan(args[0]), False)


def _comparison(vector: Callable[[Datum, Datum], Datum]) -> Function:
    return Function(alike, lambda args: vector(*args))


_BOOL = pa.bool_()

FUNCTIONS: dict[str, Function] = {
    "=": _comparison(_equal),
    "<>": _comparison(lambda x, y: pc.invert(_equal(x, y))),
    ">": _comparison(_greater),
    "<": _comparison(lambda x, y: _greater(y, x)),
    ">=": _comparison(lambda x, y: pc.invert(_greater(y, x))),
    "<=": _comparison(lambda x, y: pc.invert(_greater(x, y))),
    "<=>": _comparison(_null_safe_equal),
    "in": Function(alike, _is_in),
    "not": Function(all_of(_BOOL, _BOOL), kernel("invert")),
    "isnull": Function(anything(_BOOL), lambda args: pc.is_null(args[0])),
    "isnan": Function(fixed(pa.float64(), result=_BOOL), _is_nan),
    "greatest": Function(extreme, lambda args: _extreme(args, _greater)),
    "least": Function(extreme, lambda args: _extreme(args, lambda x, y: _greater(y, x))),
}
