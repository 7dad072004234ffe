"""Running again after the input had ended: what results over the whole input say then.

They leave when the input ends. If a later run finds more, they go on from what is remembered and
are given as changes; where that is not possible, the run is refused instead of giving totals of
what is new that look like totals of everything.
"""

from __future__ import annotations

from collections.abc import Set

from millstream.errors import RunError
from millstream.graph.nodes import Source
from millstream.operators.early.sampling import Sampled
from millstream.operators.windows.family import Windows
from millstream.plan.stages import Plan, upstream
from millstream.state.manifests import Manifest


def go_on(plan: Plan, manifest: Manifest, fresh: Set[str], incremental: bool) -> list[str]:
    """What is to be said where results were given of all input of theirs, and there is more of it.

    fresh: the sources that have more. Refuses what cannot go on.
    """
    ended = [
        one
        for one in plan.operators.values()
        if isinstance(one, Windows)
        and one.family.span.whole
        and _was_given(one, manifest)
        and _sources_of(plan, one) & fresh
    ]
    names = ", ".join(repr(one.steps[0]) for one in ended)
    if not ended:
        return []
    if incremental:
        return [f"there is more input than the last run had: {names}: of what is new alone"]
    for one in ended:
        if not one.lasting or not one.has_given(manifest):
            raise RunError(_cannot(one.steps[0], one.lasting))
    return [
        f"there is more input than the last run had: {names} go on with everything before; groups "
        "that change are given again, with a column op: u for a new total, + for a new group "
        "(incremental=True gives results of what is new alone)"
    ]


def _sources_of(plan: Plan, one: Windows) -> set[str]:
    before = upstream(plan, plan.node(one.steps[0]))
    return {node.name for node in before if isinstance(node, Source)}


def _was_given(one: Windows, manifest: Manifest) -> bool:
    """Whether the input of a job has ended before, though other sources went on or were killed."""
    accounts = [manifest.ledger.get(job.name, {}) for job in one.family.jobs]
    if manifest.complete:
        return bool(accounts[0].get("aggregated"))
    if isinstance(one, Sampled):  # its snapshots are results too, and come before the end
        return False
    final = all(job.emission.mode == "final" for job in one.family.jobs)
    return final and any(account.get("results") for account in accounts)


def _cannot(step: str, lasting: bool) -> str:
    why = (
        "what was given of it went into other steps with a key, or into sorted output, where it "
        "cannot be taken back"
        if lasting is False
        else "an earlier version did not remember what its totals were made of"
    )
    return (
        f"there is more input than the last run had, and {step!r} works on the whole input: its "
        f"totals cannot go on, because {why}. Either run it on everything with a new checkpoint "
        "and output directory, or give incremental=True (--incremental) for results of what is new "
        "alone"
    )
