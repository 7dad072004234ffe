"""One batch as data: what the driver tells its tasks, and what they tell each other and it.

Neither side knows what operators do. What the driver tells an operator (`Batch.orders`) and what it
tells the driver (`Control.reports`) is made and read by the operator itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millstream.ops.lateness import Extent
from millstream.ops.ordering import Sample
from millstream.ops.progress import Reached, SourceProgress
from millstream.ops.records import DeadLetter
from millstream.state.manifests import Output
from millstream.state.segments import Segment, SegmentFile

Segments = dict[str, dict[str, dict[str, list[Segment]]]]  # operator, table, shard


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
    segments: Segments
    files: dict[str, SegmentFile]
    holds: dict[str, int] = field(default_factory=dict)  # keyed step -> how far it goes at most
    debug: bool = False  # compare answers found the short way with those found the long way
    max_key: int = 1024
    max_participants: int = 10_000
    written: dict[str, str] = field(default_factory=dict)  # Parquet sink -> its columns so far
    function_timeout: int | None = None  # microseconds
    times: tuple[int, int] = (-(2**62), 2**62)  # between which the times of records lie


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


@dataclass
class Control:
    """What one task tells the driver."""

    level: int
    part: int
    attempt: str
    upstream: frozenset[tuple[int, int, str]] = frozenset()  # attempts whose rows it worked on
    reached: dict[str, Reached] = field(default_factory=dict)  # source -> how far it came
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
