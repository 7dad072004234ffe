"""How far files can be read: to their end, to the last whole line, or not yet at all."""

from __future__ import annotations

from collections.abc import Collection

from millstream.errors import RunError
from millstream.io.formats import READER, Format
from millstream.io.readers import available_end, is_gzip, last_line_end
from millstream.run.lengths import Lengths
from millstream.run.listing import Inode, Seen
from millstream.run.quiet import Stamp
from millstream.run.registry import Known, is_sealed


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
