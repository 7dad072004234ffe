"""Sources in the driver: what they look like before Spark starts, and the tracker of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.api.early import Looks
from millstream.api.sources import (
    Collector,
    Delta,
    Files,
    Frame,
    FrameStream,
    Generator,
    HostStats,
    Lines,
    Rate,
    SourceSpec,
)
from millstream.api.sources.kafka import Kafka
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.graph import nodes
from millstream.io.formats import READER, UNITS, Format, check_time, infer_format, parse_schema
from millstream.io.kafka import avro, protobuf
from millstream.io.kafka.decoding import BYTES, RECORD_TIME, REGISTERED, Topics
from millstream.io.schemas import TIMESTAMP
from millstream.ops.progress import BEGIN, Horizon, Reached, SourceProgress
from millstream.ops.shares import Shares, Spell
from millstream.run import frames
from millstream.run.blocks import BlocksTracker
from millstream.run.files import FilesTracker
from millstream.run.listing import Seen, as_files, kind_of, list_files
from millstream.run.partitions import PartitionsTracker
from millstream.run.received import SpoolTracker, make_receiver
from millstream.run.shedding import shedding
from millstream.run.splits import AnySplit, RateSplit
from millstream.run.tables.versions import Versions, open_table, paths_of
from millstream.run.tracking import Tracker
from millstream.state.manifests import SourceState
from millstream.state.segments import safe_name
from millstream.state.storage import Storage

# -- what a source looks like, before Spark starts ----------------------------------------------


def resolve_format(name: str, spec: SourceSpec) -> Format:
    """What a task must know to read a source; every mistake shows here."""
    try:
        fmt = _format_of(spec)
        _check_participant(spec, fmt)
        return fmt
    except ConfigError as error:
        raise ConfigError(f"source {name!r}: {error}") from None
    except OSError as error:  # no right to read it, or a store that does not answer
        where = error.filename or getattr(spec, "path", name)
        raise ConfigError(
            f"source {name!r}: {where} cannot be read: {error.strerror or error}"
        ) from None


def _format_of(spec: SourceSpec) -> Format:
    if isinstance(spec, Files):
        return _files_format(spec)
    if isinstance(spec, Frame):
        return _files_format(as_files(spec, "frame", spec.streams), [], frames.schema_of(spec))
    if isinstance(spec, Delta):
        table = open_table(spec)
        schema = None if table.file_uris() else pa.schema(table.schema().to_arrow())
        return _files_format(as_files(spec, spec.location, spec.follow), paths_of(table), schema)
    if isinstance(spec, Kafka):
        return _topics_format(spec)
    if isinstance(spec, Collector):  # what its files look like agents see, and say
        return _generator_format(spec.reads)
    if isinstance(spec, Rate):
        return Format("text", parse_schema("ts timestamp, value bigint"), "ts")
    if isinstance(spec, Lines):
        return infer_format(
            spec.format,
            [],
            schema=spec.schema,
            **_timing(spec),
            header=False,
            delimiter=spec.delimiter,
        )
    return _generator_format(spec)


def _timing(spec: SourceSpec) -> dict[str, Any]:
    """What a source says of the time of its records, by the names that formats have for it."""
    told = ("time", "time_unit", "zone", "time_format", "time_pattern")
    return {name: getattr(spec, name) for name in told}


def _check_participant(spec: SourceSpec, fmt: Format) -> None:
    """Without its column all would be one participant, and slow ones late."""
    columns = [] if isinstance(spec, Collector) else fmt.schema.names
    if spec.participant is not None and columns and spec.participant not in columns:
        raise ConfigError(
            f"participant={spec.participant!r}: there is no such column; there are "
            f"{', '.join(columns)}"
        )


def _files_format(
    spec: Files, paths: list[str] | None = None, schema: pa.Schema | None = None
) -> Format:
    paths = list_files(spec) if paths is None else paths
    kind = READER if spec.reader is not None else spec.format or kind_of(spec, paths)
    return infer_format(
        kind,
        paths,
        schema=schema or spec.schema,
        **_timing(spec),
        header=spec.header,
        delimiter=spec.delimiter,
        reader=spec.reader,
        nulls=spec.nulls,
        comment=spec.comment,
        encoding=spec.encoding,
        multiline=spec.multiline,
    )


def _topics_format(spec: Kafka) -> Format:
    """Values in their format, with the columns that lie beside them."""
    spec.check_source()
    given = None if spec.schema is None else parse_schema(spec.schema)
    timed = spec.time == RECORD_TIME
    known = {} if given is None else {one.name: one.type for one in given}
    if timed and known.get(RECORD_TIME, TIMESTAMP) != TIMESTAMP:
        raise ConfigError(f"{RECORD_TIME!r} is the time that Kafka has of a record: a timestamp")
    key = spec.keys[0] if spec.keys else None
    topics = Topics(spec.cluster, key, spec.header_columns, timed, micros(spec.wait, "wait") / 1e6)
    beside = set(topics.beside)
    if spec.time in beside and not timed:
        raise ConfigError(
            f"time={spec.time!r}: event time is a column of values, or ms.record_time"
        )
    values = given if given is None else pa.schema([f for f in given if f.name not in beside])
    if values is not None and not len(values):
        raise ConfigError("schema=: it has no column that is in values; what is to be read?")
    common = _timing(spec) | ({"time": None} if timed else {})
    if spec.format in REGISTERED:
        topics, fmt = _registered(spec, topics, common)
    elif spec.format == BYTES:
        if values is not None or common["time"] is not None:
            raise ConfigError(
                'format="bytes": values are one column, "value", and have no time of their own: '
                "leave schema= out, and time= or give ms.record_time"
            )
        fmt = Format(BYTES, pa.schema([("value", pa.binary())]), zone=spec.zone)
    else:
        fmt = infer_format(
            spec.format, [], schema=values, header=False, delimiter=spec.delimiter, **common
        )
    fields = {one.name: one for one in fmt.schema}
    kinds = {RECORD_TIME: TIMESTAMP} if timed else {}
    for name in topics.beside:
        fields[name] = pa.field(name, known.get(name, kinds.get(name, pa.string())))
    order = [*(known or fields), *fields]
    schema = pa.schema([fields[name] for name in dict.fromkeys(order)])
    return replace(fmt, schema=schema, time=spec.time, topics=topics)


def _registered(spec: Kafka, topics: Topics, common: dict[str, Any]) -> tuple[Topics, Format]:
    """Values with a schema of a registry: the newest one says which columns there are."""
    registry = spec.schemas
    assert registry is not None
    try:
        wanted = registry.latest(spec.known_by)
    except RunError as error:
        raise ConfigError(f"{error} (subject {spec.known_by!r})") from None
    if wanted.kind != spec.format.upper():
        raise ConfigError(
            f"format={spec.format!r}: the schema of {spec.known_by!r} is {wanted.kind}"
        )
    columns = (avro if spec.format == "avro" else protobuf).columns_of(wanted)
    fmt = Format(spec.format, columns, **common)
    if fmt.time is not None:
        check_time(fmt, fmt.time)
    return replace(topics, registry=registry, wanted=wanted), fmt


def _generator_format(spec: Generator | Files | HostStats) -> Format:
    """A generator's columns are known only if it says so; it is not run to find out."""
    if spec.schema is not None:
        return infer_format("json", [], schema=spec.schema, **_timing(spec))
    unit = UNITS.get(spec.time_unit, spec.time_unit)
    return Format("json", pa.schema([]), **_timing(spec) | {"time_unit": unit})


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
        from millstream.run.collected import CollectorTracker  # a server, for who wants one

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
