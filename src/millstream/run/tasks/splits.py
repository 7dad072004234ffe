"""Pieces of input that tasks read, and the items that travel between tasks and to the driver.

Items are small tuples `(partition, tag, name, payload)`. `rows` carry Arrow blocks to an operator,
with the name of their table; `results` and `ordered` are results that are being sorted; `seen` goes
to every partition of the next level, so that each keyed task can work out the watermark itself
(with many partitions it is put together first); `stored` says what lies in the shards of a task;
`control` and `deliver` travel through to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.io.kafka.consuming import Stretch
from millstream.io.readers import Split

Item = tuple[int, str, str, Any]
DRIVER = 0  # what goes to the driver travels through the first partition
SORTING = ("results", "ordered")  # what becomes of results that are sorted, on their way
SENT = ("rows", *SORTING)  # what a task works on, which says of which attempt it is

RAW, ERROR = "\0raw", "\0error"  # columns of records that a receiver set aside


@dataclass(frozen=True)
class SpoolSplit:
    """A sealed piece of a spool: lines, or Arrow records of a generator.

    Small ones that follow are read with it, because each chunk of records has its cost.
    """

    source: int
    file: int
    spool: str  # where it lies
    name: str
    arrival: int
    rows: int
    base: int | None = None  # the position of its beginning; None counts from its number
    more: tuple[SpoolSplit, ...] = ()
    reached: tuple[tuple[str, int], ...] = ()  # of agents: how far each has come with the batch


@dataclass(frozen=True)
class RateSplit:
    """Numbered records [start, end) of a rate source that began at `origin`."""

    source: int
    start: int
    end: int
    origin: int
    interval: float


Readable = Split | SpoolSplit | RateSplit | Stretch


@dataclass(frozen=True)
class Aside:
    """A piece that an overload policy keeps from its steps: it is counted, or goes to a stream."""

    piece: Readable
    to: str | None = None  # the stream; None: it is dropped

    @property
    def source(self) -> int:
        """The number of its source."""
        return self.piece.source


AnySplit = Readable | Aside
