"""How much is combined on the map side: within each chunk, or once more across those of a task.

Every chunk is reduced to one row per key and pane where it is read. Merging the rows of all chunks
of a task before they are sent costs the map side, and saves the reduce side the rows that fall
together, with all that becomes of them: sending, storing, reading, and merging them there. So it is
a matter of which side is the bottleneck (HOP, section 3.1). Both are measured, and the decision for
the next batch is part of the manifest.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.operators.protocol import Done
from millstream.operators.windows.work import Report
from millstream.ops.windows.jobs import Family
from millstream.state.manifests import Manifest

_MARGIN = 1.25  # a switch has to be worth it by so much, so that it is not undone at once
_AGAIN = 16  # batches after which a family that does not merge tries how it would be


class Combining(msgspec.Struct, frozen=True):
    """What a family does since which batch, and what was measured last."""

    merges: bool = True
    since: int = 0
    left: float | None = None  # the share of rows that merging leaves; None: not measured yet
    merging: float = 0.0  # seconds per row, on the map side
    arriving: float = 0.0  # seconds per row, on the reduce side
    mappers: float = 1.0  # tasks that work at a time, by how evenly work is spread
    reducers: float = 1.0

    @property
    def cost(self) -> float:
        """What merging a row takes of the time of a batch."""
        return self.merging / self.mappers

    @property
    def gain(self) -> float:
        """What it saves: rows that fall together are neither taken in nor merged later."""
        return (1 - (self.left or 0.0)) * (self.merging + self.arriving) / self.reducers

    def after(self, reports: list[Report], batch: int) -> Combining:
        """With what a batch showed, and what to do from the next one on."""
        sent = [one.merged for one in reports if one.merged[0]]
        took = [one.took for one in reports if one.took]
        if not sent or not took:
            return self
        before, after, seconds = (sum(column) for column in zip(*sent, strict=True))
        known: dict[str, Any] = {
            "arriving": sum(took) / max(1, after),
            "reducers": sum(took) / max(took),
            "mappers": before / max(one[0] for one in sent),
        }
        if seconds:
            known |= {"left": after / before, "merging": seconds / before}
        return msgspec.structs.replace(self, **known)._decided(batch + 1)

    def _decided(self, batch: int) -> Combining:
        if self.left is None:
            return self
        if self.merges and self.cost > self.gain * _MARGIN:
            return msgspec.structs.replace(self, merges=False, since=batch)
        if not self.merges and self.gain > self.cost * _MARGIN:
            return msgspec.structs.replace(self, merges=True, since=batch)
        return self


def combining_of(manifest: Manifest, family: str) -> Combining:
    """What was measured of a family so far."""
    told = manifest.combining.get(family, {})
    return manifest.read(told, Combining, f"figures of what {family!r} combines")


def merges_chunks(family: Family, manifest: Manifest) -> bool:
    """Whether the next batch merges what the chunks of a task gave."""
    if not family.combines:
        return False
    known = combining_of(manifest, family.name)
    return known.merges or (manifest.batch + 1 - known.since) % _AGAIN == _AGAIN - 1


def measure_combining(family: Family, before: Manifest, done: Done, manifest: Manifest) -> None:
    """Add what a batch showed to its manifest."""
    if family.combines:
        known = combining_of(before, family.name)
        known = known.after(done.reports(family.name), done.batch.number)
        manifest.combining[family.name] = msgspec.structs.asdict(known)
