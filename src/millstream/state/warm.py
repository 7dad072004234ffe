"""Warm state: segments that were written or read last, in memory, for all processes of a machine.

A segment never changes and no two attempts write one of the same name, so what is kept under the
name that a manifest says is what the manifest means: also when a shard moves to another worker, a
worker dies, or a batch is thrown away and its names with it. A segment is put into the checkpoint
first; what is kept here is the same bytes, mapped by whoever needs them. Only slates that are not
flushed yet are here alone, and made again from their log if they are lost (`unflushed.py`). It is
bounded: what was used longest ago goes first, and what no manifest names any more goes with the
next commit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.state.directory import Directory
from millstream.state.memory import folder_of
from millstream.state.storage import Storage
from millstream.state.traffic import moved

ALONE = "memory/"  # how names begin of what is in no checkpoint, until it is flushed
PLACE = "warm"  # the folder of it all
_LOOK = 32  # a process looks for room after it has kept this part of what there may be
_LARGEST = 2  # a segment that takes more than this part of it is not kept


@dataclass(frozen=True)
class Warm:
    """A place in memory for segments, and how many bytes it may have."""

    place: str
    limit: int

    @property
    def _files(self) -> Directory:
        return Directory(self.place, counted=False)

    def keep(self, name: str, data: pa.Buffer) -> bool:
        """Keep a segment; whether there was room."""
        if not len(data) or len(data) * _LARGEST > self.limit:
            return False
        with contextlib.suppress(OSError):  # memory is full, or the run has ended meanwhile
            if self._has_room(len(data)) and os.path.isdir(self.place):
                self._files.put(name, data, durable=False)
                return True
        return False

    def find(self, name: str, size: int) -> pa.Buffer | None:
        """A segment by its name in the manifest; None if it is not here."""
        try:
            data = self._files.map(name)
            os.utime(f"{self.place}/{name}")
        except (OSError, CheckpointError):
            return None
        return data if len(data) == size else None

    def has(self, name: str, size: int) -> bool:
        """Whether a segment is here."""
        with contextlib.suppress(OSError):
            return os.lstat(f"{self.place}/{name}").st_size == size
        return False

    def held(self) -> int:
        """How many bytes are kept."""
        return sum(size for _, size, _ in self._listed())

    def prune(self, *named: Collection[str]) -> None:
        """Let go of what is not named: by the newest manifest, or by whoever else."""
        for name in self._files.walk():
            if not any(name in names for names in named):
                self._files.delete(name)

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes may be kept; looks at all that is there from time to time only."""
        left = _room.get(self, 0)
        if left < size:
            left = self.limit // _LOOK
            if not self._make_room(max(size, left)):
                return False
        _room[self] = left - size
        return True

    def _make_room(self, size: int) -> bool:
        """Let go of what was used longest ago and is in the checkpoint, too."""
        listed = self._listed()
        much = sum(one for _, one, _ in listed) + size
        for _, one, name in sorted(listed):
            if much <= self.limit:
                break
            if not name.startswith(ALONE):
                self._files.delete(name)
                much -= one
        return much <= self.limit

    def _listed(self) -> list[tuple[int, int, str]]:
        """When each was used, how large it is, and its name."""
        found = []
        for name in self._files.walk():
            with contextlib.suppress(FileNotFoundError):
                seen = os.lstat(f"{self.place}/{name}")
                found.append((seen.st_mtime_ns, seen.st_size, name))
        return found


_room: dict[Warm, int] = {}  # bytes that this process may keep before it looks again
_of: dict[Storage, Warm] = {}  # where the segments of a state are kept warm, in this process


def use(state: Storage, warm: Warm | None) -> None:
    """From now on have segments of a state from memory where they are there; None: not."""
    if warm is None:
        _of.pop(state, None)
    else:
        _of[state] = warm


def keep(state: Storage, name: str, data: pa.Buffer) -> bool:
    """Keep a segment in memory; whether there is a place and room for it."""
    warm = _of.get(state)
    return warm is not None and warm.keep(name, data)


def has(state: Storage, name: str, size: int) -> bool:
    """Whether a segment is in memory."""
    warm = _of.get(state)
    return warm is not None and warm.has(name, size)


def find(state: Storage, name: str, size: int) -> pa.Buffer | None:
    """A segment that is wanted, from memory: that of this run, or of one that is read beside it."""
    warm = _of.get(state)
    if warm is None and name.startswith(ALONE) and (folder := folder_of(state.where())):
        warm = Warm(f"{folder}/{PLACE}", 0)
    data = None if warm is None else warm.find(name, size)
    if data is not None:
        moved.warm += len(data)
    return data
