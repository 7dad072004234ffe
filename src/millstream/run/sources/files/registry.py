"""What is written down of the files of a source: those it has begun, and those it has seen.

Files that were begun stand in the order of their numbers. A line is a file as it was begun, where a
file is by now if it moved, or how a file that is complete was left. What is said of files that go
on is in the manifest, which also says how many bytes count; a batch that was not committed leaves
no trace.

Followed files are written down before anything of them is read: between two looks a log may be
rotated to where nobody looks for it, and the flow be killed. So what a look finds is durable at
once, and a start looks for all that was seen and not begun. A line is a file as it was seen first,
or again when it has doubled, so that it is known by more than its first line.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from millstream.errors import ASK_DOCTOR, CheckpointError
from millstream.io.formats import READER
from millstream.io.prints import NOTHING, Print
from millstream.io.readers import is_gzip
from millstream.run.sources.files.listing import Inode
from millstream.state.locations import is_url
from millstream.state.manifests import SourceState, check_registry, check_sightings
from millstream.state.storage import Storage
from millstream.state.values import Count, FilePath, Identity, Int64

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Known:
    """A file of a source, whatever it is called."""

    path: str
    inode: Inode | None  # None: written down before inodes were
    sealed: bool  # parquet, gzip: it does not grow once it can be read
    size: int = 0
    first: int | None = None  # the time of its first record; None: it has none
    number: int | None = None  # None: nothing of it was read yet
    offset: int = 0  # bytes (rows of parquet) that were read
    end: int = 0  # and that can be read
    print: Print = NOTHING  # of all that was seen of it
    lead: bytes = b""  # its beginning, once it was looked at
    stamp: tuple[int, int] | None = None  # size and change as it was measured last
    latest: int | None = None  # the latest time read
    heard: int = 0  # the wall clock when something was read last
    pace: float | None = None  # microseconds of event time per byte (row)
    done: bool = False  # nothing more is expected of it
    seen: int | None = None  # its number among the files that were seen
    noted: int = 0  # and how much of it that list tells

    @property
    def reached(self) -> int | None:
        """How far its time has come."""
        return self.first if self.latest is None else self.latest


class _Begun(msgspec.Struct, frozen=True):
    """A line of a file that was begun, or (with a number) of one that moved."""

    path: FilePath
    inode: tuple[Identity, Identity] | None
    number: Count | None = None
    sealed: bool = False
    first: Int64 | None = None
    seen: Count | None = None


class _Left(NamedTuple):
    """A line of a file that is complete: how it was left."""

    number: Count
    offset: Count
    size: Count | None = None  # None: written down before files were known again
    changed: Int64 = -1
    latest: Int64 | None = None
    span: Count = 0
    head: Count = 0
    tail: Count = 0


class _Seen(msgspec.Struct):
    """A line of a file that was seen, by its number among all that were."""

    seen: Count
    path: FilePath
    inode: tuple[Identity, Identity]
    sealed: bool
    size: Count
    print: tuple[Count, Count, Count]


_registered = msgspec.json.Decoder(FilePath | _Begun | _Left)
_sighted = msgspec.json.Decoder(_Seen)


class _Log:
    """Lines that are only ever appended to; a manifest says how much of them counts."""

    def __init__(self, sources: Storage, name: str) -> None:
        self.sources, self.name = sources, name
        self.size = self.checksum = 0

    def read(self, data: bytes, sure: int, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        """What was written; a line beyond what is sure may be one that a kill cut off."""
        for line in data.splitlines(keepends=True):
            try:
                entry = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                if self.size < sure:
                    raise self.damaged(error) from None
                return
            if not line.endswith(b"\n"):
                return
            self._count(line)
            yield entry

    def damaged(self, error: Exception) -> CheckpointError:
        """It cannot be gone on from."""
        return CheckpointError(
            f"registry {self.sources.where(self.name)} is damaged: what it says of files makes no "
            f"sense ({error}){ASK_DOCTOR}"
        )

    def append(self, entries: list[Any]) -> None:
        """Add lines; what an attempt that failed left behind the end is dropped."""
        lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        self.sources.append(self.name, self.size, lines)
        self._count(lines)

    def _count(self, lines: bytes) -> None:
        self.size += len(lines)
        self.checksum = zlib.crc32(lines, self.checksum)


class Registry:
    """The files of one source: `files` have numbers, and `open` of them go on."""

    def __init__(
        self, sources: Storage, stem: str, state: SourceState, kind: str, follow: bool
    ) -> None:
        self.kind, self._follow = kind, follow
        self.files: list[Known] = []
        self._moved: set[Known] = set()
        self._begun = _Log(sources, f"{stem}.jsonl")
        self._seen = _Log(sources, f"{stem}.seen")
        self._noted: list[_Seen] = []  # not yet written
        self._next = 0  # among the files that were seen
        data = check_registry(sources, self._begun.name, state)
        try:
            for entry in self._begun.read(data, state.registry, _registered):
                self._read(entry)
            self.open = {int(number): self.files[int(number)] for number in state.open}
        except LookupError as error:
            raise self._begun.damaged(error) from None
        self._written = len(self.files)
        for number, file in self.open.items():
            self._go_on(str(number), file, state)
        self._begun.append([])
        self.waiting = self._unbegun(sources, state) if follow else []  # seen, and nothing read

    def _read(self, entry: str | _Begun | _Left) -> None:
        match entry:
            case str():
                self._add(entry, None, None, is_sealed(self.kind, entry))
            case _Begun(path, inode, number) if number is not None:
                self.files[number].path, self.files[number].inode = path, inode
            case _Begun(path, inode):
                self._add(path, inode, entry.first, entry.sealed)
                self.files[-1].seen = entry.seen
            case _Left(number, offset):
                file = self.files[number]
                file.offset = file.end = offset
                if entry.size is not None:
                    file.size, file.latest = entry.size, entry.latest
                    file.stamp = (entry.size, entry.changed)
                    file.print = Print(entry.span, entry.head, entry.tail)

    def _add(self, path: str, inode: Inode | None, first: int | None, sealed: bool) -> None:
        file = Known(path, inode, sealed, first=first, number=len(self.files), done=True)
        self.files.append(file)

    def _go_on(self, key: str, file: Known, state: SourceState) -> None:
        file.offset, file.done, file.stamp = state.open[key], False, None
        file.latest = state.reached.get(key)
        file.print = Print(*state.prints.get(key, ()))
        file.end = file.offset + 1 if file.sealed else file.print.span  # it had more
        compressed = is_gzip(self.kind, file.path)  # since its print was taken, perhaps
        if file.print.span and file.offset > file.end and not compressed:
            raise CheckpointError(
                f"the manifest says {file.offset} bytes were read of {file.path}, which had "
                f"{file.end}{ASK_DOCTOR}"
            )

    def _unbegun(self, sources: Storage, state: SourceState) -> list[Known]:
        data = check_sightings(sources, self._seen.name, state)
        known = {line.seen: line for line in self._seen.read(data, state.seen, _sighted)}
        self._next = max(known, default=-1) + 1
        begun = {file.seen for file in self.files}
        return [_restored(line) for number, line in known.items() if number not in begun]

    def begin(self, file: Known) -> None:
        """Give a file its number."""
        file.number = len(self.files)
        self.files.append(file)
        self.open[file.number] = file

    def moved(self, file: Known) -> None:
        """It has another name or inode by now."""
        if file.number is not None and file.number < self._written:
            self._moved.add(file)

    def note(self, file: Known) -> None:
        """Remember a followed file that waits, unless it is remembered well enough."""
        span = file.print.span
        if not self._follow or file.number is not None or file.inode is None or not span:
            return
        if file.seen is None:
            file.seen, self._next = self._next, self._next + 1
        elif span < 2 * file.noted:
            return
        file.noted = span
        line = _Seen(file.seen, file.path, file.inode, file.sealed, file.size, file.print)
        self._noted.append(line)

    def write(self) -> None:
        """Make all that was noted durable; what fails is tried again next time."""
        if self._noted:
            self._seen.append(self._noted)
            self._noted = []

    def save(self, settled: list[Known], state: SourceState) -> None:
        """Write down what is new; `settled` files are complete and leave the manifest."""
        entries: list[Any] = [_begun(file) for file in self.files[self._written :]]
        entries += [
            {"number": f.number, "path": f.path, "inode": f.inode}
            for f in sorted(self._moved, key=_number)
        ]
        for file in sorted(settled, key=_number):
            size, changed = file.stamp or (file.size, -1)
            seen = [size, changed, file.latest, *file.print]
            entries.append([file.number, file.offset, *seen])
        if entries:
            self._begun.append(entries)
        self._written = len(self.files)
        self._moved.clear()
        for file in settled:
            self.open.pop(_number(file), None)
            file.done = True
        state.registry, state.registry_sum = self._begun.size, self._begun.checksum
        if self._follow:
            state.seen, state.seen_sum = self._seen.size, self._seen.checksum
        state.files = len(self.files)
        state.open = {str(number): file.offset for number, file in self.open.items()}
        state.prints = {str(number): list(file.print) for number, file in self.open.items()}
        state.reached = {
            str(number): file.latest
            for number, file in self.open.items()
            if file.latest is not None
        }


def _restored(line: _Seen) -> Known:
    file = Known(line.path, line.inode, line.sealed, line.size, print=Print(*line.print))
    file.seen, file.noted = line.seen, file.print.span
    file.end = 1 if file.sealed else file.print.span  # there is something to be read
    return file


def is_sealed(kind: str, path: str) -> bool:
    """Whether such a file is complete once it can be read."""
    return kind in ("parquet", READER) or is_gzip(kind, path) or is_url(path)


def _begun(file: Known) -> dict[str, Any]:
    told = {"path": file.path, "inode": file.inode, "sealed": file.sealed, "first": file.first}
    return told if file.seen is None else {**told, "seen": file.seen}


def _number(file: Known) -> int:
    assert file.number is not None
    return file.number
