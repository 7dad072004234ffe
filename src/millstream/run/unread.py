"""Files that wait to be begun, in the order of their first records."""

from __future__ import annotations

from typing import Any

from millstream.errors import RunError
from millstream.ops.progress import END
from millstream.run.extents import Extents, Lengths
from millstream.run.listing import Seen, by_age, look
from millstream.run.registry import Known

_TOGETHER = 8  # compressed files whose lengths are found together


class Unread:
    """The files of a source of which nothing was read."""

    def __init__(
        self, files: list[Known], extents: Extents, lengths: Lengths, *, follow: bool, timed: bool
    ) -> None:
        self.files = files  # in the order in which they will be begun
        self.size = 0  # what there is in them
        self._extents, self._lengths = extents, lengths
        self.timed = timed  # first records have times, and their order is that of these
        self._follow = follow

    def add(self, new: list[Known]) -> None:
        """Let new files wait for their turn; the order of the others may be another by now."""
        self.files = sorted([*self.files, *new], key=self._turn)

    def _turn(self, file: Known) -> tuple[int, tuple[Any, ...]]:
        name = by_age(file.path) if self._follow else (file.path,)
        if self.timed:
            return (END if file.first is None else file.first), name
        return (file.stamp or (0, 0))[1], name  # followed: as they were written

    def measure(self) -> None:
        """Files may have grown."""
        self.size = sum(file.end for file in self.files)

    def first(self, count: int, budget: int) -> list[Known]:
        """The first files that wait; of compressed ones no more than are needed are looked into."""
        packed = self._extents.is_packed
        if self._follow or not any(packed(file.path) for file in self.files[:count]):
            return self.files[:count]
        at = there = 0
        while at < min(count, len(self.files)) and there <= budget:
            group = self.files[at : min(count, at + _TOGETHER)]
            self._unpack([file for file in group if packed(file.path)])
            for file in [file for file in group if not file.end]:  # it stands for nothing
                group.remove(file)
                self.files.remove(file)
                file.done = True
            there += sum(file.end for file in group)
            at += len(group)
        return self.files[: min(at, count)]

    def _unpack(self, files: list[Known]) -> None:
        """Find the lengths of compressed files that are about to be begun."""
        seen = {file: as_listed(file) for file in files}
        self._lengths.find([*seen.values()])
        for file in files:
            length = self._extents.unpacked(seen[file])
            self.size += length - file.end
            file.end = length

    def without_begun(self, count: int) -> None:
        """Some of the first files may be begun by now."""
        self.files[:count] = [file for file in self.files[:count] if file.number is None]


def as_listed(file: Known) -> Seen:
    """A file that was not begun yet, which is still what it was."""
    seen = look(file.path)
    if seen is None or seen.inode != file.inode or seen.size < file.size:
        raise RunError(f"{file.path} was removed or replaced before it was read")
    return seen
