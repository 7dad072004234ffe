"""One batch as data: what the driver tells its tasks, and what they tell each other and it.

Neither side knows what operators do. What the driver tells an operator (`Batch.orders`) and what it
tells the driver (`Control.reports`) is made and read by the operator itself.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millstream.ops.lateness import Extent
from millstream.ops.ordering import Sample
from millstream.ops.progress import Reached, SourceProgress, merge_reached
from millstream.ops.records import DeadLetter
from millstream.state.bases import Segments
from millstream.state.holdings import Total
from millstream.state.manifests import Output
from millstream.state.segments import Segment, SegmentFile


@dataclass(frozen=True)
class Batch:
    """All a task needs to know of the batch it works for."""

    number: int
    now: int  # the wall clock when the batch was planned, which never goes back: time of arrival
    trusted: int  # what it says if that is earlier: how far times of records are believed
    parallelism: int
    shards: int
    checkpoint: str
    progress: dict[str, SourceProgress]  # per source, before this batch
    watermarks: dict[str, int]  # per keyed step, reached before this batch
    orders: dict[str, Any]  # per operator, what it made of the last manifest
    segments: Segments  # in a task: of its shards
    files: dict[str, SegmentFile]
    totals: dict[str, dict[str, Total]]  # operator, table: what is in all shards
    holds: dict[str, int] = field(default_factory=dict)  # keyed step -> how far it goes at most
    gathers: bool = False  # what tasks say to all of the next level is put together on the way
    debug: bool = False  # compare answers found the short way with those found the long way
    max_key: int = 1024
    max_participants: int = 10_000
    written: dict[str, str] = field(default_factory=dict)  # Parquet sink -> its columns so far
    function_timeout: int | None = None  # microseconds
    times: tuple[int, int] = (-(2**62), 2**62)  # between which the times of records lie


def stored_of(batch: Batch, operators: Collection[str], part: int) -> bytes:
    """What is stored of some operators in the shards of one partition, for its task.

    Segments are many and name the same files: they travel with the number of their file.
    """
    numbers: dict[str, int] = {}
    packed = {
        owner: {
            table: {
                shard: [
                    (numbers.setdefault(one.file, len(numbers)), *msgspec.structs.astuple(one)[1:])
                    for one in segments
                ]
                for shard, segments in shards.items()
                if int(shard) % batch.parallelism == part
            }
            for table, shards in tables.items()
        }
        for owner, tables in batch.segments.items()
        if owner in operators
    }
    return msgspec.msgpack.encode((packed, [batch.files[name] for name in numbers]))


def unpack_stored(data: bytes) -> tuple[Segments, dict[str, SegmentFile]]:
    """What `stored_of` packed."""
    packed, files = msgspec.msgpack.decode(data, type=tuple[dict[str, Any], list[SegmentFile]])
    segments = {
        owner: {
            table: {
                shard: [Segment(files[number].file, *rest) for number, *rest in several]
                for shard, several in shards.items()
            }
            for table, shards in tables.items()
        }
        for owner, tables in packed.items()
    }
    return segments, {file.file: file for file in files}


@dataclass
class Seen:
    """What one task tells every task of the next level."""

    level: int
    part: int
    attempt: str
    reached: dict[str, Reached] = field(default_factory=dict)  # source -> how far it came
    counts: dict[str, int] = field(default_factory=dict)  # keyed step -> records of this task
    above: dict[str, int] = field(default_factory=dict)  # the same of all levels before
    holds: dict[str, int] = field(default_factory=dict)  # keyed step -> first time not got to
    samples: dict[str, Sample] = field(default_factory=dict)  # keyed step -> keys of its results
    targets: tuple[int, ...] = ()  # partitions it sent rows to, if what it says is gathered


@dataclass(frozen=True)
class Heard:
    """What all tasks of the level before said, as one."""

    attempts: str  # a digest of who they were
    reached: dict[str, Reached]
    counts: Counter[str]  # keyed step -> records of all levels before
    holds: dict[str, int]
    samples: dict[str, list[Sample]]
    senders: dict[int, str]  # partition -> a digest of those who sent rows there, if gathered


def hear(several: Iterable[Seen]) -> Heard:
    """Put together what the tasks of a level said."""
    seen = sorted(several, key=lambda one: one.part)
    counts = Counter(next((one.above for one in seen if one.above), {}))
    samples: dict[str, list[Sample]] = {}
    senders: dict[int, list[str]] = {}
    for one in seen:
        counts.update(one.counts)
        for name, sample in one.samples.items():
            samples.setdefault(name, []).append(sample)
        for part in one.targets:
            senders.setdefault(part, []).append(one.attempt)
    return Heard(
        attempts=digest_of(one.attempt for one in seen),
        reached=merge_reached(one.reached for one in seen),
        counts=counts,
        holds={name: at for one in seen for name, at in one.holds.items()},
        samples=samples,
        senders={part: digest_of(attempts) for part, attempts in senders.items()},
    )


def digest_of(attempts: Iterable[str]) -> str:
    """A short name for some attempts, in any order."""
    return hashlib.sha256(" ".join(sorted(attempts)).encode()).hexdigest()[:16]


@dataclass
class Control:
    """What one task tells the driver."""

    level: int
    part: int
    attempt: str
    upstream: str = ""  # a digest of the attempts whose rows it worked on
    reached: dict[str, Reached] = field(default_factory=dict)  # source -> how far it was read
    extents: dict[str, list[Extent]] = field(default_factory=dict)  # source -> of each piece
    ledger: dict[str, Counter[str]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)  # Parquet sink -> columns of its file
    segments: Segments = field(default_factory=dict)
    files: list[SegmentFile] = field(default_factory=list)
    holds: dict[str, int] = field(default_factory=dict)  # keyed steps not done: from when on
    reports: dict[str, Any] = field(default_factory=dict)  # operator -> what it has to say
    results: int = 0
    rows_in: int = 0
    read: dict[str, tuple[int, float]] = field(default_factory=dict)  # source -> rows, seconds


@dataclass(frozen=True)
class Clocks:
    """Where time stands in this batch: per keyed step the watermark, with and without lateness."""

    watermarks: dict[str, int]
    on_time: dict[str, int]
    latest: int  # the latest event time of all
    furthest: dict[str, int]  # per keyed step a time that no watermark of its input has passed


def held_back(*several: dict[str, int]) -> dict[str, int]:
    """How far keyed steps come at most, the lowest of all that is said."""
    found: dict[str, int] = {}
    for holds in several:
        for name, at in holds.items():
            found[name] = min(at, found.get(name, at))
    return found
