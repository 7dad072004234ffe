"""What a file is, whatever it is called: a print of its beginning and of where it was seen to end.

Names change (log rotation), inodes are used again. A print is taken of the bytes that were there
when a file was looked at; a file that still has them is the same one, or a copy of it.
"""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, cast

from millstream.io.opening import open_bytes, open_unpacked
from millstream.state.locations import is_url

REACH = 1024  # bytes looked at, at either end
_WINDOW = 1024 * 1024
MOVED = "no such file, or it was removed or replaced while it was read"
_PAUSES = (0.01, 0.05, 0.2)  # seconds before a file that was not found is looked for again


class Print(NamedTuple):
    """Checksums of the first and the last bytes of the first `span` bytes of a file."""

    span: int = 0
    head: int = 0
    tail: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What files with the same beginning share."""
        return min(REACH, self.span), self.head


NOTHING = Print()


def take_print(stream: BinaryIO, span: int) -> tuple[Print, bytes]:
    """The print of the first `span` bytes, and how it begins.

    A file that has fewer by now was truncated since it was looked at: it is not the one it was.
    """
    lead = _read(stream, 0, min(REACH, span))
    tail = _read(stream, max(0, span - REACH), min(REACH, span))
    if len(tail) < min(REACH, span):
        raise FileNotFoundError(errno.ENOENT, MOVED, stream.name)
    return Print(span, zlib.crc32(lead), zlib.crc32(tail)), lead


def fits(stream: BinaryIO, known: Print) -> bool:
    """Whether a file still has the bytes a print was taken of."""
    if not known.span:
        return True
    lead = _read(stream, 0, min(REACH, known.span))
    if len(lead) < min(REACH, known.span) or zlib.crc32(lead) != known.head:
        return False
    tail = _read(stream, max(0, known.span - REACH), min(REACH, known.span))
    return len(tail) == min(REACH, known.span) and zlib.crc32(tail) == known.tail


def unzipped(known: Print, paths: Iterable[str]) -> list[int | None]:
    """How long compressed files are that hold the bytes of a print; None for others."""
    return [_unzipped(known, path) for path in paths]


def _unzipped(known: Print, path: str) -> int | None:
    try:
        with gzip.open(path) as packed:
            stream = cast(BinaryIO, packed)
            if not fits(stream, known):
                return None
            while stream.read(_WINDOW):
                pass
            return stream.tell()
    except (OSError, EOFError, zlib.error):
        return None


def lead_of(path: str) -> bytes:
    """How a file begins, uncompressed."""
    try:
        with open_unpacked(path) as stream:
            return stream.read(REACH)
    except (OSError, EOFError, zlib.error):
        return b""


def _read(stream: BinaryIO, at: int, size: int) -> bytes:
    stream.seek(at)
    return stream.read(size)


@contextmanager
def open_known(path: str, inode: int, seen: Print = NOTHING) -> Iterator[BinaryIO]:
    """A file by what it is, even if it was rotated between the plan and the reading.

    It is looked for in the directory it was in: under its inode (0: whatever has the name), and if
    it is no longer what was `seen`, as a copy, compressed or not. The bytes come uncompressed then.
    Objects of a store are not moved.
    """
    if is_url(path):
        with open_bytes(path) as stream:
            if fits(stream, seen):
                stream.seek(0)
                yield stream
                return
        raise FileNotFoundError(errno.ENOENT, f"{MOVED}; start the flow again", path)
    for pause in (0.0, *_PAUSES) if inode else (0.0,):
        if pause:  # a listing may miss what is renamed meanwhile
            time.sleep(pause)
        for name in itertools.chain([path], in_directory(path, inode)):
            try:
                stream = open(name, "rb")  # noqa: SIM115  it is closed below
            except FileNotFoundError:
                continue
            with stream:
                if inode in (0, os.fstat(stream.fileno()).st_ino) and fits(stream, seen):
                    stream.seek(0)
                    yield stream
                    return
        for name in in_directory(path, None) if seen.span else ():
            try:
                copy = open_unpacked(name)
            except FileNotFoundError:
                continue
            with copy:
                if _has(copy, seen):
                    copy.seek(0)
                    yield copy
                    return
    raise FileNotFoundError(errno.ENOENT, f"{MOVED}; start the flow again", path)


def _has(stream: BinaryIO, seen: Print) -> bool:
    try:
        return fits(stream, seen)
    except (OSError, EOFError, zlib.error):
        return False  # not compressed, or not yet


def in_directory(path: str, inode: int | None) -> Iterator[str]:
    """Files in the directory of a path: the one with an inode, or all."""
    if inode == 0:
        return
    try:
        with os.scandir(os.path.dirname(os.path.realpath(path))) as entries:
            files = (entry for entry in entries if entry.is_file(follow_symlinks=False))
            found = sorted(entry.path for entry in files if inode in (None, entry.inode()))
    except OSError:
        return
    yield from found
