"""How long compressed files are, for the driver: found in tasks, and remembered."""

from __future__ import annotations

import math
from functools import partial
from zlib import crc32

from millstream.io.prints import Print, lead_of, unzipped
from millstream.io.unpacking import Measure, measure
from millstream.run.listing import Inode, Seen
from millstream.run.tracking import Probe, directly


class Lengths:
    """What compressed files stand for; the driver itself inflates no more than a beginning.

    most: about so many bytes of each are enough to know of.
    """

    def __init__(self, most: float = math.inf) -> None:
        self.probe: Probe = directly
        self.most = most
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
