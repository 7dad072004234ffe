"""Running again after the input had ended: what results over the whole input say then.

They leave when the input ends. If a later run finds more, they go on from what is remembered and
are given as changes; where that is not possible, the run is refused instead of giving totals of
what is new that look like totals of everything.
"""

from __future__ import annotations

from collections.abc import Set

from millstream.errors import RunError
from millstream.graph.nodes import Source
from millstream.operators.protocol import Concluding, Operator
from millstream.plan.stages import Plan, upstream
from millstream.state.manifests import Manifest


def go_on(plan: Plan, manifest: Manifest, fresh: Set[str], incremental: bool) -> list[str]:
    """What is to be said where results were given of all input of theirs, and there is more of it.

    fresh: the sources that have more. Refuses what cannot go on.
    """
    ended = [
        one
        for one in plan.operators.values()
        if isinstance(one, Concluding)
        and one.has_concluded(manifest)
        and _sources_of(plan, one) & fresh
    ]
    names = ", ".join(repr(one.steps[0]) for one in ended)
    if not ended:
        return []
    if incremental:
        return [f"there is more input than the last run had: {names}: of what is new alone"]
    for one in ended:
        why = one.cannot_resume(manifest)
        if why is not None:
            raise RunError(
                f"there is more input than the last run had, and {one.steps[0]!r} works on the "
                f"whole input: its totals cannot go on, because {why}. Either run it on everything "
                "with a new checkpoint and output directory, or give incremental=True "
                "(--incremental) for results of what is new alone"
            )
    return [
        f"there is more input than the last run had: {names} go on with everything before; groups "
        "that change are given again, with a column op: u for a new total, + for a new group "
        "(incremental=True gives results of what is new alone)"
    ]


def _sources_of(plan: Plan, one: Operator) -> set[str]:
    before = upstream(plan, plan.node(one.steps[0]))
    return {node.name for node in before if isinstance(node, Source)}
