"""The tracker of a source, by its kind."""

from __future__ import annotations

from collections.abc import Callable

from millstream.api.early import Looks
from millstream.api.sources import Collector, Delta, Files, Frame, FrameStream, Rate
from millstream.api.sources.kafka import Kafka
from millstream.graph import nodes
from millstream.io.formats import Format
from millstream.run.sources import frames
from millstream.run.sources.files.blocks import BlocksTracker
from millstream.run.sources.files.listing import Seen, as_files
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.partitions import PartitionsTracker
from millstream.run.sources.rate import RateTracker
from millstream.run.sources.received.tracker import SpoolTracker, make_receiver
from millstream.run.sources.shedding import shedding
from millstream.run.sources.tracking import Tracker
from millstream.run.sources.versions import Versions
from millstream.state.manifests import SourceState
from millstream.state.segments import safe_name
from millstream.state.storage import Storage


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
