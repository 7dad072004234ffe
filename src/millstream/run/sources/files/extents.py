"""How far files can be read: to their end, to the last whole line, or not yet at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from zlib import crc32

from millstream.errors import RunError
from millstream.io.formats import READER, Format
from millstream.io.prints import Print, lead_of, unzipped
from millstream.io.readers import available_end, is_gzip, last_line_end
from millstream.io.unpacking import Measure, measure
from millstream.run.sources.files.listing import Inode, Seen
from millstream.run.sources.files.registry import Known, is_sealed
from millstream.run.sources.quiet import Stamp
from millstream.run.sources.tracking import Probe, directly


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
    """What there is to read of the files of a source; followed ones may grow, others may not."""

    def __init__(self, fmt: Format, follow: bool) -> None:
        self.kind, self.follow, self.lengths = fmt.cut, follow, Lengths()
        self.unripe: dict[Inode, Stamp] = {}  # listed, and without a whole line

    def is_packed(self, path: str) -> bool:
        """Whether a file must be inflated to be read."""
        return is_gzip(self.kind, path)

    def forget(self, there: Collection[Inode]) -> None:
        """Of files that have nothing to read only these are still there."""
        self.unripe = {inode: at for inode, at in self.unripe.items() if inode in there}

    def is_ripe(self, seen: Seen) -> bool:
        """Whether a new file has anything to read yet."""
        if not self.follow:
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
        if not seen.size or not seen.path.endswith(".gz") or self.kind == "parquet":
            return False
        if file is None:
            return self.follow  # else when it is its turn
        return file.stamp != seen.stamp and not file.done

    def unpacked(self, seen: Seen) -> int:
        """How much a compressed file stands for; one that is not whole may still be copied."""
        length = self.lengths.of(seen)
        if isinstance(length, int):
            return length
        if self.follow:
            return 0
        raise RunError(
            f"cannot read {seen.path}: {length}. Nothing more of it was read: replace it by an "
            "intact one, or remove it"
        )

    def of(self, seen: Seen) -> int:
        """How far a file can be read: to its end, or to its last whole line."""
        if self.is_packed(seen.path):
            return self.unpacked(seen)
        if self.kind == READER and self.follow and seen.path.endswith(".gz"):
            return seen.size if self.unpacked(seen) else 0
        if not self.follow and self.kind != "parquet":
            return seen.size
        try:
            if is_sealed(self.kind, seen.path):
                complete = self.kind == READER or not self.follow
                return available_end(seen.path, self.kind, complete)
            return last_line_end(seen.path, seen.size, seen.inode[1])
        except (RunError, OSError) as error:
            if self.follow and has_moved(error):
                return 0  # the next look finds it where it is by then
            raise RunError(f"cannot read {seen.path}: {error}") from error

    # -- files that are known -------------------------------------------------------------------

    def measure(self, file: Known, seen: Seen, see: Callable[[Known, Seen, int], None]) -> bool:
        """Note how far a known file can be read now; False if it was not there any more.

        see: takes the print of what can be read.
        """
        if file.done and not self.follow:
            self._refuse_grown(file, seen)
        if file.stamp == seen.stamp or (file.done and not self.follow):
            return True
        # A compressed file that was read to its end does not grow, and its offset may be one of
        # an earlier version, which counted compressed bytes.
        read = file.done and file.sealed and self.is_packed(seen.path)
        end = file.offset if read else self.of(seen)
        compressed = self.is_packed(seen.path) and not file.sealed  # since it was begun
        if (end > file.end or not file.print.span) and not compressed:
            try:
                see(file, seen, end)
            except FileNotFoundError:
                return False  # it was just renamed or removed: the next look finds out
        if end >= file.offset:
            file.end, file.size, file.stamp = end, seen.size, seen.stamp
        elif file.sealed:
            raise RunError(
                f"{file.path} has {end} {self._unit}s, and {file.offset} of them were read: it was "
                "replaced, or the checkpoint was. Put it back, or start with a new checkpoint"
            )
        return True

    def _refuse_grown(self, file: Known, seen: Seen) -> None:
        """A file that was read to its end has more by now: neither reading it nor not is right."""
        plain = file.stamp is not None and file.stamp[1] >= 0 and not file.sealed
        if plain and seen.size > file.size and not self.is_packed(seen.path):
            raise RunError(
                f"{file.path} was read to its end at byte {file.size} by an earlier run, and has "
                f"{seen.size} bytes now: files that grow are read with follow=True; else put what "
                "is new into a file of its own"
            )

    def give_up(self, file: Known) -> None:
        """A file is nowhere to be found."""
        if file.offset < file.end or not self.follow:
            known = f"read to {self._unit} {file.offset}, had more"
            if file.number is None:
                known = "seen, nothing of it was read yet"
            raise RunError(
                f"{file.path} was {known}, and is not there any more: it was removed, truncated or "
                "replaced, and neither it nor a copy of it was found beside it. What the rest of "
                "it was cannot be known: put it back, or start with a new checkpoint"
            )
        file.done = True

    @property
    def _unit(self) -> str:
        """What files are read by."""
        return "row" if self.kind == "parquet" else "byte"


def has_moved(error: Exception) -> bool:
    """Whether a file was renamed or removed between a look at it and its reading."""
    return isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
