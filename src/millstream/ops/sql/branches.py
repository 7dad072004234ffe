"""`AND`, `OR`, `CASE` and `COALESCE`: nodes whose parts only count for the rows that reach them.

As in Spark, a part may rely on what was tested before it: `n <> 0 AND 1 / n > 2` never fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.sql.casts import cast_datum
from millstream.ops.sql.frames import Frame, TypeOf
from millstream.ops.sql.functions import FUNCTIONS
from millstream.ops.sql.nodes import Node, exact_numbers
from millstream.ops.sql.types import DataType, Datum, ExpressionError, as_array, common_type


@dataclass(frozen=True)
class Logic:
    """`AND`, or `OR`: the right side matters unless the left is FALSE, or TRUE."""

    left: Node
    right: Node
    disjunction: bool = False

    def infer(self, type_of: TypeOf) -> DataType:
        for side in (self.left, self.right):
            FUNCTIONS["not"].coerce((side.infer(type_of),))
        return pa.bool_()

    def vector(self, frame: Frame) -> Datum:
        left = _truth(self.left.vector(frame))
        undecided = pc.invert(left) if self.disjunction else left
        right = _truth(evaluate_where(self.right, frame, pc.fill_null(undecided, True)))
        return (pc.or_kleene if self.disjunction else pc.and_kleene)(left, right)


def _truth(of: Datum) -> Datum:
    (wanted,), _ = FUNCTIONS["not"].coerce((of.type,))
    return cast_datum(of, wanted)


@dataclass(frozen=True)
class Case:
    branches: tuple[tuple[Node, Node], ...]
    default: Node

    def infer(self, type_of: TypeOf) -> DataType:
        for condition, _ in self.branches:
            FUNCTIONS["not"].coerce((condition.infer(type_of),))
        return _common([*(value for _, value in self.branches), self.default], type_of)

    def vector(self, frame: Frame) -> Datum:
        pending: Datum = pa.scalar(True)
        hits, values = [], []
        for condition, value in self.branches:
            holds = _truth(evaluate_where(condition, frame, pending))
            hits.append(pc.and_(pending, pc.fill_null(holds, False)))
            values.append(evaluate_where(value, frame, hits[-1]))
            pending = pc.and_(pending, pc.invert(hits[-1]))
        values.append(evaluate_where(self.default, frame, pending))
        nodes = [*(value for _, value in self.branches), self.default]
        return _choose(hits, _exact(nodes, values, frame))


@dataclass(frozen=True)
class Coalesce:
    args: tuple[Node, ...]

    def infer(self, type_of: TypeOf) -> DataType:
        return _common(self.args, type_of)

    def vector(self, frame: Frame) -> Datum:
        pending: Datum = pa.scalar(True)
        hits, values = [], []
        for arg in self.args:
            values.append(evaluate_where(arg, frame, pending))
            hits.append(pc.and_(pending, pc.is_valid(values[-1])))
            pending = pc.and_(pending, pc.invert(hits[-1]))
        return _choose(hits[:-1], _exact(self.args, values, frame))


def _common(nodes: Sequence[Node], type_of: TypeOf) -> DataType:
    """The type of one value of several."""
    types = [node.infer(type_of) for node in nodes]
    for at, number in exact_numbers(nodes, types).items():
        types[at] = number.type
    return common_type(types)


def _exact(nodes: Sequence[Node], values: list[Datum], frame: Frame) -> list[Datum]:
    """The same with numbers of the text as decimals, if there are any beside them."""
    for at, number in exact_numbers(nodes, [value.type for value in values]).items():
        values[at] = number.vector(frame)
    return values


def _choose(hits: Sequence[Datum], values: Sequence[Datum]) -> Datum:
    """For every row the value of its first hit, else the last value."""
    wanted = common_type(value.type for value in values)
    if any(value.type != wanted for value in values):
        # A value that no row takes must not fail to convert.
        taken = [*hits, pc.invert(reduce(pc.or_, hits, pa.scalar(False)))]
        values = [_cast_taken(v, hit, wanted) for v, hit in zip(values, taken, strict=True)]
    chosen = values[-1]
    for hit, value in zip(reversed(hits), reversed(values[:-1]), strict=True):
        chosen = pc.if_else(hit, value, chosen)
    return chosen


def _cast_taken(value: Datum, hit: Datum, wanted: DataType) -> Datum:
    if value.type != wanted:
        value = pc.if_else(hit, value, pa.scalar(None, value.type))
    return cast_datum(value, wanted)


def evaluate_where(node: Node, frame: Frame, mask: Datum) -> Datum:
    """`node` where `mask` is true; elsewhere anything.

    Evaluating all rows is cheapest and mostly works; only when some row fails are the rows taken
    out that must not be evaluated.
    """
    try:
        return node.vector(frame)
    except ExpressionError:
        mask = as_array(mask, len(frame))
        if pc.all(mask, min_count=0).as_py():
            raise
    values = as_array(node.vector(frame.filter(mask)), pc.sum(mask).as_py())
    ranks = pc.subtract(pc.cumulative_sum(mask.cast(pa.int64())), 1)
    return values.take(pc.if_else(mask, ranks, pa.scalar(None, pa.int64())))
