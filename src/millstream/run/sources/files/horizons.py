"""The times of files: how far each came and how fast, and where it holds the watermark."""

from __future__ import annotations

import time
from itertools import chain, takewhile

from millstream.api.sources import Files
from millstream.ops.times.progress import BEGIN, Horizon
from millstream.run.sources.files.extents import Extents
from millstream.run.sources.files.listing import Inode
from millstream.run.sources.files.merging import Turns
from millstream.run.sources.files.registry import Known, Registry, is_sealed
from millstream.run.sources.quiet import Quiet, Stamp, came_to, how_far

Taken = dict[int, tuple[int, int | None]]  # file -> how much of it, and from when on


class Horizons:
    """The files of a source as participants: one that goes on holds the watermark where it is."""

    settled = 600.0  # a followed file unchanged for so long is complete until it grows again

    def __init__(
        self, spec: Files, kind: str, registry: Registry, unread: Turns, extents: Extents
    ) -> None:
        self._quiet = Quiet(spec.idle_timeout)
        self._spec, self._kind = spec, kind
        self._registry, self._unread, self._extents = registry, unread, extents
        self._last: Known | None = None  # of followed files that cannot grow, the furthest

    def look(self, taken: Taken, copying: bool, now: int, since: int) -> Horizon:
        """What is still to come; followed files hold the watermark until they are idle.

        taken: what the next batch reads. copying: a file is being copied, of which nothing is
            known.
        """
        if self._spec.time is None:
            return Horizon(clock=now)
        if not self._unread.timed:
            return Horizon()
        unread = self._unread.files[0].first if self._unread.files else None
        if copying:
            unread = BEGIN
        if not self._unread.merged:
            return Horizon(unread)
        follow = self._spec.follow
        going: list[Known] = []
        blank: list[Known] = []
        ends = [] if self._last is None else [self._last]
        for number, file in self._registry.open.items():
            if file.offset < file.end or (follow and number in taken):
                going.append(file)
            elif follow and not file.done:
                (blank if file.latest is None else ends).append(file)
        silent = self._without_records(blank) if follow else {}
        return self._quiet.horizon(going, ends, silent, now, since, unread=unread)

    def _without_records(self, begun: list[Known]) -> dict[Inode, Stamp]:
        """Files that take part since they were listed, and of which no time is known."""
        waiting = takewhile(lambda file: file.first is None, reversed(self._unread.files))
        known = {file.inode: file.stamp for file in chain(waiting, begun) if file.inode is not None}
        return self._extents.unripe | known

    def reached(self, taken: Taken, files: dict[int, int], now: int) -> None:
        """Note how far files came, and how fast: time for what was taken."""
        much = gained = 0
        for number, (mine, before) in taken.items():
            by = came_to(self._registry.files[number], files.get(number), mine, before, now)
            if by is not None:
                much, gained = much + mine, gained + by
        if much:
            self._unread.pace = gained / much

    def at_rest(self) -> list[Known]:
        """Files that were read to their end and are not waited for."""
        found = [file for file in self._registry.open.values() if self._is_settled(file)]
        if self._spec.follow:
            ends = [f for f in found if f.latest is not None and not f.done]
            self._last = max([*ends, *filter(None, [self._last])], key=how_far, default=None)
        return found

    def _is_settled(self, file: Known) -> bool:
        if file.offset < file.end:
            return False
        if not self._spec.follow or file.done or is_sealed(self._kind, file.path):
            return True
        if self._unread.merged and self._quiet.idle is None:
            return False  # it holds the watermark for ever
        old = time.time() - max(self.settled, 2 * (self._quiet.idle or 0) / 1e6)
        return file.stamp is not None and file.stamp[1] < old * 1e9
