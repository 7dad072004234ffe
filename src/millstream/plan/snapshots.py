"""Steps whose answers are looked at before all was read: the columns these have, and rankings."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.api.aggregates import Builtin
from millstream.api.early import ESTIMATE, MARKS
from millstream.graph import nodes


@dataclass(frozen=True)
class Ranking:
    """A ranking of the groups of the window before it."""

    step: str
    name: str  # the column of its result
    keys: tuple[str, ...]
    column: str  # who is ranked: a key of the window before
    by: str  # one of its aggregates
    k: int


def ranking_of(node: nodes.Node) -> Ranking | None:
    """The top_k over the groups of an aggregate over the whole input, if a step is that."""
    if not isinstance(node, nodes.Windowed) or len(node.aggs) != 1 or len(node.inputs) != 1:
        return None
    before, ((name, agg),) = node.inputs[0], node.aggs
    if not isinstance(before, nodes.Windowed) or before.emission.mode != "final":
        return None
    whole = node.window.span.whole and before.window.span.whole
    if not whole or not isinstance(agg, Builtin) or agg.kind != "top_k":
        return None
    ranks_keys = agg.column not in node.keys and set(before.keys) == {*node.keys, agg.column}
    if not ranks_keys or agg.by not in [value for value, _ in before.aggs]:
        return None
    k = dict(agg.options)["k"]
    return Ranking(node.name, name, node.keys, str(agg.column), str(agg.by), int(k))


def snapshot_columns(node: nodes.Windowed) -> tuple[str, ...]:
    """The columns of the snapshots of a step."""
    top = ranking_of(node)
    if top is not None:
        estimates = (top.by + end for end in ESTIMATE)
        return (*top.keys, "place", top.column, *estimates, "settled", *MARKS)
    values = [*(name for name, _ in node.aggs), *(name for name, _ in node.emission.looks.ratios)]
    return (*node.keys, *(name + end for name in values for end in ESTIMATE), *MARKS)
