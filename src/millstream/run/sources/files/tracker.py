"""Files as a source, in the driver: which there are, how far they were read, what to read next.

Files that were begun have a number and stand in the registry; the manifest holds those of them that
go on. Files that wait are in the order in which they will be begun; that a followed one was seen is
durable too. Every file is a participant: until it has been read to its end it holds the watermark
where it is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.api.sources import Files
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.io.firsts import Peek, first_times
from millstream.io.formats import Format
from millstream.io.prints import NOTHING
from millstream.io.readers import Split, available_end
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.times.progress import Horizon
from millstream.run.sources.files.extents import Extents, has_moved
from millstream.run.sources.files.horizons import Horizons, Taken
from millstream.run.sources.files.listing import Seen, list_seen
from millstream.run.sources.files.merging import Turns, as_listed, pieces_of
from millstream.run.sources.files.population import File
from millstream.run.sources.files.recognising import ByName, Recognised, Recogniser
from millstream.run.sources.files.registry import Known, Registry, is_sealed
from millstream.run.sources.spreading import rows_of
from millstream.run.sources.tracking import Probe, Tracker, directly
from millstream.run.tasks.splits import AnySplit
from millstream.state.locations import is_url
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_GUESSED = 1.25  # times as many rows as were guessed, up to which a file is read at once
_STORED_ROW = 16.0  # the same for what a row of a parquet file takes
_LEAST_ROWS = 1_000  # a piece with fewer is not worth a task of its own
_BETWEEN = 4  # looks: so many times as long as one took, a fifth of the time at most


def _wall() -> int:
    return int(time.time() * 1e6)


class OfFiles(Tracker):
    """What a source of files says of pieces, however it chooses them."""

    fmt: Format
    files: Sequence[Known | File]  # by their numbers
    row_bytes = 64.0  # assumed until rows have been seen
    _much = 0  # that the last batch takes: bytes, or rows of parquet files

    def weigh(self, split: AnySplit) -> float:
        """About how many rows a piece has."""
        if isinstance(split, Split) and split.end < 0:  # a function of the user reads it whole
            return self.files[split.file].size / self.row_bytes
        return rows_of(split) / (1.0 if self.fmt.cut == "parquet" else self.row_bytes)

    def learn(self, rows: int, size: int = 0) -> None:
        """How many bytes a row has, from what the last batch read."""
        if rows and self._much and self.fmt.cut != "parquet":
            self.row_bytes = max(1.0, self._much / rows)

    def name_of(self, file: int) -> str:
        """Its path."""
        return self.files[file].path

    def place(self, position: int) -> dict[str, Any]:
        """Its file, and where in it."""
        number, offset = position >> OFFSET_BITS, position & ((1 << OFFSET_BITS) - 1)
        if number < len(self.files):
            return {"file": self.files[number].path, "offset": offset}
        return {"offset": position}


class FilesTracker(OfFiles):
    """Files by what they are and how far they were read."""

    files: list[Known]

    def __init__(
        self,
        number: int,
        spec: Files,
        fmt: Format,
        sources: Storage,
        stem: str,
        state: SourceState,
        listing: Callable[[], list[Seen]] | None = None,
    ) -> None:
        self._list = listing or partial(list_seen, spec)
        self.number, self.spec, self.fmt = number, spec, fmt
        self.ended = False
        self.trusted = _wall  # the clock that times are measured by
        self._registry = Registry(sources, stem, state, fmt.cut, spec.follow)
        self.files, self.open = self._registry.files, self._registry.open
        self._extents = Extents(fmt, spec.follow)
        self._lengths = self._extents.lengths
        waiting = self._registry.waiting
        timed = spec.time is not None and spec.lateness_micros() is not None
        merged = timed and spec.participant is None
        self.unread = Turns(waiting, self._extents, timed=timed, merged=merged)
        known = sorted([*self.files, *waiting], key=_when_seen) if spec.follow else self.files
        self._known = (ByName if is_url(spec.path) else Recogniser)(
            self._extents, known, self._registry.moved
        )
        self.horizons = Horizons(spec, fmt.cut, self._registry, self.unread, self._extents)
        self._taken: Taken = {}  # by the next batch
        self._stored_row = _STORED_ROW
        self._copying = False
        self._listed = False
        self._next_look = 0.0

    # -- looking --------------------------------------------------------------------------------

    def poll(self, probe: Probe = directly) -> None:
        """Look for new, grown and rotated files."""
        self._lengths.probe = probe
        began = time.monotonic()
        if (not self.spec.follow and self._listed) or began < self._next_look:
            return
        listed, found = self._look()
        if found.missing:
            listed, found = self._look()
        self._tell_of_rewritten()
        self._extents.forget({seen.inode for seen in listed})
        self._copying = found.copying or found.missing
        for file in found.gone:
            self._extents.give_up(file)
            if file.number is None:
                self.unread.files.remove(file)
        again = [file for file, seen in found.here.items() if self._measure(file, seen)]
        looked = time.monotonic() - began  # without the first times, which a cold Spark may take
        self._welcome(found.fresh, again, probe)
        self._registry.write()
        self.unread.measure()
        self._listed = True
        if not self.spec.follow:
            self.ended = self.pending() == 0
        self._next_look = time.monotonic() + _BETWEEN * looked  # very many files take a while

    def _look(self) -> tuple[list[Seen], Recognised]:
        """What is listed, and what of that is known."""
        try:
            listed = self._list()
        except ConfigError as error:
            if not self.files and not self.unread.files:
                raise
            raise RunError(str(error)) from None
        known, wanted = self._known.by_inode, self._extents.is_wanted
        self._lengths.find([seen for seen in listed if wanted(seen, known.get(seen.inode))])
        watched = [*(f for f in self.open.values() if not f.done), *self.unread.files]
        return listed, self._known.recognise(listed, watched)

    def _tell_of_rewritten(self) -> None:
        """Files that were written to since they were read, as far as a look can tell in vain."""
        found, self._known.rewritten = self._known.rewritten, []
        if found:
            others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            warnings.warn(
                f"{found[0]}{others} was written since it was read, and has its size, its "
                "beginning and its end still: it is not read again. If something in between was "
                "corrected, put all input into a new checkpoint and output directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def _measure(self, file: Known, seen: Seen) -> bool:
        """Note how far a known file can be read now; True if its first time is to be found."""
        if not self._extents.measure(file, seen, self._known.see):
            return False
        self._registry.note(file)
        if file.number is None:
            return file.first is None
        if file.end > file.offset:
            file.done = False
            self.open[file.number] = file
        return False

    def _welcome(self, fresh: list[Seen], again: list[Known], probe: Probe) -> None:
        """Let new files wait for their turn, in the order of their first records."""
        once = {seen.inode: seen for seen in reversed(fresh)}  # one file may have several names
        new = [self._new(seen) for seen in once.values()]
        unknown = sorted([*new, *again], key=lambda file: file.path)
        if not unknown:
            return
        if self.unread.timed:
            limit = self.trusted() + micros(self.spec.max_future_skew, "skew", zero=True)
            find = partial(first_times, Peek(self.fmt, limit, self.spec.follow))
            times = probe(find, [file.path for file in unknown])
            for file, first in zip(unknown, times, strict=True):
                file.first = first
        self.unread.add(new)

    def _new(self, seen: Seen) -> Known:
        file = Known(seen.path, seen.inode, is_sealed(self.fmt.cut, seen.path), seen.size)
        self._known.add(file)
        if self.spec.follow:
            self._measure(file, seen)
        elif self.fmt.cut == "parquet":  # how many rows it has is found when it is begun
            file.end = max(1, int(seen.size / self._stored_row))
        else:
            file.end = seen.size
        return file

    # -- reading --------------------------------------------------------------------------------

    def pending(self) -> int:
        """Bytes (for parquet rows, times the bytes of a row) not yet taken."""
        scale = self.row_bytes if self.fmt.cut == "parquet" else 1
        begun = sum(file.end - file.offset for file in self.open.values())
        return int((begun + self.unread.size) * scale)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces of at most so many rows and bytes."""
        parquet = self.fmt.cut == "parquet"
        budget = rows if parquet else int(min(size, rows * self.row_bytes))
        least = int(_LEAST_ROWS * (1.0 if parquet else self.row_bytes))
        there = int(self.pending() / (self.row_bytes if parquet else 1))
        piece = max(1, least, min(budget, there) // parts)
        self._taken = {}
        splits: list[Split] = []
        going = [file for _, file in sorted(self.open.items()) if file.end > file.offset]
        most = self.spec.max_files_per_batch
        for file, much in self.unread.choose(going, budget, rows, self.row_bytes, most):
            splits.extend(self._read(file, much, piece))
        self._much = sum(much for much, _ in self._taken.values())
        if not self.spec.follow:
            self.ended = self._listed and self.pending() == 0
        return [*sorted(splits, key=lambda split: (split.file, split.start))]

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """The same without learning from it how far times have come, or how large rows are."""
        taken, much = self._taken, self._much
        rows = size // max(1, int(self.row_bytes)) if self.fmt.cut == "parquet" else size
        splits = self.take(rows, size, parts)
        self._taken, self._much = taken, much
        return splits

    def _read(self, file: Known, much: int, piece: int) -> list[Split]:
        """Pieces of one file, which is then read so far."""
        if file.number is None:
            whole = much >= file.end  # of a file whose rows were only guessed
            self._begin(file)
            if whole and file.end <= much * _GUESSED:
                much = file.end
        assert file.number is not None
        try:
            end = min(file.end, file.offset + much)
            cut = pieces_of(file, self.number, file.number, self.fmt.cut, end, piece)
        except RunError as error:
            if self.spec.follow and has_moved(error):
                return []  # the next look finds out where it is
            raise
        reached = cut[-1].end if cut and cut[-1].end >= 0 else file.end
        self._taken[file.number] = (reached - file.offset, file.reached)
        file.offset = reached
        rotates = self.spec.follow and not is_sealed(self.fmt.cut, file.path)
        seen = file.print if rotates else NOTHING
        return [replace(one, after=file.latest, seen=seen) for one in cut]

    def _begin(self, file: Known) -> None:
        self.unread.size -= file.end
        if not self.spec.follow:
            seen, extents = as_listed(file), self._extents
            if extents.is_packed(file.path) and extents.unpacked(seen) != file.end:
                raise RunError(f"{file.path} was changed before it was read")
            if self.fmt.cut == "parquet":
                file.end = available_end(file.path, self.fmt.cut, complete=True)
                self._stored_row = max(1.0, seen.size / max(1, file.end))
            try:
                self._known.see(file, seen, file.end)
            except OSError as error:
                raise RunError(f"cannot read {file.path}: {error}") from error
            file.stamp = seen.stamp
        self._registry.begin(file)

    # -- time -----------------------------------------------------------------------------------

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """Files that go on hold the watermark where they are; followed ones until they are idle."""
        return self.horizons.look(self._taken, self._copying, now, since)

    def reached(self, files: dict[int, int], now: int) -> None:
        """Note how far files came, and how fast: time for what was taken."""
        self.horizons.reached(self._taken, files, now)

    # -- the rest of a batch --------------------------------------------------------------------

    def together(self, split: AnySplit) -> int:
        """Pieces of one file, unless participants are values of a column."""
        return split.file if isinstance(split, Split) and self.spec.participant is None else 0

    def save(self, state: SourceState) -> None:
        """Offsets of files that go on; complete ones are only named in the registry."""
        self._registry.save(self.horizons.at_rest(), state)

    def committed(self) -> None:
        """Files belong to the user: nothing is removed."""
        self._taken = {}


def _when_seen(file: Known) -> int:
    """Of two files with one inode the one counts that was seen later."""
    return -1 if file.seen is None else file.seen
