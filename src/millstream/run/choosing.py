"""Panes or values, from batch to batch: what the driver measures of each family, and decides.

A batch is told what to keep. The values it brought, and the panes and windows its tasks counted,
say what the next one keeps. That is part of the manifest, so a restart goes on with the same.
"""

from __future__ import annotations

import msgspec

from millstream.ops.jobs import Family
from millstream.ops.rates import VALUES, Rate, decide, has_choice, longest
from millstream.ops.spans import NOTHING_CLOSED
from millstream.plan.stages import Plan
from millstream.run.batch import Batch, Control
from millstream.state.manifests import Manifest


def single_values(plan: Plan, manifest: Manifest) -> frozenset[str]:
    """The families that keep each value by itself in the next batch."""
    return frozenset(
        name
        for name, family in plan.families.items()
        if has_choice(family) and rate_of(manifest, name).kept == VALUES
    )


def rate_of(manifest: Manifest, family: str) -> Rate:
    """What was measured of a family so far."""
    return msgspec.convert(manifest.rates.get(family, {}), Rate)


def measure(
    plan: Plan, batch: Batch, controls: list[Control], ended: bool, manifest: Manifest
) -> None:
    """Add what a batch brought to the rates in its manifest, and decide for the next batch."""
    for name, family in plan.families.items():
        if has_choice(family):
            rate = _measured(family, batch, controls, ended, manifest)
            rate = decide(family, rate, batch.number + 1)
            manifest.rates[name] = msgspec.structs.asdict(rate)


def _measured(
    family: Family, batch: Batch, controls: list[Control], ended: bool, manifest: Manifest
) -> Rate:
    rate, job = rate_of(manifest, family.name), longest(family)
    before, after = batch.closed[job.name] * job.span.pane, manifest.closed.get(job.name)
    if ended or after is None or batch.closed[job.name] <= NOTHING_CLOSED:
        return rate  # nothing has left yet, or all there is: no time to measure by
    values = sum(c.ledger[job.name]["aggregated"] for c in controls if job.name in c.ledger)
    counted = [c.filled[family.name] for c in controls if family.name in c.filled]
    panes, windows = (sum(column) for column in zip((0, 0), *counted, strict=True))
    slide, memory = job.span.slide / 1e6, job.span.size / 1e6
    return rate.after(values, panes, windows * slide, (after - before) / 1e6, memory)
