"""Panes or values, from batch to batch: what the driver measures of a family, and decides.

A batch is told what to keep. The values it brought, and the panes and windows its tasks counted,
say what the next one keeps. That is part of the manifest, so a restart goes on with the same.
"""

from __future__ import annotations

import msgspec

from millstream.operators.protocol import Done
from millstream.operators.windows.work import Order, Report
from millstream.ops.times.spans import NOTHING_CLOSED
from millstream.ops.windows.jobs import Family
from millstream.ops.windows.rates import VALUES, Rate, decide, has_choice, longest
from millstream.state.manifests import Manifest


def single_values(family: Family, manifest: Manifest) -> bool:
    """Whether a family keeps each value by itself in the next batch."""
    return has_choice(family) and rate_of(manifest, family.name).kept == VALUES


def rate_of(manifest: Manifest, family: str) -> Rate:
    """What was measured of a family so far."""
    return manifest.read(manifest.rates.get(family, {}), Rate, f"the rates of {family!r}")


def measure(family: Family, order: Order, done: Done, manifest: Manifest) -> None:
    """Add what a batch brought to the rates in its manifest, and decide for the next batch."""
    if has_choice(family):
        rate = decide(family, _measured(family, order, done, manifest), done.batch.number + 1)
        manifest.rates[family.name] = msgspec.structs.asdict(rate)


def _measured(family: Family, order: Order, done: Done, manifest: Manifest) -> Rate:
    rate, job = rate_of(manifest, family.name), longest(family)
    before, after = job.span.moment(order.closed[job.name]), manifest.closed.get(job.name)
    if done.ended or after is None or order.closed[job.name] <= NOTHING_CLOSED:
        return rate  # nothing has left yet, or all there is: no time to measure by
    accounts = (control.ledger.get(job.name) for control in done.controls)
    values = sum(account["aggregated"] for account in accounts if account is not None)
    reports: list[Report] = done.reports(family.name)
    panes, windows = (sum(one.filled[at] for one in reports) for at in (0, 1))
    slide, memory = job.span.slide / 1e6, job.span.size / 1e6
    return rate.after(values, panes, windows * slide, (after - before) / 1e6, memory)
