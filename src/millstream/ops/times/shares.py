"""Shares: how much of a source came to the steps behind it, where overload keeps some back.

A dropped record is counted and not read, so nobody knows its time. But pieces are taken in their
order: it stood between records that were read, and records in between are taken to be spread evenly
over the time in between. So a source has a history in event time of what was kept, diverted and
dropped, and a window the share of its records that reached it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from millstream.ops.chunks import Int64

NEVER = (sys.maxsize, -sys.maxsize)  # from when to when records are whose times are not known
_MOST = 128  # spells that are remembered; older ones are put together the more the older they are

_STRETCHES = 8  # of a batch in a task, in which records went one way

KEPT, DIVERTED = "kept", "diverted"


class Spell(NamedTuple):
    """Some time, both ends included, and what became of the records in it."""

    low: int
    high: int
    kept: int = 0
    diverted: int = 0
    dropped: int = 0

    def inside(self, start: int, end: int) -> float:
        """The part of it that lies in a window."""
        common = min(self.high + 1, end) - max(self.low, start)
        return max(0, common) / (self.high + 1 - self.low)

    def joined(self, other: Spell) -> Spell:
        """Both as one."""
        rows = (one + two for one, two in zip(self[2:], other[2:], strict=True))
        return Spell(min(self.low, other.low), max(self.high, other.high), *rows)


@dataclass
class Lot:
    """Records that went one way in a batch, with the times they are of, where these are known."""

    rows: int = 0
    low: int = NEVER[0]
    high: int = NEVER[1]

    def add(self, rows: int, low: int = NEVER[0], high: int = NEVER[1]) -> None:
        """More of them."""
        self.rows += rows
        self.low, self.high = min(self.low, low), max(self.high, high)

    @property
    def timed(self) -> bool:
        """Whether it is known when they were."""
        return self.rows > 0 and self.low <= self.high


@dataclass
class Taken:
    """What became of the records of a source in a batch, or in one of its tasks."""

    kept: Lot = field(default_factory=Lot)
    diverted: Lot = field(default_factory=Lot)
    dropped: Lot = field(default_factory=Lot)

    def merge(self, other: Taken) -> None:
        """Take in what another task did."""
        for mine, theirs in zip(self.lots(), other.lots(), strict=True):
            mine.add(theirs.rows, theirs.low, theirs.high)

    def lots(self) -> tuple[Lot, Lot, Lot]:
        """What was kept, diverted and dropped."""
        return self.kept, self.diverted, self.dropped

    def spells(self) -> Iterator[Spell]:
        """Those whose times are known."""
        for at, lot in enumerate(self.lots()):
            if lot.timed:
                rows = [0, 0, 0]
                rows[at] = lot.rows
                yield Spell(lot.low, lot.high, *rows)


@dataclass(frozen=True)
class Shares:
    """What became of the records of a source, over event time."""

    oldest: bool  # of what waits the oldest is kept: what is dropped stands behind it
    spells: tuple[Spell, ...] = ()
    unplaced: int = 0  # dropped behind the latest time that was read

    def after(self, top: int | None, taken: Taken) -> Shares:
        """The same after a batch; `top`: the latest time that was read before it, if any was."""
        untimed = 0 if taken.dropped.timed else taken.dropped.rows
        known = list(taken.spells())
        if not known:
            return replace(self, unplaced=self.unplaced + untimed)
        between = self.unplaced + (0 if self.oldest else untimed)
        if between:
            low = min(one.low for one in known)
            since = low if top is None else top
            known.append(Spell(min(since, low), max(since, low), dropped=between))
        spells = remembered((*self.spells, *known))
        return Shares(self.oldest, spells, untimed if self.oldest else 0)

    def with_spells(self, spells: tuple[Spell, ...]) -> Shares:
        """The same after a batch in which all times were known."""
        return replace(self, spells=remembered((*self.spells, *spells))) if spells else self

    def of(self, start: int, end: int, top: int, ways: Collection[str]) -> float:
        """The share of the records of a window that went one of these ways."""
        spells = [*self.spells, Spell(top, top, dropped=self.unplaced)]
        came = sum(
            one.inside(start, end) * sum(getattr(one, way) for way in ways) for one in spells
        )
        offered = sum(one.inside(start, end) * sum(one[2:]) for one in spells)
        return min(1.0, max(0.0, came / offered)) if offered > 0 else 1.0


def spells_of(times: Int64, **ways: int) -> tuple[Spell, ...]:
    """Records of these times, in a few stretches without the largest gaps.

    ways: how often each goes which way; -1 if it had been taken to.
    """
    if not len(times):
        return ()
    at = np.sort(times)
    cuts = np.sort(np.argsort(-np.diff(at), kind="stable")[: _STRETCHES - 1] + 1)
    pieces = np.split(at, cuts)
    return tuple(
        Spell(int(p[0]), int(p[-1]), **{way: each * len(p) for way, each in ways.items()})
        for p in pieces
    )


def remembered(some: Iterable[Spell]) -> tuple[Spell, ...]:
    """At most so many: neighbours become one where that is least, for how long ago they were."""
    spells = sorted(some)
    if len(spells) <= _MOST:
        return tuple(spells)
    newest = max(one.high for one in spells)
    while len(spells) > _MOST:
        gaps = [(two.high - one.low) / (newest + 1 - one.low) for one, two in pairwise(spells)]
        at = gaps.index(min(gaps))
        spells[at : at + 2] = [spells[at].joined(spells[at + 1])]
    return tuple(spells)
