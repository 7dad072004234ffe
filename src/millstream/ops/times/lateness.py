"""Which records are late: decided where they are read, by position, and never again.

A record is late if its time is more than the lateness before the latest time that precedes it, by
position, in its own participant: a file, a whole source, or a value of the participant column. So
it does not depend on batches, tasks or speed. A window leaves once every participant has passed its
end by the lateness; so no record that is not late can miss its window.

Pieces of one participant may be read by several tasks at once. Each task marks with what it knows:
what was committed before, and what it read itself. `out_of_order` finds the sources for which that
was not enough, because a record of a later piece is late, or counts later, by an earlier one. Their
batch is run again with every participant in one task. Input in order within its lateness never
needs that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappush, heapreplace, merge
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Chunk, Int64, Mask
from millstream.ops.times.progress import BEGIN, Reached, SourceProgress
from millstream.ops.times.shares import NEVER

Place = tuple[int, int]  # the file (or piece) a split is of, and where it begins


@dataclass
class Extent:
    """When the first of its records counts, and the latest time in a split, per participant."""

    place: Place
    spans: dict[str | int, tuple[int, int]] = field(default_factory=dict)
    joined: bool = False  # it began participants, judged by what its own task knew

    def add(self, who: str | int, low: int, high: int) -> None:
        """Take in some more records."""
        known = self.spans.get(who, (low, high))
        self.spans[who] = (min(low, known[0]), max(high, known[1]))


class Watch:
    """The records of one source in one task: how far they come, and which of them are late."""

    def __init__(
        self, progress: SourceProgress, participant: str | None, future: int, most: int = 10_000
    ) -> None:
        self.progress, self.participant, self.most = progress, participant, most
        self.limit = future  # a time beyond it is not trusted
        self.ahead = 0  # records beyond it
        self.reached = Reached()
        self.extents: dict[Place, Extent] = {}
        self._known: dict[Any, int] = dict(progress.latest)
        # By arrival nothing is late, and without a lateness nothing leaves before the end.
        self._by_arrival = progress.horizon.clock is not None
        self._lateness = None if self._by_arrival else progress.lateness
        self._declared = progress.awaited

    def mark(self, chunk: Chunk, place: Place, file: int | None, after: int | None) -> Int64 | None:
        """When each record of a chunk counts; None if none is late.

        A late one counts when its participant has come so far that it is late, not at its time.

        `file`: the file it is of; `after`: the latest time in that before this batch.
        """
        if not len(chunk):
            return None
        trusted = chunk.ts <= self.limit
        seen = np.where(trusted, chunk.ts, BEGIN)
        if not self._by_arrival:
            self.ahead += len(chunk) - int(np.count_nonzero(trusted))
        high = int(seen.max())
        self.reached.top = max(self.reached.top, high)
        if file is not None and file in self.progress.horizon.files:
            _raise(self.reached.files, file, high)
        if self.participant is not None:
            return self._by_value(chunk, seen, place)
        who: str | int = "" if file is None else file
        if after is not None:
            _raise(self._known, who, after)
        before = self._known.get(who, BEGIN)
        _raise(self._known, who, high)
        if file is None:
            _raise(self.reached.latest, "", high)
        if self._lateness is None:
            return None
        due = _due(chunk.ts, seen, before, self._lateness)
        self._note(place, who, chunk.ts, due, high)
        return due

    def note_way(self, ts: Int64, way: str) -> None:
        """Which way records of these times go, if some are kept from the steps behind."""
        if self.progress.shares is not None and len(ts):
            times = ts[ts <= self.limit]
            low, high = (int(times.min()), int(times.max())) if len(times) else NEVER
            getattr(self.reached.taken, way).add(len(ts), low, high)

    def _note(self, place: Place, who: str | int, ts: Int64, due: Int64 | None, high: int) -> None:
        # Not only who is late must not depend on tasks, but also when what is late counts.
        counts = ts if due is None else due
        self.extents.setdefault(place, Extent(place)).add(who, int(counts.min()), high)

    # -- participants by a column -----------------------------------------------------------------

    def one_too_many(self, chunk: Chunk) -> tuple[Mask, str] | None:
        """Records of participants that there is no room for, and why; None if there are none.

        Each is in every manifest, and may hold back the watermark: the first ones count.
        """
        known = self._known.keys() | self._declared
        if self.participant is None or len(known) + len(chunk) <= self.most:
            return None
        names = participants_of(chunk, self.participant).dictionary_encode()
        values = names.dictionary.to_pylist()  # in the order of their first records
        new = [at for at, name in enumerate(values) if name not in known]
        beyond = new[max(0, self.most - len(known)) :]
        if not beyond:
            return None
        why = (
            f"participant={self.participant!r} has more different values than "
            f"max_participants={self.most:,}. Name a column of the few that send (a node, a "
            "gateway), leave participant= out, or set max_participants higher"
        )
        return np.isin(names.indices.to_numpy(zero_copy_only=False), beyond), why

    def _by_value(self, chunk: Chunk, seen: Int64, place: Place) -> Int64 | None:
        names = participants_of(chunk, str(self.participant)).dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False)
        values = names.dictionary.to_pylist()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(values) + 1))
        rows = {name: order[bounds[i] : bounds[i + 1]] for i, name in enumerate(values)}
        due = chunk.ts.copy()
        starts = self._joins(rows, seen, place, due)
        lows = np.minimum.reduceat(chunk.ts[order], bounds[:-1]).tolist()
        highs = np.maximum.reduceat(seen[order], bounds[:-1]).tolist()
        for name, low, high in zip(values, lows, highs, strict=True):
            start = starts.get(name)
            if start == 0 and self._is_on_time(name, low, high):  # as most are, of many
                self._on_time(name, low, high, place)
            elif start is not None:
                self._value(name, rows[name][start:], chunk.ts, seen, place, due)
        return due if (due > chunk.ts).any() else None

    def _is_on_time(self, name: str, low: int, high: int) -> bool:
        """Whether no record of a participant is late, whatever their order."""
        known = self._known.get(name, BEGIN)
        return self._lateness is None or low >= max(known, high) - self._lateness

    def _on_time(self, name: str, low: int, high: int, place: Place) -> None:
        """Records of a participant of which none is late."""
        if self._lateness is not None:
            self.extents.setdefault(place, Extent(place)).add(name, low, high)
        _raise(self._known, name, high)
        if high > BEGIN:
            _raise(self.reached.latest, name, self._known[name])

    def _value(
        self, name: str, mine: Int64, times: Int64, seen: Int64, place: Place, due: Int64
    ) -> None:
        """The records of one participant, from the one on with which it takes part."""
        ts, high = times[mine], int(seen[mine].max())
        if self._lateness is not None:
            found = _due(ts, seen[mine], self._known.get(name, BEGIN), self._lateness)
            if found is not None:
                due[mine] = found
            self._note(place, name, ts, found, high)
        _raise(self._known, name, high)
        if high > BEGIN:
            _raise(self.reached.latest, name, self._known[name])

    def _joins(
        self, rows: dict[str, Int64], seen: Int64, place: Place, due: Int64
    ) -> dict[str, int]:
        """From which of its rows on each participant takes part.

        Somebody nobody knew of joins with the first record that does not lie before the watermark
        of all others at that place, as if records were read one at a time; until then it is late.
        It has then come as far as that watermark, which so never goes back.
        """
        starts = dict.fromkeys(rows, 0)
        if self._lateness is None or self.progress.undeclared:
            return starts
        new = {name for name in rows if name not in self._known and name not in self._declared}
        if not new:
            return starts
        self.extents.setdefault(place, Extent(place)).joined = True
        for name in new:
            del starts[name]
        idle = self.progress.idle
        going = {who: at for who, at in self._known.items() if who not in idle}
        slowest = _Slowest(going, self.progress.awaited)
        for at, name, index in _in_order(rows):
            when = int(seen[at])
            if name in new:
                others = slowest.at() - self._lateness
                if when == BEGIN:
                    continue  # such a time is not trusted, so it lets nobody join either
                if when < others:
                    due[at] = others
                    continue
                starts[name] = index
                if others > BEGIN:
                    self._known[name] = others + self._lateness
                new.remove(name)
                if not new:
                    break
            slowest.raise_to(name, max(when, self._known.get(name, BEGIN)))
        return starts


def participants_of(chunk: Chunk, column: str) -> pa.Array:
    """Whose each record is, by the column that says it."""
    return pc.cast(chunk.column(column), pa.string()).fill_null("")


class _Slowest:
    """Where the last of many participants is, as they go on."""

    def __init__(self, latest: dict[Any, int], awaited: frozenset[str]) -> None:
        self._latest, self._awaited = latest, awaited - latest.keys()
        self._heap = [(at, who) for who, at in latest.items()]  # perhaps of earlier
        heapify(self._heap)

    def raise_to(self, who: str, at: int) -> None:
        if at > BEGIN:
            if who not in self._latest:
                heappush(self._heap, (at, who))
                self._awaited -= {who}
            _raise(self._latest, who, at)

    def at(self) -> int:
        """The lowest of all; BEGIN if there is nobody, or somebody is waited for."""
        if not self._heap or self._awaited:
            return BEGIN
        while (now := self._latest[self._heap[0][1]]) > self._heap[0][0]:
            heapreplace(self._heap, (now, self._heap[0][1]))
        return self._heap[0][0]


def _in_order(rows: dict[str, Int64]) -> Iterator[tuple[int, str, int]]:
    """The rows of all participants by position: the row, whose it is, and which of theirs."""
    each = ((zip(mine.tolist(), repeat(name), count())) for name, mine in rows.items())
    return merge(*each)


def _due(ts: Int64, seen: Int64, before: int, lateness: int) -> Int64 | None:
    """When records count that follow each other; `seen`: those times that move their watermark."""
    if int(ts.min()) >= max(before, int(seen.max())) - lateness:
        return None
    preceding = np.empty(len(ts), np.int64)
    preceding[0] = before
    np.maximum.accumulate(seen[:-1], out=preceding[1:])
    np.maximum(preceding, before, out=preceding)
    due = np.maximum(ts, preceding - lateness)
    return due if (due > ts).any() else None


def _raise(into: dict[Any, int], who: str | int, at: int) -> None:
    if at > BEGIN:
        into[who] = max(at, into.get(who, at))


def out_of_order(extents: Iterable[Extent], progress: SourceProgress) -> bool:
    """Whether some task would have marked more, had it known what others read before its pieces."""
    if progress.lateness is None:
        return False
    highest: dict[str | int, int] = {}
    pieces = sorted(extents, key=lambda extent: extent.place)
    for number, extent in enumerate(pieces):
        if number and extent.joined:
            return True
        for who, (low, high) in extent.spans.items():
            if highest.get(who, BEGIN) - progress.lateness > low:
                return True
            highest[who] = max(high, highest.get(who, high))
    return False
