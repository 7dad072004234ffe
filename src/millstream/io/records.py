"""What passes between the driver, the readers and the operators: splits, records, dead letters."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import pyarrow as pa

from millstream.io.prints import NOTHING, Print
from millstream.io.timestamps import Ints

MAX_LINE = 16 * 1024 * 1024  # a longer line is a dead letter
MAX_RAW = 64 * 1024  # what a dead letter keeps of its line


@dataclass(frozen=True)
class Split:
    """A part of one file that one task reads.

    Text kinds: the byte range [start, end), which begins at a line start and ends after a newline
    (or at the end of a complete file). Gzip: the lines that begin in such a range of what the file
    stands for. Parquet: a range of rows. With a reader of the user's: the whole file, end = -1.
    """

    source: int
    file: int
    path: str
    start: int
    end: int
    after: int | None = None  # the latest time in the file before this batch
    inode: int = 0  # what it is, whatever it is called by now; 0: whatever has the name
    seen: Print = NOTHING  # the same by its bytes, if it may be rotated
    arrival: int = 0  # of its records, if they have no time of their own; 0: when it is read
    most: int | None = None  # of a whole file: records after which the rest is not looked at


# The split whose records a task is working on: programs may ask which file they read.
reading: ContextVar[Split | None] = ContextVar("reading", default=None)


@dataclass(frozen=True)
class Dead:
    """A malformed record: where it is, its raw text (cut at 64 KiB), and why it was refused.

    Several that follow each other may be one, if nothing is known of them but their number.
    """

    position: int
    raw: str
    error: str
    records: int = 1


@dataclass
class Parsed:
    """The records of one block: good ones as columns, malformed ones as dead letters.

    `positions` (byte offset of the line start, uncompressed for gzip, or the row index in a
    parquet file) never depends on how the file was split. `ts` is microseconds UTC.
    """

    table: pa.Table
    ts: Ints | None
    positions: Ints
    dead: list[Dead]
    offered: int


def raw_text(line: bytes) -> str:
    """A line as a dead letter shows it: readable whatever its bytes are, and bounded."""
    return line[:MAX_RAW].decode("utf-8", "backslashreplace")
