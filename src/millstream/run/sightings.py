"""Followed files that were seen, written down before anything of them is read.

The registry begins with a file's first record, and counts up to the last commit only. Between two
looks a log may be rotated to where nobody looks for it, and the flow be killed: so what a look
finds is durable at once, and a start looks for all that was seen and not begun. A line is a file as
it was seen first, or again when it has doubled, so that it is known by more than its first line.
"""

from __future__ import annotations

import zlib

import msgspec

from millstream.errors import ASK_DOCTOR, CheckpointError
from millstream.io.prints import Print
from millstream.run.registry import Known
from millstream.state.manifests import SourceState, check_sightings
from millstream.state.storage import Storage
from millstream.state.values import Count, FilePath, Identity


class _Line(msgspec.Struct):
    seen: Count  # its number among all that were seen
    path: FilePath
    inode: tuple[Identity, Identity]
    sealed: bool
    size: Count
    print: tuple[Count, Count, Count]


_line = msgspec.json.Decoder(_Line)


class Sightings:
    """All files of one source that were ever seen, in the order in which they were."""

    def __init__(self, sources: Storage, name: str, state: SourceState) -> None:
        self.sources, self.name = sources, name
        self._lines: list[_Line] = []  # not yet written
        self._known: dict[int, _Line] = {}
        data = check_sightings(sources, name, state)
        self.size = self._read(data, state.seen)
        self.checksum = zlib.crc32(data[: self.size])
        self._next = max(self._known, default=-1) + 1

    def _read(self, data: bytes, sure: int) -> int:
        """Take lines in; gives how long the good part is, beyond what a commit stands for."""
        size = 0
        for text in data.splitlines(keepends=True):
            try:
                line = _line.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                if size < sure:
                    raise CheckpointError(
                        f"{self.sources.where(self.name)} is damaged: what it says of files makes "
                        f"no sense ({error}){ASK_DOCTOR}"
                    ) from None
                break  # a kill in the middle of writing: nothing was done about it yet
            if not text.endswith(b"\n"):
                break
            self._known[line.seen] = line
            size += len(text)
        return size

    def waiting(self, begun: list[Known]) -> list[Known]:
        """Those of which nothing was read."""
        numbers = {file.seen for file in begun}
        known, self._known = self._known, {}
        return [_restored(line) for number, line in known.items() if number not in numbers]

    def note(self, file: Known) -> None:
        """Remember a file that waits, unless it is remembered well enough."""
        span = file.print.span
        if file.inode is None or not span or (file.seen is not None and span < 2 * file.noted):
            return
        if file.seen is None:
            file.seen, self._next = self._next, self._next + 1
        file.noted = span
        line = _Line(file.seen, file.path, file.inode, file.sealed, file.size, file.print)
        self._lines.append(line)

    def write(self) -> None:
        """Make all that was noted durable; what fails is tried again next time."""
        if not self._lines:
            return
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in self._lines)
        self.sources.append(self.name, self.size, data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)
        self._lines = []

    def save(self, state: SourceState) -> None:
        """How much of it a commit stands for."""
        state.seen, state.seen_sum = self.size, self.checksum


def _restored(line: _Line) -> Known:
    file = Known(line.path, line.inode, line.sealed, line.size, print=Print(*line.print))
    file.seen, file.noted = line.seen, file.print.span
    file.end = 1 if file.sealed else file.print.span  # there is something to be read
    return file
