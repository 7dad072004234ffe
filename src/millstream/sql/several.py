"""GROUP BY GROUPING SETS, ROLLUP and CUBE: the sets of keys that a query groups its rows by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from sqlglot import expressions as exp

from millstream.sql.aggregates import is_aggregate
from millstream.sql.places import Text

Keys = tuple[exp.Expr, ...]

_KINDS = ("groupingsets", "rollup", "cube")
_MOST = 64  # sets of one query: each is a GROUP BY of its own


def sets_of(text: Text, select: exp.Expr) -> tuple[list[Keys], Keys] | None:
    """The sets a query groups by, and all their keys; None if it has a plain GROUP BY, or none."""
    group = select.args.get("group")
    if group is None:
        return None
    listed = [one for one in group.expressions if one.key in _KINDS]
    kinds = ("grouping_sets", "rollup", "cube")
    behind = [one for kind in kinds for one in group.args.get(kind) or ()]
    if not listed and not behind:
        return None
    if len(listed) + len(behind) > 1:
        raise text.error("one of GROUPING SETS, ROLLUP and CUBE at a time", group)
    plain = tuple(one for one in group.expressions if one.key not in _KINDS)
    (special,) = listed or behind
    members = [_members(text, one) for one in special.expressions]
    every = tuple(dict.fromkeys((*plain, *chain.from_iterable(members))))
    if behind:  # GROUP BY a, b WITH ROLLUP, and GROUP BY a, b GROUPING SETS (...)
        members, plain = members or [(one,) for one in plain], ()
    count = 2 ** len(members) if special.key == "cube" else len(members) + 1
    if count > _MOST:
        raise text.error(f"{count} sets to group by; there may be {_MOST}", group)
    return [(*plain, *one) for one in _subsets(special.key, members)], every


def _members(text: Text, one: exp.Expr) -> Keys:
    if one.key in _KINDS:
        raise text.error("GROUPING SETS, ROLLUP or CUBE within another", one)
    if one.key == "tuple":
        return tuple(one.expressions)
    return (one.this,) if one.key == "paren" else (one,)


def _subsets(key: str, members: list[Keys]) -> Iterator[Keys]:
    if key == "groupingsets":
        return iter(members)
    sizes = range(len(members), -1, -1)
    if key == "rollup":
        return (tuple(chain.from_iterable(members[:size])) for size in sizes)
    some = chain.from_iterable(combinations(members, size) for size in sizes)
    return (tuple(chain.from_iterable(one)) for one in some)


def without(tree: Any, missing: list[Any], kept: list[Any]) -> Any:
    """An expression with null for what a set does not group by, but not in keys and aggregates."""
    if is_aggregate(tree) or any(tree == one for one in kept):
        return tree
    if any(tree == one for one in missing):
        return exp.Null()
    for key, value in list(tree.args.items()):
        several = value if isinstance(value, list) else [value]
        made = [without(one, missing, kept) if hasattr(one, "args") else one for one in several]
        tree.set(key, made if isinstance(value, list) else made[0])
    return tree
