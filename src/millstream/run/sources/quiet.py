"""Where files and partitions hold the watermark, also followed ones with nothing to read now.

One that goes on holds it where it came to; so does one at its end, and one without a record where
it stood when that was listed, each until nothing was heard of it for the idle timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.durations import Duration, micros
from millstream.ops.times.progress import BEGIN, END, Horizon
from millstream.run.sources.files.listing import Inode

Stamp = tuple[int, int] | None


class Participant(Protocol):
    """A file or a partition: its number, the latest time in it, when it was heard of."""

    latest: int | None
    heard: int
    pace: float | None  # microseconds of event time for as much as it is read by

    @property
    def number(self) -> int | None: ...
    @property
    def reached(self) -> int | None: ...


class Quiet:
    """The participants of one source; `idle` is the timeout, None waits for ever."""

    def __init__(self, timeout: Duration | None) -> None:
        self.idle = None if timeout is None else micros(timeout, "idle_timeout")
        self._since: int | None = None  # the wall clock since when there is somebody who looks
        self._blank: dict[Inode, tuple[Stamp, int, int]] = {}  # stamp, where it holds, when heard
        self._stood = BEGIN  # where files hold that are listed next and have no record
        self._held: int | None = None  # since when such files hold

    def horizon(
        self,
        going: Sequence[Participant],
        ends: Sequence[Participant],
        blank: Mapping[Inode, Stamp],
        now: int,
        since: int,
        *,
        unread: int | None = None,
        alone: bool = True,
    ) -> Horizon:
        """What is still to come: of those that go on, and of silent ones for a while.

        ends: all of them was read. blank: they are there, and nothing is known of their times.
        unread: the first time of those that wait. alone: nobody goes on beside those at their ends.
        """
        # Nothing counts as silence before the first look, nor before the run listened again.
        self._since = max(now if self._since is None else self._since, since)
        holding = [*going, *self._at_their_ends(ends, now, alone)]
        hold = {one.number: one for one in holding if one.number is not None}
        files = {n: BEGIN if one.reached is None else one.reached for n, one in hold.items()}
        listed = self._without_records(blank, now)
        self._stands(_lowest(unread, *files.values()), listed is not None, now)
        heard: dict[int | str, int] = {n: one.heard for n, one in hold.items()}
        return Horizon(_lowest(unread, listed), files, heard=heard)

    def _at_their_ends(
        self, ends: Sequence[Participant], now: int, alone: bool
    ) -> list[Participant]:
        """Files of which all is read, and that have not been silent for too long.

        The furthest has twice the time, so that what waits for the others can leave before nobody
        holds anything.
        """
        furthest = max(ends, key=how_far, default=None)
        return [
            file
            for file in ends
            if self.idle is None
            or self._silence(file.heard, now) <= self.idle * (1 + (alone and file is furthest))
        ]

    def _without_records(self, blank: Mapping[Inode, Stamp], now: int) -> int | None:
        """Where files without a record hold, the lowest of all; None if none does."""
        before, self._blank = self._blank, {}
        for inode, stamp in blank.items():
            was, at, heard = before.get(inode, (stamp, self._stood, now))
            self._blank[inode] = (stamp, at, heard if was == stamp else now)
        return min(
            (
                at
                for _, at, heard in self._blank.values()
                if self.idle is None or self._silence(heard, now) <= self.idle
            ),
            default=None,
        )

    def _stands(self, others: int | None, held: bool, now: int) -> None:
        """Note how far the others are, and whether files without a record hold the watermark.

        While they do it stands, for whoever is listed meanwhile too. But not for longer than the
        timeout, or files that never get a record could follow each other and hold it for ever.
        """
        self._held = None if not held else now if self._held is None else self._held
        stuck = self._held is not None and (
            self.idle is None or self._silence(self._held, now) <= self.idle
        )
        if others is not None and not stuck:
            self._stood = max(self._stood, others)

    def _silence(self, heard: int, now: int) -> int:
        assert self._since is not None
        return now - max(heard, self._since)


def _lowest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


def came_to(
    one: Participant, at: int | None, much: int, before: int | None, now: int
) -> int | None:
    """Note how far its time came with so much of it, and how fast; gives by how long, if known."""
    one.heard = now
    if at is None:
        return None
    one.latest = at if one.latest is None else max(at, one.latest)
    if before is None or before <= BEGIN or not much:
        return None
    gained = max(0, one.latest - before)
    one.pace = gained / much
    return gained


def how_far(file: Participant) -> int:
    """How far its time has come; nothing is known of a file without a record."""
    if file.reached is None:
        return END if file.number is None else BEGIN
    return file.reached
