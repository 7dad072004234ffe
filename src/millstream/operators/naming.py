"""By which of its columns a reader finds the row that a change replaces, where changes leave.

A `u` says that a row takes the place of another one, and the reader finds that by the columns which
name it: the key of an object or group, both keys of a pair. Where a step has left one of them out,
or a row never had one, a change is a row that goes and one that comes.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.graph import nodes
from millstream.operators.protocol import Inputs, KeyedStep, Names
from millstream.ops.expressions import Expression
from millstream.ops.sql.nodes import Column

_MADE = (nodes.Map, nodes.MapBatches, nodes.Process, nodes.Pairs, nodes.Update)


def names_of(
    node: nodes.Node, inputs_of: Callable[[nodes.Node], Inputs], pairs: bool = False
) -> Names:
    """The columns that name a row of a step; None if they are not all there.

    Whether what functions give has them is seen when it leaves: until then it is taken to.
    `pairs`: those of MapReduce jobs, too. They name a pair only if it has the key `reduce` got.
    """
    match node:
        case KeyedStep():
            inputs = node.inputs
            before = tuple(None if _several(one) else names_of(one, inputs_of) for one in inputs)
            return node.row_names(before, inputs_of(node))
        case nodes.Windowed():
            if node.job is not None and not pairs:
                return None
            keys = node.keys if node.job is None else ("key",)
            bounds = () if node.window.span.whole else (frozenset(("window_start", "window_end")),)
            return (*(frozenset((key,)) for key in keys), *bounds)
        case nodes.Select():
            return _selected(node, names_of(node.inputs[0], inputs_of, pairs))
        case nodes.Union() if len(node.inputs) > 1:
            return None  # rows of two streams may have the same key
    return names_of(node.inputs[0], inputs_of, pairs) if node.inputs else None


def made(node: nodes.Node) -> bool:
    """Whether a function of the user has made rows of a step, and with them what names them."""
    if isinstance(node, _MADE) or (isinstance(node, nodes.Windowed) and node.reducer is not None):
        return True
    return not isinstance(node, nodes.Windowed) and any(made(one) for one in node.inputs)


def _several(node: nodes.Node) -> bool:
    """Whether a function may have given several rows of one name since a step named them.

    A step by key parts these: of one that changes, nobody tells again what became of the others.
    """
    if isinstance(node, nodes.Keyed):
        return isinstance(node, nodes.Windowed) and made(node)
    return isinstance(node, _MADE) or any(map(_several, node.inputs))


def _selected(node: nodes.Select, names: Names) -> Names:
    """The same under the names they have after a projection."""
    if names is None:
        return None
    made = {item.name for item in node.items if item.name != "*"}
    everything = any(item.name == "*" for item in node.items)
    found = []
    for several in names:
        kept = {item.name for item in node.items if _plain(item) in several}
        found.append(frozenset(kept | ({*several} - made if everything else set())))
    return tuple(found) if all(found) else None


def _plain(item: Expression) -> str | None:
    """The column that an expression is, and nothing else."""
    return item.node.name if isinstance(item.node, Column) else None
