"""Functions OVER (PARTITION BY ... ORDER BY ...) in a select list, other than the first rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import expressions as exp

from millstream.operators.over import AGGREGATES, NEIGHBOURS, RANKS, Call, Over
from millstream.operators.top import parse_order
from millstream.ops.aggregates.overlooking import Frame
from millstream.ops.aggregates.totals import DecimalTotal
from millstream.ops.sql.conversions import cast_value
from millstream.ops.sql.lowering import lower
from millstream.ops.sql.nodes import Literal
from millstream.ops.sql.types import ExpressionError, TypeMismatch, is_decimal, is_numeric
from millstream.sql.aggregates import double_of, total_of
from millstream.sql.expressions import Made
from millstream.sql.joins import with_columns
from millstream.sql.ordering import way_of
from millstream.sql.relations import Column, Relation, Scope

if TYPE_CHECKING:
    from millstream.sql.lowering import Env, Queries

_FUNCTIONS = {
    "rownumber": "row_number",
    "rank": "rank",
    "denserank": "dense_rank",
    "firstvalue": "first_value",
    "lastvalue": "last_value",
    **{one: one for one in ("lag", "lead", "count", "sum", "avg", "min", "max")},
}
_TABLE = "_over"
_FARTHEST = 2**31 - 1  # rows from one to another, as in Spark


def windows_of(node: exp.Expr) -> list[Any]:
    """The functions OVER rows in a select list, outside of queries in it."""
    return [
        each
        for item in (node.expressions if node.key == "select" else ())
        for each in item.walk(prune=lambda n: n.key in ("window", "select"))
        if each.key == "window"
    ]


@dataclass
class _Rows:
    """Functions over the same groups in the same order."""

    parts: list[Any]
    order: list[Any]
    windows: list[Any] = field(default_factory=list)


def overlooked(
    queries: Queries, node: exp.Expr, relation: Relation, env: Env
) -> tuple[Relation, exp.Expr]:
    """The relation with a column per function, and the select list with these columns."""
    if relation.open:
        raise queries.text.error(
            "the columns of this are not known; declare them with schema=", node
        )
    listed = node.copy()
    several: dict[str, _Rows] = {}
    for window in windows_of(listed):
        queries.only(window, {"this", "partition_by", "order", "over", "spec"}, "OVER")
        parts = window.args.get("partition_by") or []
        order = window.args["order"].expressions if window.args.get("order") is not None else []
        key = repr(([one.sql() for one in parts], [one.sql() for one in order]))
        several.setdefault(key, _Rows(parts, order)).windows.append(window)
    number = 0
    for rows in several.values():
        relation, names = _with(queries, rows, queries.scope(relation, env), number)
        number += len(rows.windows)
        for window, name in zip(rows.windows, names, strict=True):
            column: Any = exp.Column(
                this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(_TABLE)
            )
            if window.parent is None or window.parent is listed:
                column = exp.alias_(column, window.sql("spark"), quoted=True)
            window.replace(column)
    return relation, listed


def _with(queries: Queries, rows: _Rows, scope: Scope, number: int) -> tuple[Relation, list[str]]:
    make = queries.expressions.make
    parts = [make(one, scope) for one in rows.parts]
    keys = [make(one.this, scope) for one in rows.order]
    asked = [_Asked.of(queries, window, scope, bool(rows.order)) for window in rows.windows]
    values = [one.value for one in asked if one.value is not None]
    relation, names = with_columns(scope.relation, [*parts, *keys, *values])
    groups = tuple(dict.fromkeys(names[: len(parts)]))
    by: dict[str, str] = {}
    ordered = names[len(parts) : len(parts) + len(keys)]
    for name, one in zip(ordered, rows.order, strict=True):
        by.setdefault(name, way_of(one))
    taken = {one.physical.lower() for one in relation.columns}
    given = iter(names[len(parts) + len(keys) :])
    calls, columns = [], []
    for at, one in enumerate(asked):
        name = f"_over{number + at}"
        while name.lower() in taken:
            name = f"_{name}"
        column = next(given) if one.value is not None else None
        calls.append(one.call(name, column))
        columns.append(Column(f"_over{number + at}", name, calls[-1].type, _TABLE, hidden=True))
    stream = relation.stream._add(
        Over,
        "over",
        keys=groups,
        order=tuple(parse_order(f"{name} {way}") for name, way in by.items()),
        calls=tuple(calls),
    )
    made = replace(relation, stream=stream, columns=(*relation.columns, *columns), time=None)
    return made, [one.name for one in columns]


@dataclass(frozen=True)
class _Asked:
    """One function as the text asks for it."""

    function: str
    value: Made | None
    type: pa.DataType
    frame: Frame
    offset: int = 1
    default: Any = None

    def call(self, name: str, column: str | None) -> Call:
        return Call(name, self.function, column, self.type, self.frame, self.offset, self.default)

    @staticmethod
    def of(queries: Queries, window: Any, scope: Scope, ordered: bool) -> _Asked:
        text, call = queries.text, window.this
        if call.key in ("ignorenulls", "respectnulls"):
            raise text.error("IGNORE NULLS is not supported OVER rows", window)
        function = _FUNCTIONS.get(call.key)
        if function is None:
            told = text.name_of(call)
            known = ", ".join(one.upper() for one in (*RANKS, *NEIGHBOURS, *AGGREGATES))
            raise text.error(f"{told} is not supported OVER rows; there are {known}", call)
        if function in (*RANKS, *NEIGHBOURS) and not ordered:
            raise text.error(f"{function.upper()} needs ORDER BY in OVER", window)
        queries.only(call, {"this", "offset", "default", "big_int", "expressions"}, "OVER")
        frame = _frame(text, window, ordered)
        if function in RANKS:
            return _Asked(function, None, pa.int64(), frame)
        given = call.this
        if given is not None and given.key == "distinct":
            raise text.error("DISTINCT is not supported OVER rows", window)
        if function == "count" and (given is None or given.key in ("star", "literal")):
            return _Asked(function, None, pa.int64(), frame)
        value = queries.expressions.make(given, scope)
        if value.type is None:
            raise text.error("the type of this is not known; declare it with schema=", window)
        kind = _type(text, window, function, value.type)
        if function not in NEIGHBOURS:
            return _Asked(function, value, kind, frame)
        offset = call.args.get("offset")
        try:
            steps = 1 if offset is None else _count(offset)
        except ValueError:
            raise text.error(
                f"{function.upper()} goes a constant number of rows, from 0 on", window
            ) from None
        return _Asked(function, value, kind, frame, steps, _default(text, call, kind))


def _type(text: Any, window: Any, function: str, of: pa.DataType) -> pa.DataType:
    if function == "count":
        return pa.int64()
    if function not in ("sum", "avg"):
        return of
    if not is_numeric(of):
        raise text.error(f"{function.upper()} needs numbers, not {of}", window)
    if is_decimal(of):
        return DecimalTotal(of, function == "avg").type
    return total_of(of) if function == "sum" else double_of(of)


def _default(text: Any, call: Any, kind: pa.DataType) -> Any:
    given = call.args.get("default")
    if given is None:
        return None
    found = lower(given)
    if not isinstance(found, Literal):
        raise text.error("the default of LAG and LEAD is a constant", given)
    try:
        return cast_value(found.value, found.type, kind)
    except (ExpressionError, TypeMismatch) as error:
        raise text.error(str(error), given) from None


def _frame(text: Any, window: Any, ordered: bool) -> Frame:
    """The rows that count: by default those up to this one and its equals, or all without order."""
    spec = window.args.get("spec")
    if spec is None:
        return Frame() if ordered else Frame(None, None)
    kind = str(spec.args.get("kind") or "").upper()
    try:
        start = _bound(spec.args.get("start"), spec.args.get("start_side"), "PRECEDING")
        end = _bound(spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"), "FOLLOWING")
        plain = not spec.args.get("exclude")
        backwards = start is not None and end is not None and start + end < 0
    except ValueError:
        plain = backwards = False
        kind, start, end = "", None, None
    if kind == "ROWS" and plain and not backwards:
        return Frame(start, end, by_value=False)
    if kind == "RANGE" and plain and start is None and end in (None, 0):
        return Frame(None, end)
    raise text.error(
        "this frame is not supported: ROWS BETWEEN n PRECEDING AND n FOLLOWING, CURRENT ROW and "
        "UNBOUNDED are, and RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        window,
    )


def _bound(given: Any, side: Any, wanted: str) -> int | None:
    """How many rows on the wanted side, less than none on the other; None for all."""
    here = str(side or "").upper() == wanted
    if given == "CURRENT ROW":
        return 0
    if given == "UNBOUNDED" and here:
        return None
    return _count(given) if here else -_count(given)


def _count(given: Any) -> int:
    """A number of rows, which nothing but a literal says."""
    told = given.name if getattr(given, "key", "") == "literal" and not given.is_string else ""
    if not told.isdigit() or int(told) > _FARTHEST:
        raise ValueError(f"{given} is no number of rows")
    return int(told)
