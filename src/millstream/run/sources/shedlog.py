"""The log of what overload kept from steps: per batch which records, by place or by range of keys.

A line is written before the manifest of its batch, as dead letters are: what a batch that is not
committed left is removed at the next start. The books have the totals; this says which records.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from millstream.ops.overload import Shed
from millstream.plan.stages import Plan
from millstream.run.sources.tracking import Tracker
from millstream.state.storage import Storage

_KEPT = 1_000  # files, of the newest batches that shed anything
_EVERY = 100  # batches between looks for older ones
_NAME = re.compile(r"\d{8,18}\.jsonl", re.ASCII)


def write_shed(
    directory: Storage, plan: Plan, trackers: dict[str, Tracker], batch: int, shed: list[Shed]
) -> None:
    """One line per piece or range of keys."""
    if not shed:
        return
    sources = [node.name for node in plan.sources()]
    lines = (msgspec.json.encode(_told(one, sources, trackers)) for one in shed)
    directory.put(f"{batch:08d}.jsonl", b"\n".join(lines) + b"\n")
    if batch % _EVERY == 0:
        for name in _names(directory)[:-_KEPT]:
            directory.delete(name)


def _told(one: Shed, sources: list[str], trackers: dict[str, Tracker]) -> dict[str, Any]:
    way = {"dropped": one.rows} if one.to is None else {"diverted": one.rows, "to": one.to}
    told: dict[str, Any] = {"step": one.step, **way}
    if one.keys is not None:
        told["keys"] = list(one.keys)
    if one.source is not None:
        place = trackers[sources[one.source]].place
        told |= {"from": place(one.first), "until": place(one.last)}
    return told


def _names(directory: Storage) -> list[str]:
    return sorted(name for name in directory.names() if _NAME.fullmatch(name))
