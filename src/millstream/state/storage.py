"""Where a flow keeps what it writes: objects under names, and nothing else of a file system.

Checkpoints and output directories are read and written through this interface alone: by the
driver, by tasks, and by who looks at them. It asks only what an object store can answer as well: an
object is read whole, by range or mapped, and appears under its name whole or not at all.
`directory.py` is a local directory, `objects.py` an object store. Names are relative, with `/`
between folders.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from millstream.state.locations import Url, located

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a disk that takes no more, or not of this user


class Held(Exception):
    """Somebody else holds a storage; the text says who, if that is known."""


class Hold(Protocol):
    """A storage in the hands of this process, until it is released or the process ends."""

    def begun(self) -> None:
        """An epoch has been taken."""

    def valid(self) -> bool:
        """Whether what was taken is still what others would have to take."""

    def release(self) -> None:
        """Let go of it."""


class Storage(Protocol):
    """A folder of objects, with folders in it. What lies in it is data: nothing is followed."""

    @property
    def shared(self) -> bool:
        """Whether a lock cannot keep others out: what may be another run's is then left alone."""

    def __hash__(self) -> int:
        """What is at the same place is the same."""

    def where(self, name: str = "") -> str:
        """What a message calls an object, or the folder."""

    def within(self, folder: str) -> Storage:
        """A folder in it."""

    # -- reading --------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """A whole object; FileNotFoundError if there is none."""

    def read_range(self, name: str, start: int, size: int) -> bytes:
        """So many bytes of an object, or fewer at its end."""

    def map(self, name: str) -> pa.Buffer:
        """A whole object, of which only what is looked at is brought into memory.

        It stays readable when the object is deleted.
        """

    def exists(self, name: str = "") -> bool:
        """Whether there is an object of this name, or the folder itself."""

    def size(self, name: str) -> int:
        """How many bytes an object has."""

    def stamp(self, name: str) -> Hashable | None:
        """Something else whenever the object is; None if there is none."""

    def names(self) -> list[str]:
        """The objects of this folder, in order, without those of folders in it."""

    def walk(self) -> list[str]:
        """The objects of this folder and of all folders in it."""

    # -- writing --------------------------------------------------------------------------------

    def put(self, name: str, data: pa.Buffer | bytes, *, durable: bool = True) -> None:
        """Write a whole object, in place of one of that name.

        durable: it survives a loss of power once this returns; else only if losing it, and having
            the one before, does no harm.
        """

    def put_new(self, name: str, data: pa.Buffer | bytes) -> None:
        """Write a whole object durably if the name is free; FileExistsError if it is not."""

    def append(self, name: str, size: int, data: bytes) -> None:
        """Make an object its first `size` bytes and these, durably."""

    def publish(self, name: str, to: str) -> None:
        """Give an object another name, which must be free, durably: FileExistsError if it is not.

        If a crash interrupted that, it is brought to its end.
        """

    def rename(self, name: str, to: str) -> None:
        """Give an object another name, in place of one of that name: in one step, not durably."""

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""

    # -- whose it is ----------------------------------------------------------------------------

    def create(self, *, private: bool = True) -> None:
        """Have the folder be there; a new one can be read by its owner only, if it is private."""

    def check(self, what: str, *, given: bool = False) -> None:
        """Refuse a folder that somebody else may have written into.

        given: a user named it, so that a link of their own to it is followed.
        """

    def strangers(self, skip: str, files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """What should not be there, by its name, and why; `files` must not be folders."""

    def hold(self, name: str | None = None, says: str = "") -> Hold:
        """Take the folder for this process; Held if another has it.

        name: an object that says who holds it, for others to read.
        """

    def held(self, name: str) -> bool:
        """Whether a process holds the folder with that object; takes nothing itself."""

    def begin(self) -> int | None:
        """Take an epoch that nobody else has, where that protects; None where a lock does."""


def open_storage(where: str | Path) -> Storage:
    """The storage at a place a user gave."""
    place = located(where)
    if isinstance(place, Url):
        from millstream.state.objects import ObjectStore

        return ObjectStore(str(place))
    from millstream.state.directory import Directory

    return Directory(str(place.absolute()))
