"""Tables that are kept up to date, by their definition: groups, their first rows, the last minutes.

Each is worked out from all rows that are there. What became of rows that were there before is not
looked at: changes come to just this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from millstream.graph import nodes
from millstream.operators.grouped.node import Grouped
from millstream.operators.last import Last
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
        for order in reversed(node.order):
            values = {at: records[at].row.get(order.column) for at in members}
            present = [at for at in members if values[at] is not None]
            places = {at: _place(value) for at, value in values.items()}
            present.sort(key=places.__getitem__, reverse=order.descending)
            absent = [at for at in members if values[at] is None]
            members = absent + present if order.nulls_first else present + absent
        for number, at in enumerate(members[: node.most], 1):
            rank = {} if node.rank is None else {node.rank: number}
            out.append((at, records[at].row | rank))
    return out


def last(node: Last, records: list[Record], now: float) -> Answers:
    """Rows that are not too old by now."""
    return [(at, one.row) for at, one in enumerate(records) if one.ts + node.size > now]


TABLES: dict[type[nodes.Node], Callable[[Any, list[Record], float], Answers]] = {
    Grouped: grouped,
    Top: top,
    Last: last,
}


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
