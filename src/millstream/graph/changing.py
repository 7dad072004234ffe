"""What the rows of a stream are: changes that may be taken back, or a part of what should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from millstream.graph import nodes

MODES = ("delta", "early")


def changes_of(node: nodes.Node, modes: tuple[str, ...] = MODES) -> nodes.Keyed | None:
    """The step whose changes reach a node; further windows and updaters end a stream of them."""
    return _first_changing(node.inputs, modes)


def _first_changing(those: tuple[nodes.Node, ...], modes: tuple[str, ...]) -> nodes.Keyed | None:
    seen, waiting = set(), [*reversed(those)]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, nodes.Windowed):
            if node.emission.mode in modes:
                return node
        elif isinstance(node, nodes.Keyed) and node.gives_changes:
            return node
        elif not isinstance(node, nodes.Update):
            waiting.extend(reversed(node.inputs))
    return None


def gives_changes(node: nodes.Node) -> bool:
    """Whether what a step gives may be taken back."""
    return _first_changing((node,), MODES) is not None


_KEEP_ROWS = (nodes.Select, nodes.Union)


def marks_changes(node: nodes.Node) -> bool:
    """Whether what leaves the flow after a step has a column `op`.

    Changes do. Early results have a `revision`, which says as much as long as no step may have left
    out some of them.
    """
    return any(map(_marks, _reached(node, lambda one: isinstance(one, _KEEP_ROWS))))


def _marks(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Windowed):
        return node.emission.mode == "delta"
    if isinstance(node, nodes.Update | nodes.Source | nodes.Published | nodes.Union | nodes.Select):
        return False
    return (isinstance(node, nodes.Keyed) and node.gives_changes) or changes_of(node) is not None


def _reached(node: nodes.Node, passes: Callable[[nodes.Node], bool]) -> Iterator[nodes.Node]:
    """A node, and those before it as far as they can be reached; each once, however they fork."""
    seen, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            yield one
            if passes(one):
                waiting.extend(one.inputs)


def tells_fidelity(node: nodes.Node) -> bool:
    """Whether rows that a step gives say, in a column, how much of their input they stand on."""
    found = _reached(node, _keeps_fidelity)
    return any(one.fidelity for one in found if isinstance(one, nodes.Windowed))


def _keeps_fidelity(node: nodes.Node) -> bool:
    match node:
        case nodes.Select():
            return bool({item.name for item in node.items} & {"*", "fidelity"})
        case nodes.Map(schema=pa.Schema() as schema) | nodes.Process(schema=pa.Schema() as schema):
            return "fidelity" in schema.names
    passing = nodes.Where | nodes.Map | nodes.MapBatches | nodes.Union | nodes.Process | nodes.At
    return isinstance(node, passing)
