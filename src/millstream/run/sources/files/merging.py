"""What to read next: how much of which file, so that all come equally far in time.

Three logs of three hosts are so read side by side, and files that follow each other in time one
after the other, each begun when it is its turn by its first record. Results never depend on it; how
much state there is does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from millstream.errors import RunError
from millstream.io.formats import READER
from millstream.io.readers import Split, is_gzip, plan_splits
from millstream.ops.times.progress import END
from millstream.run.sources.files.extents import Extents
from millstream.run.sources.files.listing import Seen, by_age, look
from millstream.run.sources.files.registry import Known
from millstream.run.sources.quiet import how_far

_FIRST_SHARE = 8  # so small a part of a batch goes to a file while nobody's pace is known
_LEAST_PACKED = 2 * 1024 * 1024  # a smaller piece is not worth inflating a file again
_LEAST_PACE = 1e-3  # microseconds a byte or row: files that stand still in time are read as well
_STEPS = 64
_AHEAD = 64  # waiting files looked at first; twice as many if all of them are to be begun
_TOGETHER = 8  # compressed files whose lengths are found together


class Turns:
    """The files of a source of which nothing was read, and how much to read of all."""

    def __init__(self, files: list[Known], extents: Extents, *, timed: bool, merged: bool) -> None:
        self.files = files  # that wait, in the order in which they will be begun
        self.size = 0  # what there is in them
        self.timed = timed  # first records have times, and their order is that of these
        self.merged = merged  # all files come equally far in time, else one follows the other
        self.pace: float | None = None  # microseconds of event time per byte (row)
        self._extents = extents

    def add(self, new: list[Known]) -> None:
        """Let new files wait for their turn; the order of the others may be another by now."""
        self.files = sorted([*self.files, *new], key=self._turn)

    def _turn(self, file: Known) -> tuple[int, tuple[Any, ...]]:
        name = by_age(file.path) if self._extents.follow else (file.path,)
        if self.timed:
            return (END if file.first is None else file.first), name
        return (file.stamp or (0, 0))[1], name  # followed: as they were written

    def measure(self) -> None:
        """Files may have grown."""
        self.size = sum(file.end for file in self.files)

    def first(self, count: int, budget: int) -> list[Known]:
        """The first files that wait; of compressed ones no more than are needed are looked into."""
        packed = self._extents.is_packed
        if self._extents.follow or not any(packed(file.path) for file in self.files[:count]):
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
        self._extents.lengths.find([*seen.values()])
        for file in files:
            length = self._extents.unpacked(seen[file])
            self.size += length - file.end
            file.end = length

    def choose(
        self, going: list[Known], budget: int, rows: int, row_bytes: float, most: int | None
    ) -> Iterator[tuple[Known, int]]:
        """What to read of which files; those that are begun meanwhile no longer wait.

        budget: bytes (rows of parquet files); rows: for what is compressed; most: so many files.
        """
        count = _AHEAD
        while True:
            waiting = self.first(count, budget)
            files = [*going, *waiting]
            much = self._amounts(files, budget, rows, row_bytes)
            if len(waiting) < count or not much[-1]:
                break  # files that wait are in order: those after one that has no turn have none
            count *= 2
        chosen = [(file, amount) for file, amount in zip(files, much, strict=True) if amount]
        if self.merged:
            chosen.sort(key=lambda one: how_far(one[0]))
        if most is not None and most < len(chosen):  # these alone share what a batch may take
            files = [file for file, _ in chosen[:most]]
            chosen = list(zip(files, self._amounts(files, budget, rows, row_bytes), strict=True))
        yield from ((file, amount) for file, amount in chosen if amount)
        self.files[:count] = [file for file in self.files[:count] if file.number is None]

    def _amounts(self, files: list[Known], budget: int, free: float, row_bytes: float) -> list[int]:
        """How much to read of each file."""
        found = self._by_size(files, budget)
        packed = [self._extents.is_packed(file.path) for file in files]
        if not any(packed):
            return found
        order = [*range(len(files))]
        if self.merged:
            order.sort(key=lambda i: how_far(files[i]))
        for i in order:
            file, wanted = files[i], found[i]
            if wanted and free >= 1:
                row, left = row_bytes, file.end - file.offset
                if packed[i]:
                    row = self._extents.lengths.row(file.inode, row)
                    wanted = min(left, max(wanted, _LEAST_PACKED))
                found[i] = min(wanted, max(1, int(free * row)))
                free = 0 if found[i] < left and not self.merged else free - found[i] / row
            else:
                found[i] = 0
        return found

    def _by_size(self, files: list[Known], budget: int) -> list[int]:
        if not self.merged:
            return self._in_turn(files, budget, budget)
        if self.pace is None or self._extents.kind == READER:
            order = sorted(files, key=how_far)
            most = budget if len(files) == 1 else max(1, budget // _FIRST_SHARE)
            turns = dict(zip(order, self._in_turn(order, budget, most), strict=True))
            return [turns[file] for file in files]
        paces = [self.pace if file.pace is None else file.pace for file in files]
        left = [file.end - file.offset for file in files]
        return share([how_far(file) for file in files], left, paces, budget)

    def _in_turn(self, files: list[Known], budget: int, most: int) -> list[int]:
        """One file after the other, none begun before the one before it is read to its end.

        At most so much of each; but what a function of the user reads is read in one piece.
        """
        found, ended = [], True
        for file in files:
            left = file.end - file.offset
            much = left if self._extents.kind == READER else min(left, budget, most)
            found.append(much if ended and budget > 0 else 0)
            ended = ended and found[-1] == left
            budget -= found[-1]
        return found


def as_listed(file: Known) -> Seen:
    """A file that was not begun yet, which is still what it was."""
    seen = look(file.path)
    if seen is None or seen.inode != file.inode or seen.size < file.size:
        raise RunError(f"{file.path} was removed or replaced before it was read")
    return seen


def share(
    reached: Sequence[int], left: Sequence[float], pace: Sequence[float], budget: float
) -> list[int]:
    """What to read of each file: all up to the latest time for which the budget is enough.

    `reached`: how far each is; `left`: what there is of it; `pace`: time that a byte (row) covers.
    """
    there = np.asarray(left, np.float64)
    if there.sum() <= budget:
        return [int(one) for one in there]
    at = np.asarray([when - min(reached) for when in reached], np.float64)
    rate = np.maximum(np.asarray(pace, np.float64), _LEAST_PACE)
    low, high = 0.0, float((at + there * rate).max())
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if np.minimum(there, np.maximum(0.0, middle - at) / rate).sum() <= budget:
            low = middle
        else:
            high = middle
    found = np.minimum(there, np.maximum(0.0, low - at) / rate).astype(np.int64)
    if not found.any():
        first = int(at.argmin())
        found[first] = max(1, int(min(there[first], budget)))
    return [int(one) for one in found]


def pieces_of(
    file: Known, source: int, number: int, kind: str, end: int, piece: int
) -> list[Split]:
    """A file from where it was read up to `end`, for several tasks where that pays."""
    path, start = file.path, file.offset
    inode = 0 if file.inode is None or kind == "parquet" else file.inode[1]
    if is_gzip(kind, path):  # one task inflates it
        piece = end - start
    elif kind not in ("parquet", READER) and end < file.end:
        # The budget ends inside a line: go on to its end.
        most = end - start
        end = plan_splits(kind, source, number, path, start, file.end, most, inode)[0].end
    return plan_splits(kind, source, number, path, start, end, piece, inode)
