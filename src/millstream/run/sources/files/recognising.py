"""Which of the files on disk are known, after logs were rotated: renamed, copied, compressed.

A file is known by its inode if it still has the bytes that were seen of it. Its bytes alone decide
only if no file with its inode has them any more: it was copied and truncated, compressed, or moved
from elsewhere. Two files that are both there are never taken for one, however they begin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from millstream.errors import RunError
from millstream.io.prints import REACH, fits, lead_of, open_known, take_print
from millstream.io.readers import is_gzip
from millstream.run.sources.files.extents import Extents
from millstream.run.sources.files.listing import Inode, Seen, look, look_around
from millstream.run.sources.files.registry import Known, is_sealed


@dataclass
class Recognised:
    """What a look at the files shows."""

    here: dict[Known, Seen] = field(default_factory=dict)
    fresh: list[Seen] = field(default_factory=list)  # never seen before
    gone: list[Known] = field(default_factory=list)  # watched, and nowhere to be found
    copying: bool = False  # something is being copied: whether it is new will show
    missing: bool = False  # what the last look found was not found: another one says if it is gone


class Recogniser:
    """All files of a source that were ever begun, and those that wait."""

    COPYING = 2.0  # seconds after the last change of a copy within which its original is truncated

    def __init__(
        self, extents: Extents, files: Iterable[Known], moved: Callable[[Known], None]
    ) -> None:
        self.kind, self.follow, self._unpacked = extents.kind, extents.follow, extents.lengths
        self._is_ripe, self._moved = extents.is_ripe, moved
        self.by_inode: dict[Inode, Known] = {}
        self.by_path: dict[str, Known] = {}  # of parquet files, and of those without an inode
        self._heads: dict[tuple[int, int], list[Known]] = {}  # by beginnings they have or had
        self._lengths: set[int] = set()  # of these
        self._last: set[Known] | None = None  # what the last looks found; None before the first
        self._missed: set[Known] = set()  # of these what the last one did not
        self._twins: dict[Inode, tuple[int, int]] = {}  # copies that have nothing of their own
        self._copies: dict[Inode, tuple[tuple[int, int], Known]] = {}  # of what is still there
        self.rewritten: list[str] = []  # were read, written since, and look as they did
        for file in files:
            self.add(file)

    def add(self, file: Known) -> None:
        """Know a file from now on."""
        self._place(file)
        self._index(file)
        if self._last is not None:
            self._last.add(file)

    def _place(self, file: Known) -> None:
        if file.inode is None or self.kind == "parquet" or not self.follow:
            self.by_path[file.path] = file
        if file.inode is not None:
            self.by_inode[file.inode] = file

    def see(self, file: Known, seen: Seen, end: int) -> None:
        """Take the print of a file of which so much can be read.

        It may have been truncated and written to since it was recognised: then it is not the file
        whose print was taken before.
        """
        with open_known(file.path, seen.inode[1]) as stream:
            if not fits(stream, file.print):
                raise FileNotFoundError(file.path)
            print, lead = take_print(stream, seen.size if file.sealed else end)
        before, file.print, file.lead = file.print, print, lead
        if print.key != before.key:
            self._index(file)

    def _index(self, file: Known) -> None:
        if file.print.span:
            self._heads.setdefault(file.print.key, []).append(file)
            self._lengths.add(file.print.key[0])

    # -- one look -------------------------------------------------------------------------------

    def recognise(self, listed: list[Seen], watched: list[Known]) -> Recognised:
        """Bring what is known of files up to date with a listing."""
        found = Recognised()
        at = {seen.path: seen for seen in listed}
        rest = []
        for seen in listed:
            file = self.by_inode.get(seen.inode)
            if file is None and (named := self.by_path.get(seen.path)) and named.inode is None:
                file = named
            back = file is not None and self._was_gone(file)  # an inode may be given out again
            if file is None or (back and file.stamp != seen.stamp) or not self._is(file, seen):
                rest.append(seen)
                continue
            found.here[file] = seen
            named_so = at.get(file.path)
            if file.inode is None or named_so is None or named_so.inode != file.inode:
                self._move(file, seen)
        lost = [f for f in watched if f not in found.here and not self._found(f, found)]
        for seen in rest:
            try:
                self._judge(seen, found)
            except FileNotFoundError:
                found.copying = True  # it has just moved: the next look shows whether it is new
        try:
            self._hold_new_copies(found)
        except FileNotFoundError:
            found.fresh, found.copying = [], True
        found.fresh = [seen for seen in found.fresh if not _has_left(seen)]
        lost = [f for f in lost if f not in found.here and not self._elsewhere(f, found)]
        missed = self._miss(found.here)
        found.gone = [file for file in lost if file not in missed]
        found.missing = bool(missed)
        return found

    def _miss(self, here: dict[Known, Seen]) -> set[Known]:
        """Files that this look did not find and the one before did.

        A listing may miss what is renamed meanwhile, so only two in a row say that a file is gone.
        """
        last = self._last
        if last is None:
            last = {*self.by_inode.values(), *self.by_path.values()}
        self._missed = last - here.keys() - self._missed
        self._last = self._missed | here.keys()
        return self._missed

    def _was_gone(self, file: Known) -> bool:
        """Whether the last looks did not find it: what comes after it is not the same."""
        return self._last is not None and file not in self._last

    def _judge(self, seen: Seen, found: Recognised) -> None:
        """Whether a file nobody knows by its inode is a known one nevertheless."""
        if self._twins.get(seen.inode) == seen.stamp:
            return
        if not self._is_ripe(seen):
            if not seen.size:  # one that was read and has nothing any more
                self._refuse_changed(seen, found.here)
            return
        file = self._same_bytes(seen, found.here)
        if file is not None:
            found.here[file] = seen
        elif self._twin(seen, found.here) or self._was_copied(seen, found.here):
            self._twins[seen.inode] = seen.stamp
        elif self._being_copied(seen, found.here):
            found.copying = True
        else:
            if _has_left(seen):  # then other bytes were compared, or none
                raise FileNotFoundError(seen.path)
            self._refuse_changed(seen, found.here)
            found.fresh.append(seen)

    def _is(self, file: Known, seen: Seen) -> bool:
        """Whether the file with an inode is still the one that had it."""
        if file.stamp == seen.stamp:
            return True
        if file.done and file.sealed and file.stamp is None and not file.print.span:
            return True  # written down before prints were
        if is_gzip(self.kind, seen.path) and not file.sealed:  # compressed after it was read
            return self._unpacked.beyond(seen.path, file.print) is not None
        if seen.size < max(file.print.span, file.size if file.stamp else 0):
            return False
        if file.sealed and file.print.span and seen.size != file.print.span:
            return False
        if not self._fits(file, seen):
            return False
        self._note_rewritten(file, seen)
        return True

    def _note_rewritten(self, file: Known, seen: Seen) -> None:
        """It was read whole, and written since: what its print does not cover may differ."""
        size, changed = file.stamp or (0, -1)
        same = seen.path == file.path and seen.size == size > 2 * REACH
        if same and not self.follow and file.done and changed not in (-1, seen.stamp[1]):
            self.rewritten.append(seen.path)

    def _fits(self, file: Known, seen: Seen) -> bool:
        try:
            with open_known(seen.path, seen.inode[1]) as stream:
                if not fits(stream, file.print):
                    return False
                stream.seek(0)
                file.lead = stream.read(REACH)
                return True
        except FileNotFoundError:
            return False

    def _move(self, file: Known, seen: Seen) -> None:
        """A known file is now there."""
        if self.by_path.get(file.path) is file:
            del self.by_path[file.path]
        if file.inode is not None and self.by_inode.get(file.inode) is file:
            del self.by_inode[file.inode]
        file.path, file.inode = seen.path, seen.inode
        self._place(file)
        self._moved(file)

    # -- files that are not where they were -----------------------------------------------------

    def _found(self, file: Known, found: Recognised) -> bool:
        """Whether it is where it was, though not listed, or under another name beside that."""
        seen = look(file.path)
        if seen is not None and seen.inode == file.inode and self._is(file, seen):
            found.here[file] = seen
            return True
        for other in look_around(file.path):
            if other.inode == file.inode and self._is(file, other):
                self._move(file, other)
                found.here[file] = other
                return True
        return False

    def _elsewhere(self, file: Known, found: Recognised) -> bool:
        """Whether its bytes are in another file beside where it was, listed or not."""
        for seen in look_around(file.path):
            known = self.by_inode.get(seen.inode)
            if (known is None or known is file) and self._take_over(file, seen):
                found.fresh = [other for other in found.fresh if other.inode != seen.inode]
                found.here[file] = seen
                return True
        return False

    def _same_bytes(self, seen: Seen, here: dict[Known, Seen]) -> Known | None:
        """The known file that is nowhere else and that this one goes on.

        It must have gone since the last look: one that was removed before is not what comes after.
        """
        lead = lead_of(seen.path)
        absent = [
            file
            for file in self._beginning_like(lead, seen)
            if file not in here and not self._was_gone(file)
        ]
        for file in sorted(absent, key=lambda file: file.path != seen.path):
            if self._take_over(file, seen):
                return file
        return None

    def _beginning_like(self, lead: bytes, seen: Seen) -> list[Known]:
        leads = [lead]
        if is_sealed(self.kind, seen.path) and self._lengths:
            with open_known(seen.path, 0) as stream:
                leads.append(stream.read(REACH))  # as it is stored
        keys = {
            (length, crc32(one[:length]))
            for one in leads
            for length in self._lengths
            if length <= len(one)
        }
        return [f for key in keys for f in self._heads.get(key, ()) if f.print.key == key]

    def _take_over(self, file: Known, seen: Seen) -> bool:
        """Go on with a file in another one, if that has all that was seen of it."""
        if not file.print.span:
            return False
        if is_gzip(self.kind, seen.path) and not file.sealed:
            length = self._unpacked.beyond(seen.path, file.print)
            if length is None:
                return False
            file.end, file.stamp, file.size = length, seen.stamp, seen.size
        elif is_gzip(self.kind, seen.path) is not is_gzip(self.kind, file.path):
            return False
        else:
            whole = seen.size == file.print.span if file.sealed else seen.size >= file.print.span
            if not whole or not self._fits(file, seen):
                return False
            self._note_rewritten(file, seen)
            file.stamp = None
        self._move(file, seen)
        return True

    # -- files that are both there --------------------------------------------------------------

    def _twin(self, seen: Seen, here: dict[Known, Seen]) -> bool:
        """Whether it is what a known file will be once the original is removed: compressed."""
        if not is_gzip(self.kind, seen.path):
            return False
        near = self._beginning_like(lead_of(seen.path), seen)
        return any(
            self._unpacked.beyond(seen.path, file.print) is not None
            for file in near
            if not file.sealed and file in here
        )

    def _being_copied(self, seen: Seen, here: dict[Known, Seen]) -> bool:
        """Whether it has nothing but what another one has, which may be truncated next.

        One that was truncated or moved since it was listed is not compared: the next look will.
        """
        if not self.follow or is_sealed(self.kind, seen.path):
            return False
        lead = lead_of(seen.path)
        near = self._beginning_like(lead, seen)
        near += [f for f in here if f.lead and f.lead[: len(lead)] == lead[: len(f.lead)]]
        originals = [file for file in near if file in here and not file.sealed]
        if time.time() - seen.touched < self.COPYING:
            for file in originals:
                if _is_part(seen, file.path):
                    self._copies[seen.inode] = (seen.stamp, file)
                    return True
        return not all(self._fits(file, here[file]) for file in originals)

    def _hold_new_copies(self, found: Recognised) -> None:
        """Let a copy wait whose original is as new: it too may be truncated or removed next.

        Of two that are equal the copy is the one that was touched last, or is compressed.
        """
        if not self.follow or len(found.fresh) < 2:
            return
        since = time.time() - self.COPYING
        order = sorted(found.fresh, key=lambda seen: (-seen.size, seen.touched))
        originals: dict[bytes, list[Seen]] = {}
        copies: set[Inode] = set()
        for seen in order:
            if is_sealed(self.kind, seen.path):
                if is_gzip(self.kind, seen.path) and self._packs_any(seen, order):
                    copies.add(seen.inode)
                continue
            beginning = originals.setdefault(lead_of(seen.path), [])
            if seen.touched > since and any(_is_part(seen, other.path) for other in beginning):
                copies.add(seen.inode)
            else:
                beginning.append(seen)
        found.fresh = [seen for seen in found.fresh if seen.inode not in copies]
        found.copying = found.copying or bool(copies)

    def _packs_any(self, packed: Seen, files: list[Seen]) -> bool:
        """Whether a file is one of the others, compressed."""
        lead = lead_of(packed.path)
        for seen in files:
            if is_sealed(self.kind, seen.path) or not lead.startswith(lead_of(seen.path)):
                continue
            with open_known(seen.path, seen.inode[1]) as stream:
                print, _ = take_print(stream, seen.size)
            if self._unpacked.beyond(packed.path, print) is not None:
                return True
        return False

    def _was_copied(self, seen: Seen, here: dict[Known, Seen]) -> bool:
        """Whether it is a copy of a file that was truncated since, and read beyond the copy."""
        stamp, of = self._copies.get(seen.inode, (None, None))
        return of is not None and of not in here and stamp == seen.stamp and of.offset >= seen.size

    def _refuse_changed(self, seen: Seen, here: dict[Known, Seen]) -> None:
        """A file that does not grow was read, and is another one now under the same name."""
        before = self.by_path.get(seen.path) or self.by_inode.get(seen.inode)
        if before is None or before in here or before.path != seen.path:
            return
        if not self.follow and before.number is not None:
            raise RunError(
                f"{seen.path} was read before and is another file now: it was overwritten or "
                "replaced. New data needs a new name, so that what was read stays what it was; if "
                "it corrects what was read, put it all into a new checkpoint and output directory"
            )
        if not before.sealed:
            return
        if self.kind != "parquet" and before not in self._beginning_like(b"", seen):
            return  # a new file in the place of one that was removed
        if before.number is not None:
            raise RunError(f"{seen.path} has changed since it was read; give new data a new name")


class ByName(Recogniser):
    """The same of objects in a store: each is what it is called, and stays what it is."""

    def recognise(self, listed: list[Seen], watched: list[Known]) -> Recognised:
        found = Recognised()
        for seen in listed:
            file = self.by_inode.get(seen.inode)
            if file is None:
                found.fresh += [seen] if self._is_ripe(seen) else []
            elif file.number is None or file.stamp in (None, seen.stamp) or self._same(file, seen):
                found.here[file] = seen
            else:
                raise RunError(
                    f"{seen.path} has changed since it was read; give new data a new name"
                )
        found.gone = [file for file in watched if file not in found.here]
        return found

    def _same(self, file: Known, seen: Seen) -> bool:
        """Whether it was written again with what it had."""
        return seen.size == file.size and bool(file.print.span) and self._fits(file, seen)


def _has_left(seen: Seen) -> bool:
    """Whether a file is no longer where it was listed, or has lost bytes since."""
    there = look(seen.path)
    return there is None or there.inode != seen.inode or there.size < seen.size


def _is_part(copy: Seen, of: str) -> bool:
    """Whether a file has just the bytes another one begins with."""
    there = look(of)
    if there is None or there.size < copy.size or there.inode == copy.inode:
        return False
    try:
        with open_known(copy.path, copy.inode[1]) as stream:
            print, _ = take_print(stream, copy.size)
        with open_known(of, there.inode[1]) as stream:
            return fits(stream, print)
    except FileNotFoundError:
        return False
