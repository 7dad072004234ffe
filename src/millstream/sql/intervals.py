"""Conditions on event time that steps of their own fulfil.

`b.ts BETWEEN a.ts - INTERVAL '5' MINUTE AND a.ts + INTERVAL '5' MINUTE`, between the event times of
two streams of records, bounds what a join has to remember. `ts > now() - INTERVAL '5' MINUTE` is
true for the rows of the last five minutes, which leave when they are older.
"""

from __future__ import annotations

from typing import Any

from millstream.durations import micros, text
from millstream.sql.relations import Relation, Scope
from millstream.sql.statements import duration

Bounds = tuple[str, str]


def interval_of(condition: Any, left: Scope, right: Scope) -> Bounds | None:
    """How far the right record lies after the left one; None if this is another condition."""
    if condition.key != "between":
        return None
    first, last = (_shifted(condition.args[one]) for one in ("low", "high"))
    if first is None or last is None:
        return None
    (low, before), (high, after) = first, last
    if low != high or (before, after) == (0, 0):
        return None
    if _is_time(condition.this, right) and _is_time(low, left):
        return _bounds(before, after)
    if _is_time(condition.this, left) and _is_time(low, right):
        return _bounds(-after, -before)
    return None


def recent_of(condition: Any, scope: Scope) -> str | None:
    """How old rows may be; None if this is another condition."""
    key, column, moment = (
        condition.key,
        condition.args.get("this"),
        condition.args.get("expression"),
    )
    if key in ("lt", "lte"):
        column, moment = moment, column
    if key not in ("gt", "lt", "gte", "lte") or not is_moment(moment):
        return None
    if key in ("gte", "lte") or not _is_time(column, scope):
        relation: Relation = scope.relation
        raise scope.text.error(
            "now() stands in a condition on event time, like ts > now() - INTERVAL '5' MINUTE; of "
            f"this {relation.told_time}",
            condition,
        )
    length = moment.expression
    if not is_plain(length):
        raise scope.text.error("expected an interval", condition)
    try:
        return duration(length.this.name, length.args["unit"].name)
    except (ValueError, AttributeError, KeyError):
        raise scope.text.error("expected an interval", condition) from None


def is_plain(node: Any) -> bool:
    """Whether this is an INTERVAL of a number and its unit, not of what is computed or negated."""
    number = node.this if node.key == "interval" else None
    return number is not None and number.key == "literal" and node.args.get("unit") is not None


def is_moment(node: Any) -> bool:
    """Whether this is `now() - INTERVAL ...`."""
    if node is None or node.key != "sub" or node.expression.key != "interval":
        return False
    now = node.this
    named = now.key == "anonymous" and now.name.lower() == "now"
    return bool(named or now.key == "currenttimestamp")


def _shifted(node: Any) -> tuple[Any, int] | None:
    """A column and how far from it, in microseconds."""
    if node.key == "column":
        return node, 0
    if node.key not in ("add", "sub") or node.this.key != "column":
        return None
    given = node.expression
    if not is_plain(given):
        return None
    try:
        length = micros(duration(given.this.name, given.args["unit"].name), "INTERVAL", zero=True)
    except ValueError:
        return None
    return node.this, length if node.key == "add" else -length


def _is_time(node: Any, scope: Scope) -> bool:
    """Whether a column is the event time of a relation."""
    if node.key != "column":
        return False
    relation: Relation = scope.relation
    found = scope.local(node)
    return found is not None and not found[1] and found[0].physical == relation.time


def _bounds(low: int, high: int) -> Bounds:
    first, last = (f"-{text(-one)}" if one < 0 else text(one) for one in (low, high))
    return first, last
