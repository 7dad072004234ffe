"""A local directory as storage: rename, fsync, mmap and locks, and no link in it is followed."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.state.locks import FileLock, is_held
from millstream.state.places import (
    check_directory,
    check_given,
    create_new,
    link_new,
    open_regular,
    strangers,
)
from millstream.state.traffic import moved


@dataclass(frozen=True)
class Directory:
    """Files under a path. See `storage.py: Storage`."""

    path: str
    inside: tuple[str, ...] = ()  # the folders below what the user gave: none of them is a link
    counted: bool = field(default=True, compare=False)  # what is read and written here

    shared = False

    def where(self, name: str = "") -> str:
        return f"{self.path}/{name}" if name else self.path

    def within(self, folder: str) -> Directory:
        path = self._at(folder)
        return Directory(path, (*self.inside, path), self.counted)

    def _at(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise CheckpointError(f"{name!r} is no name of an object in {self.path}")
        return f"{self.path}/{name}"

    # -- reading --------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        return self.read_range(name, 0, -1)

    def read_range(self, name: str, start: int, size: int) -> bytes:
        path = self._at(name)
        with os.fdopen(open_regular(path), "rb") as file:
            try:
                if start:
                    file.seek(start)
                data = file.read(size)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
        moved.read += len(data) * self.counted
        return data

    def map(self, name: str) -> pa.Buffer:
        path = self._at(name)
        handle = open_regular(path)
        try:
            if not (size := os.fstat(handle).st_size):
                return pa.py_buffer(b"")
            moved.read += size * self.counted
            return pa.py_buffer(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read ({error})") from error
        finally:
            os.close(handle)

    def exists(self, name: str = "") -> bool:
        return os.path.lexists(self._at(name)) if name else os.path.isdir(self.path)

    def size(self, name: str) -> int:
        return os.lstat(self._at(name)).st_size

    def stamp(self, name: str) -> Hashable | None:
        try:
            seen = os.lstat(self._at(name))
        except FileNotFoundError:
            return None
        return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size

    def names(self) -> list[str]:
        return sorted(self._entries("", deep=False))

    def walk(self) -> list[str]:
        return sorted(self._entries("", deep=True))

    def _entries(self, folder: str, deep: bool) -> Iterator[str]:
        if any(os.path.islink(path) for path in self.inside):
            return
        try:
            with os.scandir(self.where(folder)) as listing:
                entries = list(listing)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not entry.is_dir(follow_symlinks=False):
                yield name
            elif deep:
                yield from self._entries(name, deep)

    # -- writing --------------------------------------------------------------------------------

    def put(self, name: str, data: pa.Buffer | bytes, *, durable: bool = True) -> None:
        write_whole(self._at(name), data, durable=durable)
        moved.written += len(data) * self.counted

    def put_new(self, name: str, data: pa.Buffer | bytes) -> None:
        path = self._at(name)
        folder, _, last = path.rpartition("/")
        temporary = f"{folder}/.{last}-{os.urandom(6).hex()}.tmp"
        try:
            _write(temporary, data, durable=True)
            link_new(temporary, path)
        finally:
            _remove(temporary)
        sync_directory(folder)

    def append(self, name: str, size: int, data: bytes) -> None:
        path = self._at(name)
        if _has_other_names(path):  # it may be a file of others, or a backup by hard links
            write_whole(path, self.read_range(name, 0, size) + data)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o666), "wb") as out:
            out.truncate(size)
            out.seek(size)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if not size:
            sync_directory(os.path.dirname(path))

    def publish(self, name: str, to: str) -> None:
        path, final = self._at(name), self._at(to)
        try:
            link_new(path, final)
        except FileExistsError:
            if not _one_file(path, final):
                raise
        _remove(path)
        sync_directory(os.path.dirname(final))

    def rename(self, name: str, to: str) -> None:
        os.replace(self._at(name), self._at(to))

    def delete(self, name: str) -> None:
        _remove(self._at(name))

    # -- whose it is ----------------------------------------------------------------------------

    def create(self, *, private: bool = True) -> None:
        os.makedirs(self.path, 0o700 if private else 0o777, exist_ok=True)

    def check(self, what: str, *, given: bool = False) -> None:
        (check_given if given else check_directory)(Path(self.path), what)

    def strangers(self, skip: str, files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        yield from strangers(Path(self.path), frozenset({skip}))
        for name in files:
            if os.path.isdir(self._at(name)):
                yield name, "is a directory; remove it"

    def hold(self, name: str | None = None, says: str = "") -> FileLock:
        return FileLock(self.path, name and self._at(name), says)

    def held(self, name: str) -> bool:
        return is_held(self._at(name))

    def begin(self) -> None:
        return None


def write_whole(path: str, data: pa.Buffer | bytes, *, durable: bool = True) -> None:
    """Write a file whole: a temporary name, fsync, rename, fsync of the directory."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.tmp"
    try:
        try:
            _write(temporary, data, durable)
        except FileNotFoundError:
            os.makedirs(folder, 0o700, exist_ok=True)
            _write(temporary, data, durable)
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        raise
    if durable:
        sync_directory(folder)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: str, data: pa.Buffer | bytes, durable: bool) -> None:
    with os.fdopen(create_new(path), "wb") as out:
        out.write(data)
        out.flush()
        if durable:
            os.fsync(out.fileno())


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _has_other_names(path: str) -> bool:
    try:
        return os.lstat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def _one_file(path: str, other: str) -> bool:
    """Whether these are two names of one file."""
    one, two = os.lstat(path), os.lstat(other)
    same = (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
    return same and stat.S_ISREG(one.st_mode)
