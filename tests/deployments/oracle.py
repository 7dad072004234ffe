"""What a flow must answer, from the definition of late in plain Python.

Written from the words alone, before the engine's code for it was read:

    A record is late if its time is more than the lateness before the latest time that precedes it,
    by position, in its own participant. All others are in their windows. Nothing else is late. A
    window closes when every participant has passed its end by the lateness.

Times are whole milliseconds. A participant is a list of records in the order of their positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Record:
    """One record of the input; `id` tells it from all others."""

    id: int
    ts: int
    host: str
    key: str
    v: int


@dataclass(frozen=True)
class Window:
    """A tumbling window has the same size and slide; a session has a gap only."""

    size: int = 0
    slide: int = 0
    gap: int = 0


Participants = dict[str, list[Record]]


@dataclass(frozen=True)
class Input:
    """Records by participant, and how far they may be out of order (None: as far as they like)."""

    participants: Participants
    lateness: int | None
    files: Participants | None = None  # where the records stand, if not each participant in one
    trusted: float = math.inf  # a time after this is too far ahead of the clock to precede anything

    def records(self) -> list[Record]:
        """All of them."""
        return [record for found in self.participants.values() for record in found]

    def late(self) -> list[Record]:
        """The records that are late, each by what precedes it in its own participant."""
        late: list[Record] = []
        if self.lateness is None:
            return late
        for records in self.participants.values():
            for position, record in enumerate(records):
                before = [r.ts for r in records[:position] if r.ts <= self.trusted]
                if before and record.ts < max(before) - self.lateness:
                    late.append(record)
        return late

    def in_time(self) -> list[Record]:
        """All others, in the order in which functions see them: of time, then of their places."""
        late = {record.id for record in self.late()}
        places = self.files or self.participants
        records = [record for found in places.values() for record in found]
        return sorted((r for r in records if r.id not in late), key=lambda r: r.ts)

    def passed(self) -> int:
        """The time that every participant has passed by the lateness."""
        assert self.lateness is not None
        return min(max(r.ts for r in found) for found in self.participants.values()) - self.lateness


def windows(window: Window, records: Iterable[Record]) -> list[Row]:
    """(key, start, end, n, total, low, last) of every window that has records, sorted."""
    inside: dict[tuple[str, int, int], list[Record]] = {}
    ordered = list(records)
    for key in {record.key for record in ordered}:
        mine = [record for record in ordered if record.key == key]
        for start, end in _sessions(window, mine) if window.gap else _aligned(window, mine):
            inside[key, start, end] = [r for r in mine if start <= r.ts < end]
    return sorted(
        (*place, len(found), sum(r.v for r in found), min(r.v for r in found), found[-1].v)
        for place, found in inside.items()
    )


def _aligned(window: Window, records: list[Record]) -> set[tuple[int, int]]:
    """The windows of `size` that begin at multiples of `slide` and cover one of the records."""
    covering = set()
    for record in records:
        start = record.ts // window.slide * window.slide
        while start + window.size > record.ts:
            covering.add((start, start + window.size))
            start -= window.slide
    return covering


def _sessions(window: Window, records: list[Record]) -> list[tuple[int, int]]:
    """From the first to the last record plus the gap, of records less than the gap apart."""
    found: list[tuple[int, int]] = []
    for record in records:
        if found and record.ts < found[-1][1]:
            found[-1] = (found[-1][0], record.ts + window.gap)
        else:
            found.append((record.ts, record.ts + window.gap))
    return found


def updates(records: Iterable[Record]) -> list[Row]:
    """(key, n, total, id) after every event of a counting updater, in the order of events."""
    slates: dict[str, tuple[int, int]] = {}
    rows: list[Row] = []
    for record in records:
        n, total = slates.get(record.key, (0, 0))
        slates[record.key] = (n + 1, total + record.v)
        rows.append((record.key, *slates[record.key], record.id))
    return sorted(rows)
