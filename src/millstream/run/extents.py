"""How far files can be read: to their end, to the last whole line, or not yet at all."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from zlib import crc32

from millstream.errors import RunError
from millstream.io.formats import READER, Format
from millstream.io.prints import Print, lead_of, unzipped
from millstream.io.readers import available_end, is_gzip, last_line_end
from millstream.io.unpacking import Measure, measure
from millstream.run.listing import Inode, Seen
from millstream.run.quiet import Stamp
from millstream.run.registry import Known, is_sealed
from millstream.run.tracking import Probe, directly


class Lengths:
    """What compressed files stand for, found in tasks and remembered.

    The driver itself inflates no more than a beginning.
    """

    def __init__(self) -> None:
        self.probe: Probe = directly
        self.most = math.inf  # about so many bytes of each are enough to know of
        self._found: dict[Inode, tuple[tuple[int, int], Measure | str]] = {}

    def find(self, files: list[Seen]) -> None:
        """Find out about several files at once."""
        new = [seen for seen in files if self._found.get(seen.inode, ())[:1] != (seen.stamp,)]
        if new:
            measures = self.probe(partial(measure, most=self.most), [seen.path for seen in new])
            for seen, much in zip(new, measures, strict=True):
                self._found[seen.inode] = (seen.stamp, much)

    def of(self, seen: Seen) -> int | str:
        """How many bytes a file stands for; or why it is not intact."""
        self.find([seen])
        found = self._found[seen.inode][1]
        return found if isinstance(found, str) else found.length

    @property
    def cut(self) -> bool:
        """Whether some file has more than was asked for."""
        found = (much for _, much in self._found.values() if not isinstance(much, str))
        return any(much.length >= self.most for much in found)

    def row(self, inode: Inode | None, usual: float) -> float:
        """How many bytes a line of a file has where lines are shortest."""
        found = self._found[inode][1] if inode in self._found else ""
        return usual if isinstance(found, str) else found.row

    def beyond(self, path: str, known: Print) -> int | None:
        """How many, if they begin with those of a print; None if not."""
        length, head = known.key
        lead = lead_of(path)[:length]
        if len(lead) < length or crc32(lead) != head:
            return None
        return self.probe(partial(unzipped, known), [path])[0]


class Extents:
    """What there is to read of the files of a source; a followed one may still be written."""

    def __init__(self, fmt: Format, follow: bool, lengths: Lengths) -> None:
        self._fmt, self._follow, self._lengths = fmt, follow, lengths
        self.unripe: dict[Inode, Stamp] = {}  # listed, and without a whole line

    @property
    def unit(self) -> str:
        """What files are read by."""
        return "row" if self._fmt.cut == "parquet" else "byte"

    def is_packed(self, path: str) -> bool:
        """Whether a file must be inflated to be read."""
        return is_gzip(self._fmt.cut, path)

    def forget(self, there: Collection[Inode]) -> None:
        """Of files that have nothing to read only these are still there."""
        self.unripe = {inode: at for inode, at in self.unripe.items() if inode in there}

    def is_ripe(self, seen: Seen) -> bool:
        """Whether a new file has anything to read yet."""
        if not self._follow:
            return seen.size > 0
        if self.unripe.get(seen.inode) == seen.stamp:
            return False
        if seen.size and self.of(seen):
            self.unripe.pop(seen.inode, None)
            return True
        self.unripe[seen.inode] = seen.stamp
        return False

    def is_wanted(self, seen: Seen, file: Known | None) -> bool:
        """Whether a listed file is compressed, and its length will be asked for."""
        if not seen.size or not seen.path.endswith(".gz") or self._fmt.cut == "parquet":
            return False
        if file is None:
            return self._follow  # else when it is its turn
        return file.stamp != seen.stamp and not file.done

    def unpacked(self, seen: Seen) -> int:
        """How much a compressed file stands for; one that is not whole may still be copied."""
        length = self._lengths.of(seen)
        if isinstance(length, int):
            return length
        if self._follow:
            return 0
        raise RunError(
            f"cannot read {seen.path}: {length}. Nothing more of it was read: replace it by an "
            "intact one, or remove it"
        )

    def of(self, seen: Seen) -> int:
        """How far a file can be read: to its end, or to its last whole line."""
        if self.is_packed(seen.path):
            return self.unpacked(seen)
        if self._fmt.cut == READER and self._follow and seen.path.endswith(".gz"):
            return seen.size if self.unpacked(seen) else 0
        if not self._follow and self._fmt.cut != "parquet":
            return seen.size
        try:
            if is_sealed(self._fmt.cut, seen.path):
                complete = self._fmt.cut == READER or not self._follow
                return available_end(seen.path, self._fmt.cut, complete)
            return last_line_end(seen.path, seen.size, seen.inode[1])
        except (RunError, OSError) as error:
            if self._follow and has_moved(error):
                return 0  # the next look finds it where it is by then
            raise RunError(f"cannot read {seen.path}: {error}") from error


def has_moved(error: Exception) -> bool:
    """Whether a file was renamed or removed between a look at it and its reading."""
    return isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
