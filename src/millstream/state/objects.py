"""An object store as storage: no renames, no locks, no files that grow.

What protects a checkpoint there is what it is called. A run takes an *epoch*, a number nobody else
has, and all that it writes and may write again lies under its name and the number of the epoch
(`flow.json/@00000007`); whoever reads takes the highest. So a run that was overtaken and does not
know it yet changes nothing that its successor sees. What is written once, segments and manifests,
has its plain name: segments are named after the attempt that wrote them, and of two runs only one
creates the manifest of a batch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from typing import Any

import pyarrow as pa

from millstream.errors import CheckpointError
from millstream.state.buckets import Bucket, Listed, bucket_of
from millstream.state.cache import cached
from millstream.state.traffic import moved

_VERSION = re.compile(r"(.+)/@([0-9]{8,18})", re.ASCII | re.DOTALL)
_ONCE = re.compile(r"state/.*|manifests/[0-9]+\.json|epochs/[0-9]+", re.ASCII | re.DOTALL)
_TRIES = 5
_EPOCHS = 16  # that are remembered by name
_BLOCK = 1024 * 1024  # bytes fetched at a time of an input


@dataclass
class Run:
    """The epoch of the run that holds a storage and all folders in it; None: nobody's."""

    epoch: int | None = None


@dataclass(frozen=True)
class ObjectStore:
    """Objects under a URL. See `storage.py: Storage`."""

    url: str
    inside: str = ""  # the folder below what the user gave
    run: Run = field(default_factory=Run, compare=False, repr=False)

    shared = True

    def where(self, name: str = "") -> str:
        return "/".join(part for part in (self.url, self.inside, name) if part)

    def within(self, folder: str) -> ObjectStore:
        self._key(folder)
        return ObjectStore(self.url, f"{self.inside}/{folder}".lstrip("/"), self.run)

    def _path(self, name: str) -> str:
        return f"{self.inside}/{name}".strip("/")

    def _key(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise CheckpointError(f"{name!r} is no name of an object in {self.where()}")
        return f"{bucket_of(self.url)[1]}/{self._path(name)}".strip("/")

    @property
    def _bucket(self) -> Bucket:
        return bucket_of(self.url)[0]

    # -- what is written again and again --------------------------------------------------------

    def _once(self, name: str) -> bool:
        """Whether an object is written once and for all."""
        return _ONCE.fullmatch(self._path(name)) is not None

    def _versions(self, name: str) -> list[tuple[int, Listed]]:
        """What epochs wrote of an object, the newest last."""
        wanted = self._key(name)
        found = ((_VERSION.fullmatch(one.key), one) for one in self._bucket.list(wanted))
        return sorted((int(by[2]), one) for by, one in found if by and by[1] == wanted)

    def _newest(self, name: str) -> Listed:
        """An object as it counts; FileNotFoundError if there is none."""
        if not self._once(name) and (versions := self._versions(name)):
            return versions[-1][1]
        if (found := self._bucket.look(self._key(name))) is not None:
            return found
        raise FileNotFoundError(errno.ENOENT, "there is no such object", self.where(name))

    # -- reading --------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        return self._read(name, 0, None)

    def read_range(self, name: str, start: int, size: int) -> bytes:
        if size < 0:
            return self._read(name, start, None)
        size = min(size, self._newest(name).size - start)
        return self._read(name, start, size) if size > 0 else b""

    def _read(self, name: str, start: int, size: int | None) -> bytes:
        data = self._fetch(name, start, size)
        moved.read += len(data)
        return data

    def _fetch(self, name: str, start: int, size: int | None) -> bytes:
        if self._once(name):
            return self._bucket.read(self._key(name), start, size)
        for _ in range(_TRIES):
            found = self._newest(name)
            with contextlib.suppress(FileNotFoundError):  # just replaced by a newer one
                return self._bucket.read(found.key, start, size)
        raise FileNotFoundError(errno.ENOENT, "there is no such object", self.where(name))

    def map(self, name: str) -> pa.Buffer:
        if not self._once(name):
            return pa.py_buffer(self.read(name))
        return cached(self.where(name), lambda: self.read(name))

    def exists(self, name: str = "") -> bool:
        if not name:
            return bool(self._bucket.list(self._key("")))
        try:
            self._newest(name)
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        return self._newest(name).size

    def stamp(self, name: str) -> Hashable | None:
        try:
            found = self._newest(name)
        except FileNotFoundError:
            return None
        return found.key, found.tag, found.size

    def names(self) -> list[str]:
        return [name for name in self.walk() if "/" not in name]

    def walk(self) -> list[str]:
        folder = self._key("")
        found = set()
        for one in self._bucket.list(folder):
            name = one.key.removeprefix(folder).lstrip("/")
            version = _VERSION.fullmatch(name)
            found.add(version[1] if version else name)
        return sorted(found)

    # -- writing --------------------------------------------------------------------------------

    def put(self, name: str, data: pa.Buffer | bytes, *, durable: bool = True) -> None:
        key = self._key(name)
        if self.run.epoch is not None and not self._once(name):
            key = f"{key}/@{self.run.epoch:08d}"
        self._bucket.put(key, data)
        moved.written += len(data)

    def put_new(self, name: str, data: pa.Buffer | bytes) -> None:
        """A store may say of what it took itself, on a second try, that it is there already."""
        key = self._key(name)
        for _ in range(_TRIES):
            try:
                self._bucket.create(key, data)
                return
            except FileExistsError:
                try:
                    found = self._bucket.read(key)
                except FileNotFoundError:
                    continue  # said in error, or removed since
                if found == bytes(data):
                    return
                raise
        raise OSError(
            errno.EIO, "the store says that it is there, and has it not", self.where(name)
        )

    def append(self, name: str, size: int, data: bytes) -> None:
        before = self.read_range(name, 0, size) if size else b""
        if len(before) < size:
            raise CheckpointError(f"{self.where(name)} has {len(before)} bytes, expected {size}")
        self.put(name, before + data)

    def publish(self, name: str, to: str) -> None:
        if self._bucket.look(self._key(to)) is not None:
            raise FileExistsError(errno.EEXIST, "is there already", self.where(to))
        self._bucket.copy(self._newest(name).key, self._key(to))
        self.delete(name)

    def rename(self, name: str, to: str) -> None:
        self.put(to, self.read(name))
        self.delete(name)

    def delete(self, name: str) -> None:
        if self.run.epoch is None or self._once(name):
            self._bucket.delete(self._key(name))
            return
        for epoch, one in self._versions(name):
            if epoch <= self.run.epoch:
                self._bucket.delete(one.key)

    # -- whose it is ----------------------------------------------------------------------------

    def create(self, *, private: bool = True) -> None:
        """Folders are there by themselves; who may read them the store says."""

    def check(self, what: str, *, given: bool = False) -> None:
        """Who may write there is the store's to say."""

    def strangers(self, skip: str, files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        yield from ()

    def hold(self, name: str | None = None, says: str = "") -> StoreHold:
        return StoreHold(self, name, says)

    def held(self, name: str) -> bool:
        return self.exists(name)

    def begin(self) -> int:
        """Take the next epoch; refused where a store does not keep two from taking the same."""
        self._check_creates()
        epochs = self.within("epochs")
        while True:
            taken = sorted(int(name) for name in epochs.names() if name.isdigit())
            epoch = (taken[-1] if taken else 0) + 1
            try:
                epochs.put_new(f"{epoch:08d}", os.urandom(12).hex().encode())
                break
            except FileExistsError:
                continue
        for old in taken[:-_EPOCHS]:
            epochs.delete(f"{old:08d}")
        self.run.epoch = epoch
        return epoch

    def _check_creates(self) -> None:
        """Some stores ignore that an object is to be created only if it is not there."""
        key = self._key(f"epochs/probe-{os.urandom(6).hex()}")
        try:
            self._bucket.create(key, b"one")
            self._bucket.create(key, b"two")
        except FileExistsError:  # of the first, if its answer was lost and it was asked for again
            return
        else:
            raise CheckpointError(
                f"{self.url}: this store creates an object that is there already (it ignores "
                "If-None-Match), so two runs could commit the same batch; keep the checkpoint in "
                "another store or directory"
            )
        finally:
            self._bucket.delete(key)


class StoreHold:
    """A courtesy: an object that says whose the storage is. What protects it is the epoch."""

    def __init__(self, store: ObjectStore, name: str | None, says: str) -> None:
        self._store, self._name, self._says = store, name, says

    def begun(self) -> None:
        """Say it, once there is an epoch to say it in."""
        if self._name is not None:
            self._store.put(self._name, self._says.encode())

    def valid(self) -> bool:
        return True

    def release(self) -> None:
        if self._name is not None and self._store.run.epoch is not None:
            self._store.delete(self._name)


# ---------------------------------------------------------------- inputs


def list_objects(url: str) -> list[tuple[str, Listed]]:
    """What lies under a URL, each with its own."""
    bucket, key = bucket_of(url)
    root = "/".join(url.split("/", 3)[:3])
    return [(f"{root}/{one.key}", one) for one in bucket.list(key)]


def look_at(url: str) -> Listed | None:
    """An object of an input; None if there is none."""
    bucket, key = bucket_of(url)
    return bucket.look(key)


def open_object(url: str) -> BufferedReader:
    """An object of an input, read by ranges."""
    found = look_at(url)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", url)
    return BufferedReader(_Ranges(url, found.size), _BLOCK)


class _Ranges(RawIOBase):
    """An object as a file that is read and sought in."""

    def __init__(self, url: str, size: int) -> None:
        self._bucket, self._key = bucket_of(url)
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        data = self._bucket.read(self._key, self._at, size)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
