"""Sources in the driver: the tracker of each kind, and how far a source is."""

from __future__ import annotations

import time
from collections.abc import Callable

from millstream.api.early import Looks
from millstream.api.sources import Collector, Delta, Files, Frame, FrameStream, Rate, SourceSpec
from millstream.api.sources.kafka import Kafka
from millstream.durations import micros
from millstream.graph import nodes
from millstream.io.formats import Format
from millstream.ops.times.progress import BEGIN, Horizon, Reached, SourceProgress
from millstream.ops.times.shares import Shares, Spell
from millstream.run.sources import frames
from millstream.run.sources.files.blocks import BlocksTracker
from millstream.run.sources.files.listing import Seen, as_files
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.partitions import PartitionsTracker
from millstream.run.sources.received.tracker import SpoolTracker, make_receiver
from millstream.run.sources.shedding import shedding
from millstream.run.sources.tracking import Tracker
from millstream.run.sources.versions import Versions
from millstream.run.tasks.splits import AnySplit, RateSplit
from millstream.state.manifests import SourceState
from millstream.state.segments import safe_name
from millstream.state.storage import Storage

_RECORD_BYTES = 16  # of what a rate gives: a time and a number


class RateTracker(Tracker):
    """Records that exist because time passes."""

    def __init__(self, number: int, spec: Rate, state: SourceState) -> None:
        self.number, self.spec = number, spec
        self.ended = False
        self.next: int = state.extra.get("next", 0)
        self.origin: int = state.extra.get("origin", int(time.time() * 1e6))
        self.interval = 1e6 / spec.rows_per_second
        self.available = self.next

    def poll(self, probe: object = None) -> None:
        elapsed = time.time() * 1e6 - self.origin
        self.available = int(elapsed / self.interval)
        if self.spec.limit is not None:
            self.available = min(self.available, self.spec.limit)
            self.ended = self.next >= self.spec.limit

    def pending(self) -> int:
        waiting: int = self.available - self.next
        return max(0, waiting) * _RECORD_BYTES

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        end = min(self.available, self.next + rows)
        step = max(1, -(-(end - self.next) // parts))
        splits: list[AnySplit] = [
            RateSplit(self.number, start, min(end, start + step), self.origin, self.interval)
            for start in range(self.next, end, step)
        ]
        self.next = max(self.next, end)
        self.ended = self.spec.limit is not None and self.next >= self.spec.limit
        return splits

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        return self.take(size // _RECORD_BYTES, size, parts)

    def horizon(self, now: int, since: int = 0) -> Horizon:
        return Horizon()

    def save(self, state: SourceState) -> None:
        state.extra = {"next": self.next, "origin": self.origin}


def make_tracker(
    number: int,
    node: nodes.Source,
    fmt: Format,
    checkpoint: Storage,
    state: SourceState,
    looks: Looks | None = None,
    listing: Callable[[], list[Seen]] | None = None,
) -> Tracker:
    """The tracker of a source, at the place the last committed batch left it.

    looks: it is looked at early, so that stored files are read in a random order of blocks; what
        was begun so is read to its end so.
    listing: how files are found, if others look for them too.
    """
    spec, stem, sources = node.spec, safe_name(node.name), checkpoint.within("sources")
    tracker: Tracker
    if isinstance(spec, Files) and (looks is not None or "blocks" in state.extra):
        by = looks or Looks()
        marks = by.at if by.cuts else ()
        tracker = BlocksTracker(number, spec, fmt, sources, stem, state, by.seed, marks)
    elif isinstance(spec, FrameStream):
        tracker = frames.FrameStreamTracker(number, spec, fmt, checkpoint, stem, state)
    elif isinstance(spec, Files | Frame | Delta):
        files, given = files_of(spec, checkpoint, stem)
        tracker = FilesTracker(number, files, fmt, sources, stem, state, given or listing)
    elif isinstance(spec, Rate):
        tracker = RateTracker(number, spec, state)
    elif isinstance(spec, Kafka):
        tracker = PartitionsTracker(number, spec, state)
    elif isinstance(spec, Collector):
        # A server, for who wants one.
        from millstream.run.sources.collector.tracker import CollectorTracker

        tracker = CollectorTracker(number, node.name, spec, checkpoint, stem, state)
    else:
        receiver = make_receiver(node.name, spec, checkpoint.within("spool").within(stem))
        tracker = SpoolTracker(number, receiver, state)
    return tracker if looks is not None else shedding(tracker, node.name, spec.overload, state)


def files_of(
    spec: Files | Frame | Delta, checkpoint: Storage, stem: str
) -> tuple[Files, Callable[[], list[Seen]] | None]:
    """A source as files, and how they are found if not by their path."""
    if isinstance(spec, Files):
        return spec, None
    if isinstance(spec, Delta):
        versions = Versions(spec, checkpoint.within("sources"), stem)
        return as_files(spec, spec.location, spec.follow), versions
    place = checkpoint.within("frames").within(stem)
    return as_files(spec, place.where(), follow=False), frames.written(spec, place)


def progress_of(
    spec: SourceSpec, state: SourceState, tracker: Tracker, now: int, since: int, read: int
) -> SourceProgress:
    """The progress of a source at the start of a batch, with the pieces for it taken.

    Nobody is idle for having been silent while nobody listened, before `since`, or was held back:
    what they sent then still waits. Nor for what came and has not been taken yet: `read` is the
    clock up to which all has, unless the tracker knows better.
    """
    declared = frozenset(spec.participants or ())
    horizon = tracker.horizon(now, since)
    read = read if horizon.taken is None else horizon.taken
    since = max(since, horizon.since)
    # Agents say that they are there also when they have nothing to send.
    heard = {who: at for who, at in horizon.heard.items() if isinstance(who, str)}
    idle: frozenset[str] = frozenset()
    silent = False
    if isinstance(spec, Collector):
        declared = spec.expected(state.latest)
        idle = frozenset(getattr(tracker, "paused", ()))
    if spec.idle_timeout is not None and not spec.bounded:
        timeout = micros(spec.idle_timeout, "idle_timeout")
        last = dict.fromkeys(declared, since)
        last |= {who: int(at * 1e6) for who, at in state.seen_at.items()}
        last |= {who: max(at, last.get(who, at)) for who, at in heard.items()}
        idle |= {who for who, at in last.items() if read - max(at, since) > timeout}
        silent = read - max(int(state.heard * 1e6), since, *heard.values()) > timeout
    return SourceProgress(
        spec.lateness_micros(),
        dict(state.latest),
        idle,
        ended=tracker.ended,
        silent=silent,
        horizon=horizon,
        awaited=declared - state.latest.keys() - idle,
        undeclared=spec.bounded and spec.participant is not None and not declared,
        top=BEGIN if state.top is None else state.top,
        shares=_shares(spec, state),
    )


def state_after(
    before: SourceState, tracker: Tracker, seen: SourceProgress, report: Reached, now: int
) -> SourceState:
    """Where a source is once its pieces are read, of which tasks report how far they came."""
    tracker.reached(report.files, now)
    state = SourceState(seen_at=dict(before.seen_at), heard=before.heard)
    tracker.save(state)
    state.seen_at.update(dict.fromkeys(report.latest, now / 1e6))
    if report.top > BEGIN:
        state.heard = now / 1e6
    state.latest, state.top = seen.latest, None if seen.top == BEGIN else seen.top
    state.ended = tracker.ended
    return state


def _shares(spec: SourceSpec, state: SourceState) -> Shares | None:
    """What became of the records of a source, if its policy may keep some from its steps."""
    if not spec.overload.sheds:
        return None
    spells = tuple(Spell(*one) for one in state.shares)
    return Shares(spec.overload.keep == "oldest", spells, state.unplaced)
