"""State that stays warm between batches: where, how much, and what that saved.

The driver claims a folder in memory for its checkpoint and tells tasks of it with every batch;
after a commit it lets go of segments that the manifest no longer names, and at the end of the
folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from millstream.errors import ConfigError
from millstream.settings import Settings
from millstream.sizes import bytes_of
from millstream.state import warm
from millstream.state.memory import MemoryFolder, lasts, memory_folder, room
from millstream.state.storage import Storage
from millstream.state.warm import Warm

SHARE = 10  # by default a tenth of the memory that is there, or of `memory`
_NO_LIMIT = 1 << 62
_BATCHES = 4  # of the largest size, that must fit into half of the memory that is there


class Warmth:
    """What a run keeps in memory beside its checkpoint."""

    def __init__(self, folder: MemoryFolder | None, kept: Warm | None, state: Storage) -> None:
        self._folder, self.kept, self._state = folder, kept, state
        self._alone: set[str] = set()

    def held(self) -> int:
        """How many bytes of segments are kept in memory."""
        return 0 if self.kept is None else self.kept.held()

    def committed(self, named: Collection[str]) -> None:
        """A manifest was written: what it does not name is of no use any more.

        Who just reads what is in memory alone has one batch time for it.
        """
        if self.kept is not None:
            self.kept.prune(named, self._alone)
            self._alone = {name for name in named if name.startswith(warm.ALONE)}

    def scratch(self, settings: Settings) -> Path | None:
        """A folder in memory for the blocks of Spark; None if they belong on the disk."""
        if settings.scratch == "disk":
            return None
        if settings.scratch == "memory" and self._folder is None:
            raise ConfigError(
                'scratch="memory": this machine has no file system in memory with room (/dev/shm), '
                "or master= is a cluster; name another with MILLSTREAM_MEMORY, or leave it out"
            )
        if self._folder is None:
            return None
        if settings.scratch is None:
            if not lasts():  # Spark could not go on without its blocks
                return None
            cores = settings.parallelism or os.cpu_count() or 1
            there = min(room(self._folder.path), settings.memory_bytes or _NO_LIMIT)
            if there < 2 * _BATCHES * settings.batch_bytes * cores:
                return None
        return self._folder.within("spark")

    def close(self) -> None:
        """Give the memory back."""
        warm.use(self._state, None)
        if self._folder is not None:
            self._folder.release()
        self._folder = self.kept = None


def keep_warm(state: Storage, settings: Settings) -> Warmth:
    """Claim a place in memory, if there is one and the settings want it."""
    wanted = settings.warm != 0 or settings.scratch != "disk"
    local = settings.master.startswith("local")
    folder = memory_folder(state.where()) if wanted and local else None
    if folder is None or settings.warm == 0:
        return Warmth(folder, None, state)
    there = min(room(folder.path), settings.memory_bytes or _NO_LIMIT)
    limit = there // SHARE if settings.warm is None else bytes_of(settings.warm, "warm")
    kept = Warm(str(folder.within(warm.PLACE)), min(limit, there // 2))
    warm.use(state, kept)
    return Warmth(folder, kept, state)
