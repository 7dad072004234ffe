"""The plan of a batch: what its tasks are told of the last one, of time and of the state."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.operators.batch import Batch, held_back
from millstream.operators.protocol import Evicting, Known
from millstream.plan.stages import Plan
from millstream.run.batches.footing import Footing
from millstream.run.batches.outlook import Outlook
from millstream.run.batches.settling import shares_of_steps
from millstream.settings import Settings
from millstream.state.warm import Warm

GATHERED = 16  # above so many partitions a job that puts together what tasks say pays


def plan_batch(
    footing: Footing,
    outlook: Outlook,
    settings: Settings,
    tasks: int,
    held: Mapping[str, int],
    warm: Warm | None,
    *,
    trims: bool,
) -> Batch:
    """The batch after the last one.

    held: how far keyed steps go at most. trims: memory is short.
    """
    plan, manifest, known = footing.plan, footing.manifest, outlook.known()
    assert known.times is not None  # between two batches
    operators = plan.operators.values()
    orders = {one.name: one.order(known) for one in operators}
    evicting = [one for one in operators if isinstance(one, Evicting)]
    base, segments, files = footing.stored()
    return Batch(
        number=manifest.batch + 1,
        now=known.now,
        trusted=min(known.now, int(outlook.clock() * 1e6)),
        parallelism=tasks,
        shards=footing.shards,
        checkpoint=str(footing.checkpoint.path),
        progress=known.times.progress,
        watermarks=manifest.watermarks,
        told=manifest.told,
        shares=shares_of_steps(plan, manifest),
        orders=orders,
        left={s: at for one in evicting for s, at in one.leaves(orders[one.name]).items()},
        segments=segments,
        files=files,
        base=base,
        totals=footing.holdings().totals(),
        holds=held_back(dict(held), *(one.holds(known) for one in operators)),
        levels=_levels(plan, known, known.times.inputs),
        gathers=tasks > GATHERED,
        trims=trims,
        debug=settings.debug,
        warm=warm,
        compression=settings.compression,
        max_key=settings.max_key,
        max_participants=settings.max_participants,
        written=manifest.written,
        times=settings.times,
        function_timeout=settings.function_micros,
    )


def _levels(plan: Plan, known: Known, watermarks: dict[str, int]) -> int | None:
    """How many exchanges can have work: as if nothing held watermarks back, to be sure."""
    levels = plan.levels_with_work(watermarks)
    beyond = (one for one in plan.operators.values() if plan.level_of(one) > levels)
    owners = (owner for one in beyond for owner in one.stored())
    return None if any(map(known.has_state, owners)) else levels
