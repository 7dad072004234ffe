"""One batch as data: what the driver tells its tasks, and what they tell each other and it.

Items are small tuples `(partition, tag, name, payload)`. `panes`, `values` and `events` carry an
Arrow block to a keyed operator, `results` and `ordered` one that is being sorted; `seen` goes to
every partition of the next level, so that each keyed task can work out the watermark itself;
`control` and `deliver` travel through to the driver.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millstream.io.readers import Split
from millstream.ops.firing import Firing
from millstream.ops.lateness import Extent
from millstream.ops.ordering import Sample
from millstream.ops.progress import Reached, SourceProgress
from millstream.ops.records import DeadLetter
from millstream.state.manifests import Output
from millstream.state.segments import Segment, SegmentFile

Item = tuple[int, str, str, Any]


@dataclass(frozen=True)
class SpoolSplit:
    """A sealed piece of a spool: lines, or Arrow records of a generator.

    Small ones that follow are read with it, because each chunk of records has its cost.
    """

    source: int
    file: int
    path: str
    arrival: int
    rows: int
    base: int | None = None  # the position of its beginning; None counts from its number
    more: tuple[SpoolSplit, ...] = ()


@dataclass(frozen=True)
class RateSplit:
    """Numbered records [start, end) of a rate source that began at `origin`."""

    source: int
    start: int
    end: int
    origin: int
    interval: float


AnySplit = Split | SpoolSplit | RateSplit


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
    watermarks: dict[str, int]  # per operator, reached before this batch
    closed: dict[str, int]
    segments: dict[str, dict[str, dict[str, list[Segment]]]]
    files: dict[str, SegmentFile]
    single: frozenset[str] = frozenset()  # families that keep each value by itself, not panes
    debug: bool = False  # compare running values with what panes give
    firing: dict[str, Firing] = field(default_factory=dict)  # operators with early results
    since: dict[str, dict[str, int]] = field(default_factory=dict)  # family, state -> from when on
    rung: dict[str, int] = field(default_factory=dict)  # updater -> wall clock of its timers
    limits: dict[str, int] = field(default_factory=dict)  # updater -> how far it goes at most
    worked: dict[str, int] = field(default_factory=dict)  # updater -> how far beyond the input
    cycle_events: int = 200_000  # published events a cycle handles in one batch
    cycle_hops: int = 100_000
    max_key: int = 1024
    max_participants: int = 10_000
    written: dict[str, str] = field(default_factory=dict)  # Parquet sink -> its columns so far
    function_timeout: int | None = None  # microseconds
    times: tuple[int, int] = (-(2**62), 2**62)  # between which the times of records lie

    def worked_to(self, updater: str) -> int:
        """The time before which an updater has done everything."""
        return self.worked.get(updater, self.closed[updater])


@dataclass
class Seen:
    """What one task tells every task of the next level."""

    level: int
    part: int
    attempt: str
    reached: dict[str, Reached] = field(default_factory=dict)  # source -> how far it came
    counts: dict[str, int] = field(default_factory=dict)  # operator -> records this task gave it
    above: dict[str, int] = field(default_factory=dict)  # the same of all levels before
    holds: dict[str, int] = field(default_factory=dict)  # updater -> first time it did not get to
    samples: dict[str, Sample] = field(default_factory=dict)  # operator -> keys of its results


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
    segments: dict[str, dict[str, dict[str, list[Segment]]]] = field(default_factory=dict)
    files: list[SegmentFile] = field(default_factory=list)
    strategies: dict[str, str] = field(default_factory=dict)  # operator -> how windows slid
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)  # family -> panes, windows
    firing: dict[str, Firing] = field(default_factory=dict)
    last_end: dict[str, int] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)  # cycles that were not done: from when on
    carried: dict[str, int] = field(default_factory=dict)  # and how many events they left over
    worked: dict[str, int] = field(default_factory=dict)  # updaters that are beyond the input
    due: dict[str, tuple[int, int]] = field(default_factory=dict)  # updater -> next event, alarm
    hot: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)  # events, top keys
    windows: int = 0
    rows_in: int = 0
    read: dict[str, tuple[int, float]] = field(default_factory=dict)  # source -> rows, seconds


def held_back(*several: dict[str, int]) -> dict[str, int]:
    """How far updaters come at most, the lowest of all that is said."""
    found: dict[str, int] = {}
    for holds in several:
        for name, at in holds.items():
            found[name] = min(at, found.get(name, at))
    return found
