"""A folder in memory, for what a run keeps beside its checkpoint: warm state, blocks of Spark.

It lies in a file system that is memory (`/dev/shm`), so all processes of a machine share it, and
nothing in it is needed: whatever is lost with it is in the checkpoint, or was of a batch that is
run again. A run locks its folder. Those of runs that were killed are removed by the next one that
begins, since nobody holds their lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from millstream.errors import CheckpointError, ConfigError
from millstream.state.locks import FileLock
from millstream.state.places import check_directory
from millstream.state.storage import Held

_USUAL = Path("/dev/shm")
_PEOPLE = 1000  # the first user who is not of the system
_TRIES = 3
_SYSTEMD = Path("/run/systemd/system")
_LEAST = 2**28  # bytes a file system in memory must have: containers often give it 64 MB


_held: set[Path] = set()  # the folders of this process: each flow that runs in it has its own


class MemoryFolder:
    """The folder of one checkpoint, held by this process until `release`."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path, self._lock = path, lock
        _held.add(path)

    def within(self, name: str) -> Path:
        """A folder in it."""
        found = self.path / name
        found.mkdir(mode=0o700, exist_ok=True)
        return found

    def release(self) -> None:
        """Give the memory back."""
        shutil.rmtree(self.path, ignore_errors=True)
        _held.discard(self.path)
        self._lock.release()


def bytes_held() -> int:
    """What lies in memory for this process and those below it: of all flows, and of all kinds."""
    found = 0
    for root in list(_held):
        for folder, _, names in os.walk(root):
            for name in names:
                with contextlib.suppress(OSError):  # gone meanwhile
                    found += os.lstat(f"{folder}/{name}").st_blocks * 512
    return found


def folder_of(state: str) -> Path | None:
    """Where a run keeps what belongs to a state in memory, if it does."""
    root = _root()
    return None if root is None else root / hashlib.sha256(state.encode()).hexdigest()[:24]


def memory_folder(state: str) -> MemoryFolder | None:
    """The folder of a state in memory, empty; None if this machine has no place for one."""
    root = _root()
    if root is None:
        return None
    for _ in range(_TRIES):  # another process may just remove what it takes for abandoned
        with contextlib.suppress(OSError, CheckpointError, Held):
            root.mkdir(mode=0o700, exist_ok=True)
            check_directory(root, "folder in memory")
            _sweep(root)
            path = folder_of(state)
            assert path is not None
            path.mkdir(mode=0o700, exist_ok=True)
            lock = FileLock(str(path), str(path / "lock"), f"pid {os.getpid()}")
            if lock.valid():
                return MemoryFolder(path, lock)
            lock.release()
    return None


def lasts() -> bool:
    """Whether nobody removes what lies in memory while it is used.

    Where systemd runs, `/dev/shm` is emptied of a person's files when their last session ends
    (RemoveIPC), also under a service that runs as them; root and system users are exempt.
    """
    return os.getuid() < _PEOPLE or not _SYSTEMD.is_dir()


def room(place: Path) -> int:
    """How many bytes may go into a place in memory: what it and the machine have left."""
    return min(shutil.disk_usage(place).free, available_memory())


def available_memory() -> int:
    """Bytes the machine, or what limits this process on it, can still give."""
    found = [_number_after("/proc/meminfo", "MemAvailable:", 1024)]
    limit, used = (_number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        found.append(max(0, limit - used))
    return min((one for one in found if one is not None), default=0)


def _root() -> Path | None:
    given = os.environ.get("MILLSTREAM_MEMORY")
    if given == "":
        return None
    place = _USUAL if given is None else Path(given)
    if given is not None and not place.is_dir():
        raise ConfigError(
            f"MILLSTREAM_MEMORY={given}: there is no such directory; name one in memory, or "
            "nothing to keep none there"
        )
    if not os.access(place, os.W_OK | os.X_OK) or shutil.disk_usage(place).total < _LEAST:
        return None
    return place / f"millstream-{os.getuid()}"


def _sweep(root: Path) -> None:
    """Remove what runs left that were killed."""
    for path in root.iterdir():
        with contextlib.suppress(OSError, Held):
            lock = FileLock(str(path), str(path / "lock"), "")
            shutil.rmtree(path, ignore_errors=True)
            lock.release()


def _number_after(path: str, word: str, unit: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(word):
                return int(line.split()[1]) * unit
    return None


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
