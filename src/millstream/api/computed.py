"""Expressions in the place of columns: `key_by("date_trunc('hour', ts)")`, `ms.sum("price * qty")`.

Each becomes a column that is named after its text, or as `AS` says, right before the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.graph.nodes import Node
from millstream.ops.expressions import parse_projection
from millstream.ops.sql.nodes import Column

if TYPE_CHECKING:
    from millstream.api.stream import Stream

# `Length (cm)`, `a-b` and `Price / kg` are names that tables have; `length(cm)`, `a + b`, `(a - b)`
# and `a / b AS rate` are not.
_SIGN = re.compile(
    r"[*+%<>=|']|\w\(|^\s*\(.*\)\s*$|\sas\s+[\w`]+\s*$|^\s*case\s.*\send\b|\sis\s+(not\s+)?null\b",
    re.IGNORECASE,
)


def expression_of(text: str) -> str | None:
    """The name of the column that an expression makes; None if the text is the name of one."""
    return computed_name(text) if _SIGN.search(text) else None


def computed_name(text: str) -> str | None:
    """The same for a text that may be either."""
    try:
        made = parse_projection(text)
    except (ConfigError, ValueError):  # a name like no other
        return None
    if len(made) != 1 or made[0].node is None or isinstance(made[0].node, Column):
        return None
    return made[0].name


def with_expressions(stream: Stream, texts: Iterable[str]) -> tuple[Stream, list[str]]:
    """The stream with a column for every text that is an expression, and all their names."""
    names, added = [], {}
    for text in texts:
        name = None if _is_column(stream.node, text) else expression_of(text)
        names.append(text if name is None else name)
        if name is not None:
            added[name] = text
    return (stream.select("*", *added.values()) if added else stream), names


def _is_column(node: Node, name: str) -> bool:
    """Whether a step on the way to here has a column of just that name."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        if name in one.mentions():
            return True
        waiting += (before := set(one.inputs) - seen)
        seen |= before
    return False
