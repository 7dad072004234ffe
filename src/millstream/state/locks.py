"""Locks on a directory: held by one process, gone with it, and seen by those who only look."""

from __future__ import annotations

import errno
import fcntl
import os

from millstream.state.storage import Held

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class FileLock:
    """A directory that is locked, and a file in it that says by whom.

    Both are locked: whoever removes the file does not get the directory with it.
    """

    def __init__(self, folder: str, path: str | None, says: str) -> None:
        self.path = path
        self._file: int | None = None
        self._folder: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path is not None:
                self._file = os.open(path, _FLAGS, 0o600)
                _lock_file(self._file)
            _lock_folder(self._folder, self._file)
            if path is not None and self._file is not None:
                if os.fstat(self._file).st_nlink > 1:  # a file of others, or a backup by hard links
                    self._renew(path, self._file)
                os.ftruncate(self._file, 0)
                os.write(self._file, says.encode())
        except BaseException:
            self.release()
            raise

    def _renew(self, path: str, file: int) -> None:
        """A lock file of our own in the place of one that has other names."""
        os.unlink(path)
        self._file = os.open(path, _FLAGS | os.O_EXCL, 0o600)
        os.close(file)
        _lock_file(self._file)

    def begun(self) -> None:
        """The lock is all there is."""

    def valid(self) -> bool:
        """Whether the file is still the one that was locked."""
        if self._file is None or self.path is None:
            return self._folder is not None
        held = os.fstat(self._file)
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Let go of both."""
        for handle in (self._file, self._folder):
            if handle is not None:
                os.close(handle)
        self._file = self._folder = None


def _lock_file(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Held(_said(handle)) from error


def _lock_folder(handle: int, file: int | None) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Held("" if file is None else _said(file)) from error
        # Some network file systems lock no directories: the file has to do.


def _said(handle: int) -> str:
    return os.pread(handle, 200, 0).decode("utf-8", "replace").strip()


def is_held(path: str) -> bool:
    """Whether a process holds a lock; it is not taken, somebody may just be taking it."""
    try:
        seen = os.stat(path)
        with open(path, errors="replace") as lock:
            owner = lock.read(200).split()[1:2]
        device = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}"
        with open("/proc/locks", encoding="ascii", errors="replace") as known:
            held = [line.split() for line in known]
    except FileNotFoundError:
        return os.path.exists(path) and not _can_lock(path)
    except OSError:
        return False
    # A line is `1: FLOCK ADVISORY WRITE 4711 08:01:1835009 0 EOF`. Layered file systems tell
    # another device there than to us, so the process in the file will do as well.
    return any(
        words[1] == "FLOCK"
        and words[5].rpartition(":")[2] == str(seen.st_ino)
        and (words[5].startswith(device) or words[4:5] == owner)
        for words in held
        if len(words) > 5
    )


def _can_lock(path: str) -> bool:
    with open(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
