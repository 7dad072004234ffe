"""Compressed files, read in pieces: positions are bytes of what they stand for. Run inside tasks.

A gzip file can only be inflated from its beginning. So a process that has read a piece keeps the
file open where the piece ended, and the next piece goes on from there: every process that reads
pieces of a file inflates it about once, however many pieces there are. Whatever a file stands for,
only a window of it is held.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, NamedTuple

from millstream.io.opening import open_bytes
from millstream.io.prints import open_known
from millstream.io.records import MAX_LINE, Split
from millstream.state.locations import is_url

_WINDOW = 8 * 1024 * 1024  # bytes looked at together
_STEP = 64 * 1024  # the same beyond the end of a split, where its last line ends
_PACKED = 32 * 1024  # compressed bytes read at a time
_PIECE = 1024 * 1024  # bytes inflated at a time
_FILES = 128  # kept open by a process, each with about 50 KiB
_HELD = 64 * 1024 * 1024  # inflated bytes that all of these may hold
_GZIP = 31  # what zlib calls the format, with its checksums

_Key = tuple[int | str, ...]


class Measure(NamedTuple):
    """What a file stands for."""

    length: int  # in bytes
    row: float  # bytes of a line where lines are shortest: how many lines a piece can have


_kept: dict[_Key, Unpacked] = {}  # by what the file is; the one unused for longest is the first


class Unpacked:
    """What a gzip file stands for: bytes at any position, but what lies far behind costs."""

    def __init__(self, stream: BinaryIO, held: ExitStack) -> None:
        self._stream, self._open = stream, held
        self.mark: int | None = None  # from here on bytes are held, to be read again
        self._rewind()

    def _rewind(self) -> None:
        self._stream.seek(0)
        self._packed = b""
        self._inflater = zlib.decompressobj(_GZIP)
        self._inside = False  # of a member: a file may have several, one after the other
        self._members = 0
        self._base, self._held = 0, bytearray()

    def close(self) -> None:
        """Let go of the file."""
        self._open.close()

    @property
    def holds(self) -> int:
        """How many inflated bytes are in memory."""
        return len(self._held)

    def at(self, position: int, size: int) -> bytes:
        """So many bytes from a position on; fewer at the end."""
        if position < self._base:
            self._rewind()
        needed = position if self.mark is None else min(position, self.mark)
        while True:
            self._drop(needed)
            missing = position + size - self._base - len(self._held)
            piece = self._inflate(min(missing, _PIECE)) if missing > 0 else b""
            if not piece:
                break
            self._held += piece
        start = position - self._base
        with memoryview(self._held) as view:
            return bytes(view[start : start + size])

    def measure(self, most: float = math.inf) -> Measure:
        """How much there is, or about `most` if there is more; all of that is inflated."""
        total = size = lines = 0
        least = math.inf
        while total < most and (piece := self._inflate(_PIECE)):
            total, size, lines = total + len(piece), size + len(piece), lines + piece.count(b"\n")
            if size >= _PIECE:
                least, size, lines = min(least, size / max(1, lines)), 0, 0
        if size >= _STEP or least == math.inf:
            least = min(least, size / max(1, lines))
        return Measure(total, max(1.0, least))

    def _drop(self, position: int) -> None:
        """Forget what lies before a position."""
        much = min(position - self._base, len(self._held))
        if much > 0:
            del self._held[:much]
            self._base += much

    def _inflate(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        while True:
            if not self._packed:
                self._packed = self._stream.read(_PACKED)
                if not self._packed and self._inside:
                    raise EOFError("it ends in the middle, was it truncated?")
                if not self._packed:
                    return b""
            if self._members and not self._inside:  # some tools fill the last block with zeros
                self._packed = self._packed.lstrip(b"\0")
                if not self._packed:
                    continue
            self._inside = True
            piece = self._inflater.decompress(self._packed, most)
            self._packed = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._packed = self._inflater.unused_data
                self._inflater, self._inside = zlib.decompressobj(_GZIP), False
                self._members += 1
            if piece:
                return piece


# ---------------------------------------------------------------- lines of a split


def blocks(split: Split) -> Iterator[tuple[int, bytes]]:
    """(position, whole lines) of the lines that begin in a split, wherever it was cut.

    An overlong line is cut just beyond the limit.
    """
    end = 1 << 62 if split.end < 0 else split.end
    with _opened(split) as file:
        file.mark = end - 1
        at, rest = _line_start(file, split, split.start, end), b""
        while at < end:
            beyond = at + len(rest)
            wanted = end - beyond if beyond < end else max(_STEP, len(rest))
            data = rest + _bytes_at(file, split, beyond, min(wanted, _WINDOW))
            if len(data) == len(rest):  # the end of the file
                if rest:
                    yield at, rest
                return
            last = data.find(b"\n", max(0, end - 1 - at)) + 1
            cut = last or data.rfind(b"\n") + 1
            if cut:
                yield at, data[:cut]
                at, rest = at + cut, data[cut:]
            elif len(data) > MAX_LINE + 1:  # too long even without a carriage return
                yield at, data[: MAX_LINE + 2] + b"\n"
                at, rest = _line_start(file, split, at + len(data), end), b""
            else:
                rest = data


def _line_start(file: Unpacked, split: Split, position: int, end: int) -> int:
    """Where the first line begins that is not before a position; `end` if none does before that."""
    at = position - 1
    while 0 <= at < end:
        data = _bytes_at(file, split, at, min(_WINDOW, end - at))
        found = data.find(b"\n") + 1
        if found:
            return at + found
        at = at + len(data) if data else end
    return min(position, end) if at < 0 else end


def _bytes_at(file: Unpacked, split: Split, at: int, size: int) -> bytes:
    data = file.at(at, size)
    if not data and at < split.end:
        raise EOFError(f"it stands for {at} bytes, expected {split.end}: was it replaced?")
    return data


@contextmanager
def _opened(split: Split) -> Iterator[Unpacked]:
    """The file of a split, where this process was in it last."""
    held = ExitStack()
    stream = held.enter_context(open_known(split.path, split.inode))
    key = _identity(split.path, stream)
    file = _kept.pop(key, None)
    if file is None:
        file = Unpacked(stream, held)
    else:
        held.close()
    try:
        yield file
        finished = split.end < 0 or not file.at(split.end, 1)
    except BaseException:
        file.close()
        raise
    if finished:
        file.close()
    else:
        _keep(key, file)


def _identity(path: str, stream: BinaryIO) -> _Key:
    """What a file is, whatever it is called; objects of a store are not moved."""
    if is_url(path):
        return path, stream.seek(0, os.SEEK_END)
    of = os.fstat(stream.fileno())
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns


def _keep(key: _Key, file: Unpacked) -> None:
    _kept[key] = file
    while len(_kept) > _FILES or sum(one.holds for one in _kept.values()) > _HELD:
        _kept.pop(next(iter(_kept))).close()


# ---------------------------------------------------------------- how long files are


def measure(paths: Iterable[str], most: float = math.inf) -> list[Measure | str]:
    """How much each of some files stands for; or why it is not intact."""
    return [_measure(path, most) for path in paths]


def _measure(path: str, most: float) -> Measure | str:
    try:
        with ExitStack() as held:
            return Unpacked(held.enter_context(open_bytes(path)), held).measure(most)
    except (OSError, EOFError, zlib.error) as error:
        return str(error)
