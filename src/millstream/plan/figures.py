"""Figures: what a checkpoint says about the steps of a plan, as of its last committed batch.

Reading them takes no lock and changes nothing, so they can be looked at while the flow runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from millstream.errors import CheckpointError
from millstream.graph import nodes
from millstream.operators.windows.combining import Combining, combining_of
from millstream.ops.times.progress import BEGIN, END
from millstream.ops.windows.jobs import Family
from millstream.ops.windows.rates import Rate
from millstream.ops.zones import timestamp
from millstream.plan.stages import Plan
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest, read_manifest

_WAYS = ("dead", "late", "diverted", "dropped", "failed")  # shown where there are any


@dataclass(frozen=True)
class Stored:
    """How much of one table of a family is stored."""

    table: str
    rows: int
    segments: int


@dataclass(frozen=True)
class Figures:
    """The last committed batch, and the one before it if it is still there."""

    plan: Plan
    now: Manifest
    before: Manifest | None
    watermarks: dict[str, int]  # sources and keyed operators; those that are known

    @property
    def title(self) -> str:
        """Which batch this is about."""
        at = datetime.fromtimestamp(self.now.at, UTC)
        end = ", complete" if self.now.complete else ""
        return f"batch {self.now.batch} of {at:%Y-%m-%d %H:%M:%S}Z{end}"

    def account(self, step: str) -> dict[str, int]:
        """Where the records of a step went so far; empty if none came to it."""
        return self.now.ledger.get(step, {})

    def losses(self, step: str) -> list[str]:
        """What did not go into results: "3 late", "1 dead"."""
        account = self.account(step)
        return [f"{account[way]:,} {way}" for way in _WAYS if account.get(way)]

    def last_batch(self, step: str) -> int | None:
        """Records that came to a step in the last batch; None if that is not known."""
        if self.before is None and self.now.batch:
            return None
        earlier = self.before.ledger.get(step, {}) if self.before else {}
        return self.account(step).get("offered", 0) - earlier.get("offered", 0)

    def rate(self, step: str) -> float | None:
        """Records per second that came to a step between the last two commits."""
        count = self.last_batch(step)
        if count is None or self.before is None or self.now.at <= self.before.at:
            return None
        return count / (self.now.at - self.before.at)

    def results(self, node: nodes.Node) -> int | None:
        """Rows a step gave, as those that take them counted; None if nobody does."""
        takers = self.plan.consumers(node)
        shared = [t for t in takers if isinstance(t, nodes.Union)]  # it counts others' rows too
        plain = [self.account(t.name).get("offered", 0) for t in takers if t not in shared]
        return max(plain) if plain else None

    def left_until(self, operator: str) -> int | None:
        """The end of the last window that has left, in microseconds."""
        return self.now.closed.get(operator)

    def strategy(self, operator: str) -> str | None:
        """How the windows of an operator slid last."""
        return self.now.strategies.get(operator)

    def measured(self, family: Family) -> Rate | None:
        """What a family keeps, and the rates that say so; None if nothing was measured."""
        known = self.now.rates.get(family.name)
        return None if known is None else msgspec.convert(known, Rate)

    def combining(self, family: Family) -> Combining:
        """How much a family combines on the map side, and what was measured of it."""
        return combining_of(self.now, family.name)

    def tables(self, owner: str) -> list[Stored]:
        """What a family or an updater keeps."""
        found = []
        for table, shards in self.now.segments.get(owner, {}).items():
            segments = [segment for several in shards.values() for segment in several]
            if segments:
                found.append(Stored(table, sum(s.rows for s in segments), len(segments)))
        return found


def read_figures(plan: Plan, checkpoint: str | Path) -> Figures | None:
    """The figures of a plan from its checkpoint; None if no batch was committed yet."""
    place = Checkpoint(checkpoint, create=False)
    program = place.read_program()
    if program is None:
        if not place.manifests.exists():
            raise CheckpointError(f"{place.path} is not a checkpoint")
        return None
    if program.get("flow") != plan.flow:
        raise CheckpointError(
            f"checkpoint {place.path} belongs to flow {program.get('flow')!r}, this is "
            f"{plan.flow!r}"
        )
    now = place.latest()
    if now is None:
        return None
    return Figures(plan, now, _before(place, now), _watermarks(plan, now))


def _before(place: Checkpoint, now: Manifest) -> Manifest | None:
    try:
        return read_manifest(place.manifests, now.batch - 1)
    except (CheckpointError, FileNotFoundError):  # damaged, or collected meanwhile
        return None


def _watermarks(plan: Plan, now: Manifest) -> dict[str, int]:
    """The watermarks of sources and keyed operators at the moment of the commit."""
    sources = {node.name: now.source(node.name).watermark for node in plan.sources()}
    known = {name: at for name, at in sources.items() if at is not None}
    left = plan.evicted(now.closed)
    return known | plan.times(sources, reached=now.watermarks, left=left)[0]


def moment(at: int) -> str:
    """A time of a watermark or window, as short as it is exact."""
    if at >= END:
        return "the end"
    if at <= BEGIN:
        return "none yet"
    try:
        when = timestamp(at)
    except OverflowError:
        return f"{at} us"
    spec = "microseconds" if when.microsecond % 1000 else "milliseconds"
    plain = when.isoformat(timespec=spec if when.microsecond else "seconds")
    return plain.removesuffix("+00:00") + "Z"
