"""Fidelity: how much of its input a window stands on, and which window may be evicted next.

A participant that has come to a time inside a window has brought that share of it; the fidelity of
the window is the average over all participants (CMR, section 4.5). Windows leave in order, so only
the oldest open one is ever asked about. The driver asks, tasks compute the figures: both with the
same pure functions over the same progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from math import prod
from typing import Protocol

import numpy as np

from millstream.ops.chunks import Int64
from millstream.ops.times.progress import BEGIN, END, SourceProgress
from millstream.ops.times.shares import DIVERTED, KEPT, Shares
from millstream.ops.times.spans import Span

COLUMNS = ("fidelity", "participants", "closed_by")
_MOST_RANGES = 1000  # of panes with records; beyond that the nearest count as one
WAITING = "files that wait"

Ranges = list[tuple[int, int]]  # of panes, both ends included


@dataclass(frozen=True)
class Participant:
    """Somebody who brings records to an open window, as a closing policy sees it."""

    source: str  # the source, or the step whose results they are
    name: str  # who: a file, a value of the participant column, or again the source
    progress: float  # how much of the window it has brought, from 0 to 1
    done: bool  # nothing more for this window is expected of it
    silent: float  # seconds since it was heard of


@dataclass(frozen=True)
class OpenWindow:
    """The oldest open window of a step, as a closing policy is asked about it."""

    start: datetime | None  # None: of a landmark, which has no beginning
    end: datetime
    open_for: float  # seconds for which it has been the oldest
    participants: tuple[Participant, ...] = field(repr=False)

    @property
    def fidelity(self) -> float:
        """The share of its input that is there, averaged over participants."""
        return sum(one.progress for one in self.participants) / len(self.participants)


class Policy(Protocol):
    """Says whether the oldest open window leaves although it is not complete."""

    def closes(self, window: OpenWindow) -> str | None:
        """Why it leaves now, in a word; None: it stays open."""


@dataclass(frozen=True)
class Closing:
    """When the windows of a job leave, and who brings their records."""

    policy: Policy | None  # None: by the watermark only
    direct: frozenset[str] = frozenset()  # sources and keyed steps whose records it gets
    overflow: frozenset[str] = frozenset()  # sources of which it gets what overload diverts
    spilled: frozenset[str] = frozenset()  # the same of updaters; it hears of those above them

    @property
    def feeding(self) -> list[str]:
        """Whose records come to it at all."""
        return sorted(self.direct | self.overflow)

    def ways(self, source: str) -> list[str]:
        """Which of the records of a source, or of the events of an updater, come to it."""
        reaching = ((KEPT, self.direct), (DIVERTED, self.overflow | self.spilled))
        return [way for way, sources in reaching if source in sources]


@dataclass(frozen=True)
class Standing:
    """How far one participant has come."""

    source: str
    who: str | int  # a number is that of a file
    at: int  # the latest time it has brought
    passed: int  # the time before which it brings nothing more
    heard: int = 0  # the wall clock when something came last, in microseconds

    def share(self, start: int, end: int) -> float:
        """How much of a window it has brought."""
        return min(1.0, max(0.0, (self.at - start) / (end - start)))

    def has_begun(self, start: int) -> bool:
        """Whether it has brought anything of a window, also at its very start.

        The time of a step of ours is that of its watermark: it brought what lies before.
        """
        return self.at > start or (self.at == start and self.heard != END)


def standings(
    feeding: Iterable[str],
    progress: dict[str, SourceProgress],
    outputs: dict[str, int],
    heard: dict[str, dict[str, int]] | None = None,
) -> list[Standing]:
    """Who takes part in a step: participants of its sources, and keyed steps before it as one each.

    outputs: the watermark after every keyed step. heard: when participants of a source were.
    """
    found: list[Standing] = []
    for name in feeding:
        if name in progress:
            found.extend(_of_source(name, progress[name], (heard or {}).get(name, {})))
        else:
            at = outputs.get(name, BEGIN)
            found.append(Standing(name, "", at, at, END))  # it is never silent: it is ours
    return found


def _of_source(name: str, progress: SourceProgress, heard: dict[str, int]) -> list[Standing]:
    horizon, lateness = progress.horizon, progress.lateness
    if horizon.clock is not None and not progress.ended:
        passed = horizon.clock - (lateness or 0)
        return [Standing(name, "", horizon.clock, passed, horizon.clock)]
    at: dict[str | int, int] = dict.fromkeys(progress.awaited | progress.idle, BEGIN)
    at.update(progress.latest.items())
    known: dict[str | int, int] = dict(heard.items())
    for who, when in horizon.heard.items():
        known[who] = max(when, known.get(who, when))
    if not at:
        at.update(horizon.files.items())
        if horizon.unread is not None:
            at[WAITING] = horizon.unread
    if not at:
        at[""] = progress.top
    if progress.ended:
        return [Standing(name, who, END, END, END) for who in at]
    return [
        Standing(name, who, latest, _passed(latest, lateness), known.get(who, 0))
        for who, latest in at.items()
    ]


def _passed(latest: int, lateness: int | None) -> int:
    """The time before which nothing more comes of somebody who has come so far."""
    if latest in (BEGIN, END):  # it has not begun, or has ended
        return latest
    return BEGIN if lateness is None else latest - lateness


def fidelity_of(
    span: Span,
    end: int,
    all_of: list[Standing],
    closing: Closing,
    progress: dict[str, SourceProgress],
    shares_of: dict[str, Shares],
) -> tuple[float, str]:
    """The fidelity of the window that ends at a pane, and who took part of those expected.

    Of what somebody has brought counts what no overload policy kept from it, of a source
    (`progress`) or of an updater (`shares_of`).
    """
    start, until = span.moment(end - span.panes), span.moment(end)
    shares = [one.share(start, until) for one in all_of]
    seen = sum(one.has_begun(start) for one in all_of)
    reached = {
        name: one.shares.of(start, until, one.top, ways)
        for name, one in progress.items()
        if one.shares is not None and (ways := closing.ways(name))
    }
    for name, one in shares_of.items():
        if ways := closing.ways(name):
            reached[name] = one.of(start, until, start, ways)
    came = (share * reached.get(one.source, 1.0) for share, one in zip(shares, all_of, strict=True))
    through = prod(reached.get(name, 1.0) for name in closing.spilled - closing.direct)
    return through * sum(came) / len(shares), f"{seen}/{len(shares)}"


# -- which windows are open -----------------------------------------------------------------------


def ranges_of(panes: Int64) -> Ranges:
    """Panes as ranges without gaps."""
    if not len(panes):
        return []
    found = np.unique(panes)
    breaks = np.flatnonzero(np.diff(found) > 1)
    lows = found[np.concatenate(([0], breaks + 1))].tolist()
    highs = found[np.concatenate((breaks, [len(found) - 1]))].tolist()
    return list(zip(lows, highs, strict=True))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All panes of some ranges; if these are very many, with the smallest gaps filled."""
    out: Ranges = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    while len(out) > _MOST_RANGES:
        gaps = [after[0] - before[1] for before, after in pairwise(out)]
        at = gaps.index(min(gaps))
        out[at : at + 2] = [(out[at][0], out[at + 1][1])]
    return out


def still_needed(span: Span, closed: int) -> int:
    """The first pane that a window holds which has not left."""
    return closed + span.step - span.panes


def open_ends(span: Span, panes: Ranges, closed: int) -> Iterator[int]:
    """The ends of windows that have records and have not left, the oldest first."""
    while True:
        first = still_needed(span, closed)
        pane = next((max(low, first) for low, high in panes if high >= first), None)
        if pane is None:
            return
        after = int(span.align_down(np.array([pane]))[0]) + span.step  # the first end behind it
        closed = max(closed + span.step, after)
        yield closed
