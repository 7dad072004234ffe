"""Taking a checkpoint over at a start: whatever the last run left is checked, finished or dropped.

The program is compared with the one that is stored. A batch that was committed and not published is
published now; what was written for one that was not committed is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream.io.claims import Lease
from millstream.plan.outputs import check_apart
from millstream.plan.stages import Plan, timeless_windows, unlike_unions
from millstream.run.outputs.bundling import check_waiting, notes_on_waiting
from millstream.run.outputs.handing import Hands
from millstream.run.outputs.outside import Outside, Owned
from millstream.run.outputs.publishing import recover
from millstream.run.program.adopting import adopt, without_dropped
from millstream.run.program.program import check_program, renew_lease
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest


@dataclass(frozen=True)
class TakenOver:
    """A checkpoint that belongs to this run from now on."""

    program: dict[str, Any]
    lease: Lease
    outside: Outside
    manifest: Manifest  # of the last batch, without what is no longer the program's own
    dropped: bool  # something was, and no manifest says so yet
    notes: list[str]  # for who started it


def take_over(
    plan: Plan,
    checkpoint: Checkpoint,
    settings: Settings,
    hands: Hands,
    waiting: Callable[[str | None], None],
    cores: int,
    least_shards: int,
) -> TakenOver:
    """Make a checkpoint this run's own, with all that its results are given to."""
    check_apart(plan, checkpoint.path)
    check = partial(
        check_program, plan, checkpoint, settings.shards, cores, settings.remove, least_shards
    )
    program, begun = check(), checkpoint.begun()
    latest = checkpoint.take_over()
    if checkpoint.store.shared:  # until now another run could have changed it
        program = check()
    before, lease = renew_lease(checkpoint, program)
    outside = Outside(plan, program, lease, checkpoint.state, waiting)
    try:
        outside.take(Owned(), before, latest.batch if latest is not None and begun else -1)
        _publish_rest(checkpoint, latest, outside, hands)
        manifest = latest or Manifest(-1)
        own = without_dropped(manifest, program)
        program, notes = adopt(plan, program, own)
        notes = [*notes, *unlike_unions(plan), *timeless_windows(plan)]
        if not all(node.spec.bounded for node in plan.sources()):
            notes = [*notes, *notes_on_waiting(outside.sinks)]
        checkpoint.write_program(program)
        own = without_dropped(own, program)
        if latest is not None:
            outside.mirror(own, checkpoint.before(latest))
        checkpoint.discard_uncommitted(own.batch)
        checkpoint.discard_delivered(own.batch)
        check_waiting(own, outside.sinks)
        outside.owned.discard_staged(own.batch, checkpoint.waiting(settings.retain))
    except BaseException:
        outside.close()
        raise
    dropped = own is not manifest and not own.complete
    return TakenOver(program, lease, outside, own, dropped, notes)


def _publish_rest(
    checkpoint: Checkpoint, latest: Manifest | None, outside: Outside, hands: Hands
) -> None:
    """See whether all that take results are there, and give them what they do not have yet."""
    newest = -1 if latest is None else latest.batch
    outside.check(newest, checkpoint.gave)
    unpublished = [] if latest is None else list(checkpoint.unpublished(latest))
    outside.topics.open(newest, checkpoint.gave, unpublished)
    published = checkpoint.published() if unpublished else None
    for one in unpublished:
        known = published is not None or one.batch == 0 or checkpoint.store.shared
        recover(one, outside.sinks, checkpoint.staged, hands, known=known)
        checkpoint.mark_published(one.batch)
