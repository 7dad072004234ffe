"""Shelves: stored slates (or rows of a view) of one shard in one segment, mapped and searched.

A file is compared with its checksum when it is opened and stays open as long as a snapshot uses
it. The driver may delete it meanwhile: what is mapped stays readable. A file that is already gone
was merged away or expired, so a newer manifest does without it.
"""

from __future__ import annotations

import threading
import weakref
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.state.segments import Segment, SegmentFile, map_segment, renamed
from millstream.state.storage import Storage
from millstream.state.tables import Hashed

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Shelf(Hashed):
    """The rows of one segment, sorted by hash."""

    def __init__(self, file: OpenFile, rows: pa.RecordBatch) -> None:
        self.file = file  # keeps it mapped
        self.rows = rows
        super().__init__(_numbers(rows, "hash"), _numbers(rows, "check"))
        self.expires: Int64 = _numbers(rows, "expires")
        self._gone = rows.column("gone")
        self._ts: Int64 = _numbers(rows, "ts")

    @cached_property
    def key(self) -> Any:
        """The keys of slates as people write them."""
        return self.rows.column("key")

    @cached_property
    def count(self) -> Int64:
        """How often each row of a view is there."""
        found: Int64 = _numbers(self.rows, "count")
        return found

    @cached_property
    def gone(self) -> Bools:
        """Which rows say that there is nothing any more."""
        return np.asarray(self._gone.to_numpy(zero_copy_only=False), np.bool_)

    @cached_property
    def batch(self) -> Int64:
        """The batch that wrote each row."""
        found: Int64 = _numbers(self.rows, "batch")
        return found

    @cached_property
    def _plain(self) -> Any:
        return self.rows.column("plain")

    @cached_property
    def _slate(self) -> Any:
        return self.rows.column("slate")

    def living(self, row: int, now: int) -> bool:
        """Whether a row is a slate that has not expired."""
        return int(self.expires[row]) > now and not self._gone[row].as_py()

    def text(self, row: int) -> str:
        """The key as people write it."""
        found: str = self.key[row].as_py()
        return found

    def plain(self, row: int) -> bool:
        """Whether the key is that text; else it is what the text stands for as JSON."""
        return bool(self._plain[row].as_py())

    def ts(self, row: int) -> int:
        """The event time of the last write, in microseconds."""
        return int(self._ts[row])

    def size(self, row: int) -> int:
        """How many bytes the slate has."""
        return int(self._slate[row].as_buffer().size)

    def slate(self, row: int) -> bytes:
        """The slate as it is stored."""
        found: bytes = self._slate[row].as_py()
        return found


class OpenFile:
    """A segment file that was found to be what was written."""

    def __init__(self, root: Storage, file: SegmentFile) -> None:
        self._reader = pa.ipc.open_file(map_segment(root, file))
        self._shelves: weakref.WeakValueDictionary[int, Shelf] = weakref.WeakValueDictionary()

    def shelf(self, index: int) -> Shelf:
        """One record batch of the file."""
        found = self._shelves.get(index)
        if found is None:
            if index >= self._reader.num_record_batches:
                raise CheckpointError(f"a state segment has no part {index}; it is damaged")
            found = self._shelves[index] = Shelf(
                self, renamed(self._reader.get_batch(index), "expires")
            )
        return found


class Shelves:
    """All shelves some snapshot uses; each file is opened and checked once."""

    def __init__(self, root: Storage) -> None:
        self.root = root
        self._files: weakref.WeakValueDictionary[str, OpenFile] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, segment: Segment, files: dict[str, SegmentFile]) -> Shelf:
        """The shelf of a segment."""
        with self._lock:
            file = self._files.get(segment.file)
            if file is None:
                file = OpenFile(self.root, files[segment.file])
                self._files[segment.file] = file
            return file.shelf(segment.index)


def _numbers(rows: pa.RecordBatch, name: str) -> Any:
    """A column without nulls as NumPy sees it, without a copy."""
    return rows.column(name).to_numpy(zero_copy_only=True)
