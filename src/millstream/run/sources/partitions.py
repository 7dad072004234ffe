"""Partitions of Kafka topics as a source, in the driver: which there are, what to read next.

A batch reads exact ranges of offsets, which the driver plans from what is committed in Kafka; they
become durable with the manifest. Every partition is a participant of the watermark, as files are:
one with records that wait holds it where it came to, one at its end until it is idle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from millstream.api.sources.kafka import Kafka, moment_of
from millstream.durations import micros
from millstream.errors import RunError
from millstream.io.kafka.consuming import Stretch, close_readers
from millstream.io.kafka.offsets import Away, Offsets, Partition
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.times.progress import BEGIN, Horizon
from millstream.run.sources.files.merging import share
from millstream.run.sources.quiet import Quiet, came_to
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.splits import AnySplit
from millstream.state.manifests import PartitionState, SourceState

_ROW_BYTES = 64  # what the engine takes a row for, when it asks how much waits
_FIRST_ROWS = 2_000  # of the first batch, before it is known how large records are
_LEAST_ROWS = 1_000  # a piece with fewer is not worth a task of its own
_DISCOVER = 2.0  # seconds between looks for new topics and partitions
_MOST = 1 << OFFSET_BITS


@dataclass
class Part:
    """A partition: how far it was read, and how far its time has come."""

    number: int
    topic: str
    id: str  # of the topic
    partition: int
    base: int
    next: int
    end: int
    latest: int | None = None
    heard: int = 0
    pace: float | None = None  # microseconds of event time per offset
    lost: int = 0  # offsets that were removed before they were read, not told yet

    @property
    def reached(self) -> int | None:
        """How far its time has come."""
        return self.latest

    @property
    def who(self) -> Partition:
        """Topic and number."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class PartitionsTracker(Tracker):
    """The partitions of a source by topic and number."""

    def __init__(self, number: int, spec: Kafka, state: SourceState, most: int | None = None):
        self.number, self.spec = number, spec
        self.ended = False
        self.most = most  # of a sample: how many records there are at all
        self.parts = [
            Part(n, p.topic, p.id, p.partition, p.base, p.next, p.next, p.latest)
            for n, p in enumerate(state.partitions)
        ]
        self._by_name = {part.who: part for part in self.parts}
        self._fresh = not self.parts  # nothing was ever read: start= says where to begin
        self._timed = spec.time is not None and spec.lateness_micros() is not None
        self._quiet = Quiet(spec.idle_timeout)
        self._patience = micros(spec.wait, "wait") / 1e6
        self._offsets = Offsets(spec.cluster, self._patience)
        self._taken: dict[int, tuple[int, int | None]] = {}  # partition -> how much, from when on
        self._record_bytes: float | None = None
        self._looked = False
        self._next_discovery = 0.0
        self._away_since: float | None = None

    # -- looking --------------------------------------------------------------------------------

    def poll(self, probe: object = None) -> None:
        """Look for new records, partitions and topics."""
        if self._looked and not self.spec.follow:
            return
        try:
            if time.monotonic() >= self._next_discovery:
                self._discover()
            self._measure()
        except Away as error:
            self._wait(error)
            return
        self._away_since = None
        self._looked = True
        self.ended = not self.spec.follow and not self.pending()

    def _wait(self, error: Away) -> None:
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        if not self._looked or now - self._away_since > self._patience:
            raise RunError(f"{error}; nothing is lost: see that it runs, and start again") from None

    def _discover(self) -> None:
        there = self._offsets.topics(self.spec.topics, self.spec.pattern)
        missing = [name for name in self.spec.topics if name not in there]
        known = {part.topic: part.id for part in self.parts}
        gone = [name for name in known if name not in there]
        if gone and self._looked:  # it may be a broker that does not know all yet
            raise Away(f"Kafka at {self.spec.servers}: there is no topic {', '.join(gone)}")
        if missing or gone:
            several = ", ".join(map(repr, [*missing, *gone]))
            raise RunError(
                f"Kafka at {self.spec.servers} has no topic {several}; see the name, or create it"
            )
        self._check_ids(there, known)
        self._begin(
            [
                (topic, number)
                for topic, count in there.items()
                for number in range(count)
                if (topic, number) not in self._by_name
            ]
        )
        self._check_lost()
        self._next_discovery = time.monotonic() + _DISCOVER

    def _check_ids(self, there: dict[str, int], known: dict[str, str]) -> None:
        """A topic that was removed and made again has other records at the same offsets."""
        self._ids = self._offsets.ids(there)
        for topic, was in known.items():
            if was != self._ids[topic]:
                raise RunError(
                    f"topic {topic!r} was removed and made anew since it was read: what was not "
                    "read of it before is lost, and its offsets count anew. Start with a new "
                    "checkpoint"
                )

    def _begin(self, new: list[Partition]) -> None:
        """Take up partitions; those that come later are read from their beginning."""
        if not new:
            return
        start = self.spec.start if self._fresh else "earliest"
        if start == "earliest":
            starts = self._offsets.begins(new)
        elif start == "latest":
            starts = self._offsets.ends(new)
        else:
            starts = self._offsets.since(new, moment_of(start) or 0)
        for topic, number in new:
            at = starts[topic, number]
            part = Part(len(self.parts), topic, self._ids[topic], number, at, at, at)
            self.parts.append(part)
            self._by_name[part.who] = part
        self._fresh = False

    def _check_lost(self) -> None:
        """Records that retention removed before they were read."""
        begins = self._offsets.begins(self._by_name)
        lost = [part for part in self.parts if begins[part.who] > part.next]
        if lost and self.spec.lost == "stop":
            several = ", ".join(
                f"{part} offsets {part.next} to {begins[part.who] - 1}" for part in lost[:20]
            )
            raise RunError(
                f"Kafka has removed records before they were read: {several}"
                f"{' ...' if len(lost) > 20 else ''}. Read faster or keep them longer "
                '(retention.ms); to go on without them give lost="count", and the ledger has their '
                "number"
            )
        for part in lost:
            part.lost += begins[part.who] - part.next
            part.next = begins[part.who]

    def _measure(self) -> None:
        """How far partitions reach; a partition that ends before what was read was truncated."""
        ends = self._offsets.ends(self._by_name)
        for part in self.parts:
            end = ends[part.who]
            if end < part.next and not part.lost:
                raise RunError(
                    f"{part} was read up to offset {part.next}, and ends at {end}: Kafka has lost "
                    "records (an unclean leader election?). Start with a new checkpoint"
                )
            part.end = max(end, part.next)
        if self.most is not None:
            self._shorten(self.most)

    def _shorten(self, most: int) -> None:
        """Of a sample: the first records of all partitions."""
        share_of_each = max(1, -(-most // max(1, len(self.parts))))
        for part in self.parts:
            part.end = min(part.end, part.next + share_of_each)

    # -- reading --------------------------------------------------------------------------------

    def pending(self) -> int:
        """What waits, in the measure of the engine."""
        return sum(part.end - part.next for part in self.parts) * _ROW_BYTES

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Ranges of at most so many records and bytes."""
        self._taken = {}
        waiting = [part for part in self.parts if part.end > part.next]
        if not waiting:
            return []
        budget = min(rows, _FIRST_ROWS)
        if self._record_bytes is not None:
            budget = max(1, min(rows, int(size / max(1.0, self._record_bytes))))
        amounts = self._amounts(waiting, budget)
        piece = max(_LEAST_ROWS, -(-sum(amounts) // parts))
        splits: list[AnySplit] = []
        for part, much in zip(waiting, amounts, strict=True):
            if much:
                splits.extend(self._cut(part, much, piece))
        self.ended = self._looked and not self.spec.follow and not self.pending()
        return splits

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """The same without learning from it how far times have come."""
        taken, known = self._taken, self._record_bytes
        self._record_bytes = float(_ROW_BYTES)
        splits = self.take(size // _ROW_BYTES, size, parts) if size >= _ROW_BYTES else []
        self._taken, self._record_bytes = taken, known
        return splits

    def _amounts(self, waiting: list[Part], budget: int) -> list[int]:
        """How much of each partition, so that all come equally far in time."""
        left = [part.end - part.next for part in waiting]
        if sum(left) <= budget:
            return left
        known = [part.pace for part in waiting if part.pace is not None]
        if self._timed and known:
            usual = sum(known) / len(known)
            paces = [usual if part.pace is None else part.pace for part in waiting]
            reached = [BEGIN if part.latest is None else part.latest for part in waiting]
            return share(reached, left, paces, budget)
        return share([0] * len(left), left, [1.0] * len(left), budget)

    def _cut(self, part: Part, much: int, piece: int) -> list[AnySplit]:
        start, part.next = part.next, part.next + much
        if part.next - part.base >= _MOST:
            raise RunError(
                f"{part}: {_MOST:,} records after the first that was read; start with a new "
                "checkpoint, from which positions count anew"
            )
        self._taken[part.number] = (much, part.latest)
        count = max(1, -(-much // piece))
        bounds = [start + much * n // count for n in range(count + 1)]
        lost, part.lost = part.lost, 0
        return [
            Stretch(
                self.number,
                part.number,
                part.topic,
                part.partition,
                low,
                high,
                part.base,
                part.latest,
                lost if low == start else 0,
            )
            for low, high in pairwise(bounds)
        ]

    # -- time -----------------------------------------------------------------------------------

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """Partitions that go on hold the watermark where they are, until they are idle."""
        if self.spec.time is None:
            return Horizon(clock=now)
        if not self._timed:
            return Horizon()
        follow = self.spec.follow
        going: list[Part] = []
        ends: list[Part] = []
        blank: dict[tuple[int, int], None] = {}
        for part in self.parts:
            if part.next < part.end or (follow and part.number in self._taken):
                going.append(part)
            elif follow and part.latest is None:
                blank[0, part.number] = None
            elif follow:
                ends.append(part)
        return self._quiet.horizon(going, ends, blank, now, since, alone=not going)

    def reached(self, files: dict[int, int], now: int) -> None:
        """Note how far partitions came, and how fast: time for what was taken."""
        for number, (much, before) in self._taken.items():
            came_to(self.parts[number], files.get(number), much, before, now)

    # -- the rest of a batch --------------------------------------------------------------------

    def together(self, split: AnySplit) -> int:
        """Ranges of one partition, unless participants are values of a column."""
        one = isinstance(split, Stretch) and self.spec.participant is None
        return split.file if one else 0  # type: ignore[union-attr]

    def learn(self, rows: int, size: int = 0) -> None:
        """How large records are."""
        if rows and size:
            self._record_bytes = size / rows

    def name_of(self, file: int) -> str:
        """Topic and number."""
        return str(self.parts[file]) if file < len(self.parts) else str(file)

    def place(self, position: int) -> dict[str, Any]:
        """Topic, partition and offset."""
        number, offset = position >> OFFSET_BITS, position & (_MOST - 1)
        if number < len(self.parts):
            part = self.parts[number]
            return {"topic": part.topic, "partition": part.partition, "offset": part.base + offset}
        return {"offset": position}

    def save(self, state: SourceState) -> None:
        """Where each partition goes on."""
        state.partitions = [
            PartitionState(p.topic, p.partition, p.id, p.base, p.next - p.lost, p.latest)
            for p in self.parts
        ]

    def committed(self) -> None:
        self._taken = {}

    def close(self) -> None:
        """Let go of what reads in this process."""
        close_readers()
