"""Warm state: segments that were written or read last, in memory, for all processes of a machine.

A segment never changes and no two attempts write one of the same name, so what is kept under the
name that a manifest says is what the manifest means: also when a shard moves to another worker, a
worker dies, or a batch is thrown away and its names with it. A segment is put into the checkpoint
first; what is kept here is the same bytes, mapped by whoever needs them. It is bounded: what was
used longest ago goes first, and what no manifest names any more goes with the next commit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.state.directory import Directory
from millstream.state.storage import Storage
from millstream.state.traffic import moved

_LARGEST = 2  # a segment that takes more than this part of it is not kept


@dataclass(frozen=True)
class Warm:
    """A place in memory for segments, and how many bytes it may have."""

    place: str
    limit: int

    @property
    def _files(self) -> Directory:
        return Directory(self.place, counted=False)

    def keep(self, name: str, data: pa.Buffer) -> None:
        """Keep a segment, if there is room; the state does not depend on it."""
        if not len(data) or len(data) * _LARGEST > self.limit:
            return
        with contextlib.suppress(OSError):  # memory is full, or the run has ended meanwhile
            self._make_room(len(data))
            if os.path.isdir(self.place):
                self._files.put(name, data, durable=False)

    def find(self, name: str, size: int) -> pa.Buffer | None:
        """A segment by its name in the manifest; None if it is not here."""
        try:
            data = self._files.map(name)
            os.utime(f"{self.place}/{name}")
        except (OSError, CheckpointError):
            return None
        return data if len(data) == size else None

    def held(self) -> int:
        """How many bytes are kept."""
        return sum(size for _, size, _ in self._listed())

    def prune(self, named: Collection[str]) -> None:
        """Let go of what the newest manifest does not name."""
        for name in self._files.walk():
            if name not in named:
                self._files.delete(name)

    def _make_room(self, size: int) -> None:
        listed = self._listed()
        much = sum(one for _, one, _ in listed) + size
        for _, one, name in sorted(listed):
            if much <= self.limit:
                return
            self._files.delete(name)
            much -= one

    def _listed(self) -> list[tuple[int, int, str]]:
        """When each was used, how large it is, and its name."""
        found = []
        for name in self._files.walk():
            with contextlib.suppress(FileNotFoundError):
                seen = os.lstat(f"{self.place}/{name}")
                found.append((seen.st_mtime_ns, seen.st_size, name))
        return found


_of: dict[Storage, Warm] = {}  # where the segments of a state are kept warm, in this process


def use(state: Storage, warm: Warm | None) -> None:
    """From now on have segments of a state from memory where they are there; None: not."""
    if warm is None:
        _of.pop(state, None)
    else:
        _of[state] = warm


def keep(state: Storage, name: str, data: pa.Buffer) -> None:
    """A segment was written or read."""
    if (warm := _of.get(state)) is not None:
        warm.keep(name, data)


def find(state: Storage, name: str, size: int) -> pa.Buffer | None:
    """A segment that is wanted, from memory."""
    warm = _of.get(state)
    data = None if warm is None else warm.find(name, size)
    if data is not None:
        moved.warm += len(data)
    return data
