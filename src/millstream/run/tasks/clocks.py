"""Where time stands in a batch: every task of a level works it out alike, of what all have seen."""

from __future__ import annotations

from millstream.operators.batch import Batch, Clocks, Heard, held_back
from millstream.ops.times.progress import Reached, shares_since, told_since
from millstream.plan.reaching import ends
from millstream.plan.stages import Plan


def clocks_of(plan: Plan, batch: Batch, heard: Heard, holds: dict[str, int]) -> Clocks:
    """Watermarks of all keyed steps; `holds`: how far some of them did not get."""
    progress = {
        name: p.seen(heard.reached.get(name, Reached())) for name, p in batch.progress.items()
    }
    held = held_back(batch.holds, holds)
    marks = {name: p.watermark() for name, p in progress.items()}
    inputs, outputs = plan.times(marks, held, batch.watermarks, batch.left)
    return Clocks(
        inputs,
        plan.times({name: p.on_time() for name, p in progress.items()}, held)[0],
        ends(plan, progress, told_since(batch.told, heard.reached, progress)),
        progress,
        shares_since(batch.shares, heard.reached),
        outputs,
    )
