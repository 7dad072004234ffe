"""Tables that are kept up to date, by their definition: groups, their first rows, the last minutes.

Each is worked out from all rows that are there. What became of rows that were there before is not
looked at: changes come to just this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from millstream.api.aggregates import Builtin
from millstream.graph import nodes
from millstream.operators.grouped.node import Grouped
from millstream.operators.last import Last
from millstream.operators.over import Over
from millstream.operators.top import Top
from millstream.testing.reference.aggregates import aggregate
from millstream.testing.reference.records import Record, Row, identity

Answers = list[tuple[int, Row]]  # rows, and the number of the record whose time each has


def grouped(node: Grouped, records: list[Record], now: float) -> Answers:
    """One row per group that has any; without a key one row whatever there is."""
    groups = _groups(node.keys, node.null_keys, records)
    if not node.keys:
        groups = groups or [[]]
    out: Answers = []
    for members in groups:
        rows = [records[at].row for at in members]
        head = {name: rows[-1].get(name) for name in node.keys}
        answers = {name: aggregate(agg, rows) for name, agg in node.aggs}
        out.append((members[-1] if members else -1, head | answers))
    return out


def top(node: Top, records: list[Record], now: float) -> Answers:
    """The first rows of every group; of equal ones the earlier."""
    out: Answers = []
    for members in _groups(node.keys, node.null_keys, records):
        members = _ordered(node.order, members, records)
        for number, at in enumerate(members[: node.most], 1):
            rank = {} if node.rank is None else {node.rank: number}
            out.append((at, records[at].row | rank))
    return out


def over(node: Over, records: list[Record], now: float) -> Answers:
    """Every row with what functions say of its group: each is looked at from every row anew."""
    out: Answers = []
    for members in _groups(node.keys, "keep", records):
        members = _ordered(node.order, members, records)
        rows = [records[at].row for at in members]
        marks = [identity([row.get(o.column) for o in node.order], exact=False) for row in rows]
        for nth, at in enumerate(members):
            said = {call.name: _said(call, nth, rows, marks) for call in node.calls}
            out.append((at, rows[nth] | said))
    return sorted(out, key=lambda one: one[0])


def _said(call: Any, nth: int, rows: list[Row], marks: list[Any]) -> Any:
    values = [True if call.column is None else row.get(call.column) for row in rows]
    first = marks.index(marks[nth])
    match call.function:
        case "row_number":
            return nth + 1
        case "rank":
            return first + 1
        case "dense_rank":
            return len(set(marks[: first + 1]))
        case "lag" | "lead":
            at = nth + (call.offset if call.function == "lead" else -call.offset)
            return values[at] if 0 <= at < len(values) else call.default
    frame = call.frame
    low = 0 if frame.before is None else max(nth - frame.before, 0)
    high = len(rows) if frame.after is None else nth + frame.after + 1
    if frame.by_value and frame.after is not None:
        high = first + marks.count(marks[nth])
    seen = values[low : max(high, low)]
    if call.function in ("first_value", "last_value"):
        return (seen[0] if call.function == "first_value" else seen[-1]) if seen else None
    kind = {"avg": "mean"}.get(call.function, call.function)
    return aggregate(Builtin(kind, "value"), [{"value": value} for value in seen])


def last(node: Last, records: list[Record], now: float) -> Answers:
    """Rows that are not too old by now."""
    return [(at, one.row) for at, one in enumerate(records) if one.ts + node.size > now]


TABLES: dict[type[nodes.Node], Callable[[Any, list[Record], float], Answers]] = {
    Grouped: grouped,
    Top: top,
    Last: last,
    Over: over,
}


def _ordered(orders: tuple[Any, ...], members: list[int], records: list[Record]) -> list[int]:
    """The members of a group in an order; equal ones as they stand."""
    for order in reversed(orders):
        values = {at: records[at].row.get(order.column) for at in members}
        present = [at for at in members if values[at] is not None]
        places = {at: _place(value) for at, value in values.items()}
        present.sort(key=places.__getitem__, reverse=order.descending)
        absent = [at for at in members if values[at] is None]
        members = absent + present if order.nulls_first else present + absent
    return members


def _groups(keys: tuple[str, ...], nulls: str, records: list[Record]) -> list[list[int]]:
    """The numbers of the records of every group, in their order."""
    found: dict[Any, list[int]] = {}
    for at, one in enumerate(records):
        key = [one.row.get(name) for name in keys]
        if nulls == "keep" or None not in key:
            found.setdefault(identity(key, exact=False), []).append(at)
    return list(found.values())


def _place(value: Any) -> tuple[bool, Any]:
    """NaN is larger than every number."""
    nan = isinstance(value, float) and math.isnan(value)
    return nan, 0 if nan else value
