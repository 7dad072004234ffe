"""Push what steps behind a tagger ask of its rows into it, so that it keeps no others.

An object whose latest record no step behind lets through is, for all of them, not there; so the
tagger need not remember it. Conditions of filters are pushed, and the age after which a row of the
last minutes is of no use. The filters stay: where a condition cannot be computed, they say why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from millstream.graph import nodes
from millstream.operators.last import Last
from millstream.operators.tagger import Changes
from millstream.ops.expressions import Expression
from millstream.ops.sql.calling import UserCall
from millstream.ops.sql.nodes import Column
from millstream.plan.stages import Plan

_MOST = 8  # ways to be wanted; with more of them there is little left out


@dataclass(frozen=True)
class _Wanted:
    """Rows that somebody behind a step takes: where all of these hold, and for so long."""

    conditions: tuple[Expression, ...] = ()
    size: int | None = None  # microseconds; None: for ever


def push_predicates(plan: Plan) -> Plan:
    """Tell every tagger which rows are wanted of it."""
    kept: dict[nodes.Node, nodes.Node] = {}
    for node in plan.nodes:
        pushed: dict[str, Any] = {}
        if isinstance(node, Changes) and node.op is None:
            pushed = _pushed(list(_behind(plan, node)))
        kept[node] = nodes.over(node, kept, **pushed)
    return replace(plan, nodes=tuple(kept.values()))


def _pushed(wanted: list[_Wanted]) -> dict[str, Any]:
    """The fields of a tagger of which these are wanted."""
    ways = dict.fromkeys(one.conditions for one in wanted)
    sizes = [one.size for one in wanted]
    pushed: dict[str, Any] = {}
    if 0 < len(ways) <= _MOST and all(ways):
        pushed["only"] = tuple(ways)
    if sizes and None not in sizes:
        pushed["within"] = max(size for size in sizes if size is not None)
    return pushed


def _behind(plan: Plan, node: nodes.Node) -> Iterator[_Wanted]:
    """What is wanted of the rows of a step, by everybody who gets them."""
    for step in plan.consumers(node):
        match step:
            case nodes.Where():
                own = () if _calls_python(step.condition.node) else (step.condition,)
                for one in _behind(plan, step):
                    yield replace(one, conditions=(*own, *one.conditions))
            case nodes.Select():
                same = _unchanged(step)
                for one in _behind(plan, step):
                    known = tuple(each for each in one.conditions if same(each))
                    yield replace(one, conditions=known)
            case Last():
                yield _Wanted(size=step.size)
            case _:
                yield _Wanted()


def _unchanged(step: nodes.Select) -> Any:
    """Whether all columns of a condition are, behind a select, what they were before it."""
    made = {item.name: item.node for item in step.items}
    every = made.pop("*", False) is None

    def same(condition: Expression) -> bool:
        return all(
            made[name] == Column(name) if name in made else every for name in condition.columns
        )

    return same


def _calls_python(node: Any) -> bool:
    """Whether a user's function is called, which might be dear to call twice."""
    if isinstance(node, UserCall):
        return True
    if isinstance(node, tuple | list):
        return any(map(_calls_python, node))
    if is_dataclass(node):
        return any(_calls_python(getattr(node, one.name)) for one in fields(node))
    return False
