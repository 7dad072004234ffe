"""One batch as data: what the driver tells its tasks, and what they tell each other and it.

Neither side knows what operators do. What the driver tells an operator (`Batch.orders`) and what it
tells the driver (`Control.reports`) is made and read by the operator itself.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.ops.keys.ordering import Sample
from millstream.ops.overload import Shed
from millstream.ops.records import DeadLetter
from millstream.ops.times.lateness import Extent
from millstream.ops.times.progress import BEGIN, END, Reached, SourceProgress, merge_reached
from millstream.ops.times.shares import Shares
from millstream.state.bases import Segments
from millstream.state.holdings import Total
from millstream.state.manifests import Output
from millstream.state.pages import pack, pages_of, read_page
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import open_storage
from millstream.state.traffic import Traffic
from millstream.state.warm import Warm


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
    told: dict[str, int]  # per step that gives times, the latest before this batch
    shares: dict[str, Shares]  # per step that may shed, what became of its records before this
    orders: dict[str, Any]  # per operator, what it made of the last manifest
    segments: Segments  # all that is stored, or what has changed since the base; in a task: of its
    files: dict[str, SegmentFile]  # shards
    totals: dict[str, dict[str, Total]]  # operator, table: what is in all shards
    base: tuple[int, str] | None = None  # batch and digest of what tasks read beside the segments
    holds: dict[str, int] = field(default_factory=dict)  # keyed step -> how far it goes at most
    left: dict[str, int] = field(default_factory=dict)  # keyed step -> how far it goes at least
    levels: int | None = None  # exchanges there can be work for; None: all there are
    trees: int = 1  # into which these rows are parted
    ships: bool = False  # rows travel to where nobody has seen the records: they tell how many
    gathers: bool = False  # what tasks say to all of the next level is put together on the way
    trims: bool = False  # memory is short: tasks give back what they do not need
    debug: bool = False  # compare answers found the short way with those found the long way
    warm: Warm | None = None  # where segments are kept in memory
    compression: str = "auto"  # of segments: "none", or also of "large" ones
    max_key: int = 1024
    max_participants: int = 10_000
    written: dict[str, str] = field(default_factory=dict)  # Parquet sink -> its columns so far
    function_timeout: int | None = None  # microseconds
    times: tuple[int, int] = (-(2**62), 2**62)  # between which the times of records lie


def stored_of(batch: Batch, owners: Collection[str]) -> dict[int, bytes]:
    """What a batch says is stored of some operators, for each partition with shards of it."""
    parts: dict[int, Segments] = {}
    for owner, tables in batch.segments.items():
        for table, shards in tables.items() if owner in owners else ():
            for shard, segments in shards.items():
                mine = parts.setdefault(int(shard) % batch.parallelism, {})
                mine.setdefault(owner, {}).setdefault(table, {})[shard] = segments
    return {part: pack(mine, batch.files) for part, mine in parts.items()}


def on_base(batch: Batch, owners: Collection[str], part: int) -> Batch:
    """A batch with all that is stored of some operators in the shards of one partition.

    What was stored at the base the task reads itself; the batch says what has changed since.
    """
    if batch.base is None:
        return batch
    directory = open_storage(batch.checkpoint).within("manifests")
    segments: Segments = {}
    files = dict(batch.files)
    for number in pages_of(part, batch.parallelism):
        page = read_page(directory, *batch.base, number)
        for owner in page.segments.keys() & owners:
            mine = segments.setdefault(owner, {})
            for table, shards in page.segments[owner].items():
                mine.setdefault(table, {}).update(_of_part(shards, batch, part))
        files.update(page.files)
    for owner, tables in batch.segments.items():
        for table, shards in tables.items():
            segments.setdefault(owner, {}).setdefault(table, {}).update(shards)
    return replace(batch, segments=segments, files=files, base=None)


def _of_part(shards: dict[str, list[Segment]], batch: Batch, part: int) -> dict[str, list[Segment]]:
    return {shard: one for shard, one in shards.items() if int(shard) % batch.parallelism == part}


@dataclass
class Seen:
    """What one task tells every task of the next level."""

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


@dataclass(frozen=True)
class Worked:
    """What one source or operator did in a task: for how long, and what it gave."""

    seconds: float
    rows: float
    size: float


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
    sizes: Counter[str] = field(default_factory=Counter)  # source -> bytes, where tasks know them
    moved: Traffic = field(default_factory=Traffic)  # of the state, from and to the checkpoint
    worked: dict[str, Worked] = field(default_factory=dict)  # by source and operator
    resident: tuple[str, int, int] | None = None  # machine, process, and the memory it has
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # operator -> rows, bytes to it
    shed: list[Shed] = field(default_factory=list)  # records that overload kept from steps
    shedding: float = 0.0  # seconds that took

    def account(self, step: str) -> Counter[str]:
        """The account of a step."""
        return self.ledger.setdefault(step, Counter())


@dataclass(frozen=True)
class Clocks:
    """Where time stands in this batch: per keyed step the watermark, with and without lateness."""

    watermarks: dict[str, int]
    on_time: dict[str, int]
    ends: dict[str, int]  # per keyed step where time ends, if this is all of its input
    progress: dict[str, SourceProgress] = field(default_factory=dict)  # per source
    shares: dict[str, Shares] = field(default_factory=dict)  # per step that may shed
    outputs: dict[str, int] = field(default_factory=dict)  # per keyed step the watermark after it

    def stands(self, step: str, watermark: int, before: int) -> int:
        """How far time comes at a step: at the end of its input just past where that ends.

        watermark: how far it worked. before: where time stood before this batch.
        """
        end = self.ends[step]
        if self.watermarks[step] < END:
            return watermark
        return min(watermark, max(before, end + 1 if end > BEGIN else BEGIN))


def held_back(*several: dict[str, int]) -> dict[str, int]:
    """How far keyed steps come at most, the lowest of all that is said."""
    found: dict[str, int] = {}
    for holds in several:
        for name, at in holds.items():
            found[name] = min(at, found.get(name, at))
    return found
