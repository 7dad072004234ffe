"""Steps without state: what each makes of one record."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.api.programs import MapSplit
from millstream.errors import ConfigError
from millstream.graph import nodes
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.keys.names import derived_position
from millstream.testing.reference.calendars import local_window
from millstream.testing.reference.records import (
    Record,
    Row,
    as_key,
    as_value,
    event_time,
    filled,
    moment,
    place,
    several,
)


def rows_of(node: nodes.Node, record: Record, names: set[str]) -> list[Row]:
    """What a step makes of one record; nothing if it fails on it."""
    try:
        match node:
            case nodes.Where():
                keep = evaluated(node.condition, record.row)
                return [record.row] if keep is True else []
            case nodes.Select():
                return [_selected(node.items, record.row)]
            case nodes.Map():
                return several(node.fn(dict(record.row)))
            case nodes.Pairs():
                return _pairs(node, record, names)
    except ExpressionError:
        return []
    except ConfigError:
        raise
    except Exception:  # a user's function may raise anything: the record is a dead letter
        return []
    raise ConfigError(f"{node.name}: reference() does not know the step {node.kind}")


def evaluated(expression: Expression, row: Row) -> Any:
    """The value of an expression for one row.

    Kernels compute it: what they mean on rows of plain values is compared beside their own tests.
    """
    wanted = {name.lower() for name in expression.columns}
    known = {name: value for name, value in row.items() if name.lower() in wanted}
    return expression.evaluate(pa.Table.from_pylist([{**known, "": None}]))[0].as_py()


def _selected(items: tuple[Expression, ...], row: Row) -> Row:
    out: Row = {}
    for item in items:
        if item.name == "*":
            out.update(row)
        else:
            out[item.name] = evaluated(item, row)
    return out


def _pairs(
    node: nodes.Pairs, record: Record, names: set[str], split: MapSplit | None = None
) -> list[Row]:
    row = record.row
    key: Any = None
    value: Any = dict(row)
    if node.keys:
        keys = [row.get(name) for name in node.keys]
        if None in keys and node.null_keys == "dead":
            return []
        key = as_key(keys[0] if len(keys) == 1 else keys)
    elif {"key", "value"} <= names <= {"key", "value", "window_start", "window_end"}:
        key, value = as_key(row["key"]), row["value"]
    elif names == {"value"}:
        key, value = record.position, row["value"]
    pairs = (split or node.job).map(key, value, moment(record.ts)) or ()
    return [{"key": as_key(k), "value": as_value(v)} for k, v in pairs]


def paired(node: nodes.Pairs, records: list[Record], names: set[str]) -> list[Record]:
    """Pairs of a program: what it gathers is of one pane, and has the place of its last record."""
    width = 0
    if node.job.can("close") and node.span is not None:
        width = math.gcd(node.span.size, node.span.slide)
    calendar = None if node.span is None else node.span.calendar

    def piece(ts: int) -> int:
        if width and calendar is not None:
            return local_window(calendar, ts)[0]
        return ts // width if width else 0

    out = []
    pieces: dict[tuple[int, bool], list[Record]] = {}
    for one in records:
        pieces.setdefault((piece(one.ts), one.late), []).append(one)
    for mine in pieces.values():
        split = MapSplit(node.job)
        for record in mine:
            try:
                made = _pairs(node, record, names, split)
            except Exception:  # a user's function may raise anything: the record is a dead letter
                continue
            out += [replace(record, row=row) for row in made]
        last = max(mine, key=place)
        for key, value in split.close():
            out.append(replace(last, row={"key": as_key(key), "value": as_value(value)}))
    return out


def timed(node: nodes.At, records: list[Record], complete: bool) -> list[Record]:
    """Records at the times they say; one too far before its old time is late."""
    out = []
    for one in records:
        try:
            told = node.fn or (lambda row: node.expr and evaluated(node.expr, row))
            us = event_time(told(dict(one.row)), node.unit, node.zone)
        except Exception:  # a user's function may raise anything: the record is a dead letter
            continue
        if us is None:
            continue
        came = one.ts if one.due is None else one.due
        out.append(replace(one, ts=us, due=None if complete else max(us, came - node.behind)))
    return out


def mapped_batch(node: nodes.MapBatches, records: list[Record]) -> list[Record]:
    table = pa.Table.from_pylist([one.row for one in records])
    table = table.append_column("__row", pa.array(range(len(records)), pa.int64()))
    try:
        result = node.fn(table)
    except Exception:  # a user's function may raise anything
        return []
    out = []
    for index, row in enumerate(result.to_pylist()):
        at = records[row.pop("__row", index)]
        out.append(replace(at, row=row))
    return out


class ProcessContext:
    """What a function of `process` asks for."""

    def __init__(self, node: nodes.Process, us: int) -> None:
        self.us, self.earliest = us, us - node.behind
        self.given: list[tuple[int, Row]] = []
        self.published: list[tuple[str, int, Row]] = []

    @property
    def ts(self) -> datetime:
        return moment(self.us)

    def emit(self, record: Row, *, ts: datetime | None = None) -> None:
        us = self.us if ts is None else event_time(ts, "us", None)
        if us is None or us < self.earliest:
            raise ValueError("too early")
        self.given.append((us, dict(record)))

    def publish(self, stream: str, key: Any, value: Any, *, ts: datetime | None = None) -> None:
        us = self.us + 1 if ts is None else event_time(ts, "us", None)
        if us is None or us <= self.us:
            raise ValueError("not later")
        self.published.append((stream, us, {"key": as_key(key), "value": as_value(value)}))


class Event(NamedTuple):
    """What such a function is called with."""

    key: Any
    value: Any
    ts: datetime
    stream: str


def processed(
    node: nodes.Process, records: list[Record], origins: list[nodes.Node]
) -> tuple[list[Record], dict[str, list[Record]]]:
    """The records that events gave, and per stream what they published."""
    given: list[Record] = []
    published: dict[str, list[Record]] = {}
    for one in records:
        key, value = None, dict(one.row)
        if node.keys:
            keys = [one.row.get(name) for name in node.keys]
            if None in keys and node.null_keys == "dead":
                continue
            key = as_key(keys[0] if len(keys) == 1 else keys)
        if node.keys in ((), ("key",)) and one.row.keys() == {"key", "value"}:
            key, value = as_key(one.row["key"]), one.row["value"]
        ctx = ProcessContext(node, one.ts)
        try:
            event = Event(key, value, moment(one.ts), origins[one.source].name)
            rows = several(node.fn(event, ctx))
        except Exception:  # a user's function may raise anything: the record is a dead letter
            continue
        came = one.ts if one.due is None else one.due
        for us, row in [*ctx.given, *((one.ts, row) for row in rows)]:
            given.append(replace(one, ts=us, row=row, due=max(us, came - node.behind)))
        position = derived_position(one.position, one.source, 0, False, origins.index(node))
        for stream, us, row in ctx.published:
            published.setdefault(stream, []).append(
                Record(max(us, came + 1), one.source, position, row)
            )
    full = filled([one.row for one in given])
    return [replace(one, row=row) for one, row in zip(given, full, strict=True)], published
