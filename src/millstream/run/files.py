"""Files as a source, in the driver: which there are, how far they were read, what to read next.

Files that were begun have a number and stand in the registry; the manifest holds those of them that
go on. Files that wait are in the order in which they will be begun; that a followed one was seen is
durable too. Every file is a participant: until it has been read to its end it holds the watermark
where it is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import Any

from millstream.api.sources import Files
from millstream.durations import micros
from millstream.errors import ConfigError, RunError
from millstream.io.firsts import Peek, first_times
from millstream.io.formats import READER, Format
from millstream.io.prints import NOTHING
from millstream.io.readers import Split, available_end, is_gzip, last_line_end
from millstream.ops.chunks import OFFSET_BITS
from millstream.ops.progress import BEGIN, END, Horizon
from millstream.run.lengths import Lengths
from millstream.run.listing import Inode, Seen, by_age, list_seen, look
from millstream.run.merging import Helping, pieces_of
from millstream.run.quiet import Quiet, Stamp, came_to, how_far
from millstream.run.recognising import ByName, Recognised, Recogniser
from millstream.run.registry import Known, Registry, is_sealed
from millstream.run.sightings import Sightings
from millstream.run.splits import AnySplit
from millstream.run.spreading import rows_of
from millstream.run.tracking import Probe, directly
from millstream.state.locations import is_url
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_ROW_BYTES = 64.0  # assumed until rows have been seen
_GUESSED = 1.25  # times as many rows as were guessed, up to which a file is read at once
_STORED_ROW = 16.0  # the same for what a row of a parquet file takes
_LEAST_ROWS = 1_000  # a piece with fewer is not worth a task of its own
_TOGETHER = 8  # compressed files whose lengths are found together
_AHEAD = 64  # waiting files looked at first; twice as many if all of them are to be begun


def _wall() -> int:
    return int(time.time() * 1e6)


class FilesTracker:
    """Files by what they are and how far they were read."""

    _SETTLED = 600.0  # a followed file unchanged for so long is complete until it grows again

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
        self.row_bytes = _ROW_BYTES
        self.unread: list[Known] = []  # in the order in which they will be begun
        self._registry = Registry(sources, f"{stem}.jsonl", state, fmt.cut)
        self.files, self.open = self._registry.files, self._registry.open
        self._lengths = Lengths()
        known = self.files
        self._sightings: Sightings | None = None
        if spec.follow:
            self._sightings = Sightings(sources, f"{stem}.seen", state)
            self.unread = self._sightings.waiting(self.files)
            known = sorted([*self.files, *self.unread], key=_when_seen)
        self._known = (ByName if is_url(spec.path) else Recogniser)(
            fmt.cut, spec.follow, known, self._registry.moved, self._lengths
        )
        self._timed = spec.time is not None and spec.lateness_micros() is not None
        self._merged = self._timed and spec.participant is None
        timeout = spec.idle_timeout
        self._quiet = Quiet(None if timeout is None else micros(timeout, "idle_timeout"))
        self._taken: dict[int, tuple[int, int | None]] = {}  # file -> how much, and from when on
        self._much = 0  # all of it
        self._waiting = 0  # what there is in files that wait
        self._last: Known | None = None  # of followed files that cannot grow, the furthest
        self._pace: float | None = None  # microseconds of event time per byte (row)
        self._stored_row = _STORED_ROW
        self._unripe: dict[Inode, Stamp] = {}  # listed, and without a whole line
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
        there = {seen.inode for seen in listed}
        self._unripe = {inode: at for inode, at in self._unripe.items() if inode in there}
        self._copying = found.copying or found.missing
        for file in found.gone:
            self._give_up(file)
        again = [file for file, seen in found.here.items() if self._measure(file, seen)]
        looked = time.monotonic() - began  # without the first times, which a cold Spark may take
        self._welcome(found.fresh, again, probe)
        if self._sightings is not None:
            self._sightings.write()
        self._waiting = sum(file.end for file in self.unread)
        self._listed = True
        if not self.spec.follow:
            self.ended = self.pending() == 0
        # Looking at very many files takes a while: spend at most a fifth of the time on it.
        self._next_look = time.monotonic() + 4 * looked

    def _look(self) -> tuple[list[Seen], Recognised]:
        """What is listed, and what of that is known."""
        try:
            listed = self._list()
        except ConfigError as error:
            if not self.files and not self.unread:
                raise
            raise RunError(str(error)) from None
        self._lengths.find([seen for seen in listed if self._is_wanted(seen)])
        watched = [*(f for f in self.open.values() if not f.done), *self.unread]
        return listed, self._known.recognise(listed, watched, self._is_ripe)

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

    def _is_ripe(self, seen: Seen) -> bool:
        """Whether a new file has anything to read yet."""
        if not self.spec.follow:
            return seen.size > 0
        if self._unripe.get(seen.inode) == seen.stamp:
            return False
        if seen.size and self._readable(seen):
            self._unripe.pop(seen.inode, None)
            return True
        self._unripe[seen.inode] = seen.stamp
        return False

    def _is_wanted(self, seen: Seen) -> bool:
        """Whether a listed file is compressed, and its length will be asked for."""
        if not seen.size or not seen.path.endswith(".gz") or self.fmt.cut == "parquet":
            return False
        file = self._known.by_inode.get(seen.inode)
        if file is None:
            return self.spec.follow  # else when it is its turn
        return file.stamp != seen.stamp and not file.done

    def _unpacked(self, seen: Seen) -> int:
        """How much a compressed file stands for; one that is not whole may still be copied."""
        length = self._lengths.of(seen)
        if isinstance(length, int):
            return length
        if self.spec.follow:
            return 0
        raise RunError(
            f"cannot read {seen.path}: {length}. Nothing more of it was read: replace it by an "
            "intact one, or remove it"
        )

    def _readable(self, seen: Seen) -> int:
        """How far a file can be read: to its end, or to its last whole line."""
        if is_gzip(self.fmt.cut, seen.path):
            return self._unpacked(seen)
        if self.fmt.cut == READER and self.spec.follow and seen.path.endswith(".gz"):
            return seen.size if self._unpacked(seen) else 0
        if not self.spec.follow and self.fmt.cut != "parquet":
            return seen.size
        try:
            if is_sealed(self.fmt.cut, seen.path):
                complete = self.fmt.cut == READER or not self.spec.follow
                return available_end(seen.path, self.fmt.cut, complete)
            return last_line_end(seen.path, seen.size, seen.inode[1])
        except (RunError, OSError) as error:
            if self.spec.follow and _moved(error):
                return 0  # the next look finds it where it is by then
            raise RunError(f"cannot read {seen.path}: {error}") from error

    def _measure(self, file: Known, seen: Seen) -> bool:
        """Note how far a known file can be read now; True if its first time is to be found."""
        if file.done and not self.spec.follow:
            self._refuse_grown(file, seen)
        if file.stamp != seen.stamp and (self.spec.follow or not file.done):
            # A compressed file that was read to its end does not grow, and its offset may be one of
            # an earlier version, which counted compressed bytes.
            read = file.done and file.sealed and is_gzip(self.fmt.cut, seen.path)
            end = file.offset if read else self._readable(seen)
            try:
                self._grow(file, seen, end)
            except FileNotFoundError:
                return False  # it was just renamed or removed: the next look finds out
        if file.number is None:
            return file.first is None
        if file.end > file.offset:
            file.done = False
            self.open[file.number] = file
        return False

    def _refuse_grown(self, file: Known, seen: Seen) -> None:
        """A file that was read to its end has more by now: neither reading it nor not is right."""
        plain = file.stamp is not None and file.stamp[1] >= 0 and not file.sealed
        if plain and seen.size > file.size and not is_gzip(self.fmt.cut, seen.path):
            raise RunError(
                f"{file.path} was read to its end at byte {file.size} by an earlier run, and has "
                f"{seen.size} bytes now: files that grow are read with follow=True; else put what "
                "is new into a file of its own"
            )

    def _grow(self, file: Known, seen: Seen, end: int) -> None:
        compressed = is_gzip(self.fmt.kind, seen.path) and not file.sealed  # since it was begun
        if (end > file.end or not file.print.span) and not compressed:
            self._known.see(file, seen, end)
        if end >= file.offset:
            file.end, file.size, file.stamp = end, seen.size, seen.stamp
        elif file.sealed:
            raise RunError(
                f"{file.path} has {end} {self._unit}s, and {file.offset} of them were read: it was "
                "replaced, or the checkpoint was. Put it back, or start with a new checkpoint"
            )
        if file.number is None and self._sightings is not None:
            self._sightings.note(file)

    @property
    def _unit(self) -> str:
        return "row" if self.fmt.cut == "parquet" else "byte"

    def _give_up(self, file: Known) -> None:
        """A file is nowhere to be found."""
        if file.offset < file.end or not self.spec.follow:
            known = f"read to {self._unit} {file.offset}, had more"
            if file.number is None:
                known = "seen, nothing of it was read yet"
            raise RunError(
                f"{file.path} was {known}, and is not there any more: it was removed, truncated or "
                "replaced, and neither it nor a copy of it was found beside it. What the rest of "
                "it was cannot be known: put it back, or start with a new checkpoint"
            )
        file.done = True
        if file.number is None:
            self.unread.remove(file)

    def _welcome(self, fresh: list[Seen], again: list[Known], probe: Probe) -> None:
        """Let new files wait for their turn, in the order of their first records."""
        once = {seen.inode: seen for seen in reversed(fresh)}  # one file may have several names
        new = [self._new(seen) for seen in once.values()]
        unknown = sorted([*new, *again], key=lambda file: file.path)
        if not unknown:
            return
        if self._timed:
            limit = self.trusted() + micros(self.spec.max_future_skew, "skew", zero=True)
            find = partial(first_times, Peek(self.fmt, limit, self.spec.follow))
            times = probe(find, [file.path for file in unknown])
            for file, first in zip(unknown, times, strict=True):
                file.first = first
        self.unread = sorted([*self.unread, *new], key=self._turn)

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

    def _turn(self, file: Known) -> tuple[int, tuple[Any, ...]]:
        name = by_age(file.path) if self.spec.follow else (file.path,)
        if self._timed:
            return (END if file.first is None else file.first), name
        return (file.stamp or (0, 0))[1], name  # followed: as they were written

    # -- reading --------------------------------------------------------------------------------

    def pending(self) -> int:
        """Bytes (for parquet rows, times the bytes of a row) not yet taken."""
        scale = self.row_bytes if self.fmt.cut == "parquet" else 1
        begun = sum(file.end - file.offset for file in self.open.values())
        return int((begun + self._waiting) * scale)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces of at most so many rows and bytes."""
        parquet = self.fmt.cut == "parquet"
        budget = rows if parquet else int(min(size, rows * self.row_bytes))
        least = int(_LEAST_ROWS * (1.0 if parquet else self.row_bytes))
        there = int(self.pending() / (self.row_bytes if parquet else 1))
        piece = max(1, least, min(budget, there) // parts)
        self._taken = {}
        splits: list[Split] = []
        for file, much in self._choose(self._helping(budget, rows)):
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

    def _helping(self, budget: int, rows: int) -> Helping:
        """What one batch may take, and what is known of how fast files go on."""
        return Helping(
            budget, rows, self.fmt.cut, self._merged, self._pace, self.row_bytes, self._lengths
        )

    def _choose(self, helping: Helping) -> Iterator[tuple[Known, int]]:
        """What to read of which files; those that are begun no longer wait."""
        going = [file for _, file in sorted(self.open.items()) if file.end > file.offset]
        count = _AHEAD
        while True:
            waiting = self._waiting_files(count, helping.budget)
            files = [*going, *waiting]
            much = helping.amounts(files)
            if len(waiting) < count or not much[-1]:
                break  # files that wait are in order: those after one that has no turn have none
            count *= 2
        chosen = [(file, amount) for file, amount in zip(files, much, strict=True) if amount]
        if self._merged:
            chosen.sort(key=lambda one: how_far(one[0]))
        most = self.spec.max_files_per_batch
        if most is not None and most < len(chosen):  # these alone share what a batch may take
            files = [file for file, _ in chosen[:most]]
            chosen = list(zip(files, helping.amounts(files), strict=True))
        yield from ((file, amount) for file, amount in chosen if amount)
        self.unread[:count] = [file for file in self.unread[:count] if file.number is None]

    def _waiting_files(self, count: int, budget: int) -> list[Known]:
        """The first files that wait; of compressed ones no more than are needed are looked into."""
        if self.spec.follow or not any(self._is_packed(file) for file in self.unread[:count]):
            return self.unread[:count]
        at = there = 0
        while at < min(count, len(self.unread)) and there <= budget:
            group = self.unread[at : min(count, at + _TOGETHER)]
            self._unpack([file for file in group if self._is_packed(file)])
            for file in [file for file in group if not file.end]:  # it stands for nothing
                group.remove(file)
                self.unread.remove(file)
                file.done = True
            there += sum(file.end for file in group)
            at += len(group)
        return self.unread[: min(at, count)]

    def _is_packed(self, file: Known) -> bool:
        return is_gzip(self.fmt.cut, file.path)

    def _unpack(self, files: list[Known]) -> None:
        """Find the lengths of compressed files that are about to be begun."""
        seen = {file: self._as_listed(file) for file in files}
        self._lengths.find([*seen.values()])
        for file in files:
            length = self._unpacked(seen[file])
            self._waiting += length - file.end
            file.end = length

    def _as_listed(self, file: Known) -> Seen:
        """A file that was not begun yet, which is still what it was."""
        seen = look(file.path)
        if seen is None or seen.inode != file.inode or seen.size < file.size:
            raise RunError(f"{file.path} was removed or replaced before it was read")
        return seen

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
            if self.spec.follow and _moved(error):
                return []  # the next look finds out where it is
            raise
        reached = cut[-1].end if cut and cut[-1].end >= 0 else file.end
        self._taken[file.number] = (reached - file.offset, file.reached)
        file.offset = reached
        rotates = self.spec.follow and not is_sealed(self.fmt.cut, file.path)
        seen = file.print if rotates else NOTHING
        return [replace(one, after=file.latest, seen=seen) for one in cut]

    def _begin(self, file: Known) -> None:
        self._waiting -= file.end
        if not self.spec.follow:
            seen = self._as_listed(file)
            if self._is_packed(file) and self._unpacked(seen) != file.end:
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
        if self.spec.time is None:
            return Horizon(clock=now)
        if not self._timed:
            return Horizon()
        unread = self.unread[0].first if self.unread else None
        if self._copying:
            unread = BEGIN
        if not self._merged:
            return Horizon(unread)
        files: dict[int, int] = {}
        blank: list[Known] = []
        ends = [] if self._last is None else [self._last]
        for number, file in self.open.items():
            if file.offset < file.end or (self.spec.follow and number in self._taken):
                files[number] = BEGIN if file.reached is None else file.reached
            elif not file.done:
                (blank if file.latest is None else ends).append(file)
        if not self.spec.follow:
            return Horizon(unread, files, heard=self._heard(files))
        self._quiet.listens(now, since)
        files |= self._quiet.at_their_ends(ends, now)
        listed = self._quiet.without_records(self._without_records(blank), now)
        self._quiet.stands(_lowest(unread, *files.values()), listed is not None, now)
        return Horizon(_lowest(unread, listed), files, heard=self._heard(files))

    def _heard(self, files: dict[int, int]) -> dict[int | str, int]:
        return {number: self.files[number].heard for number in files}

    def _without_records(self, begun: list[Known]) -> dict[Inode, Stamp]:
        """Files that take part since they were listed, and of which no time is known."""
        waiting = takewhile(lambda file: file.first is None, reversed(self.unread))
        known = {file.inode: file.stamp for file in chain(waiting, begun) if file.inode is not None}
        return self._unripe | known

    def reached(self, files: dict[int, int], now: int) -> None:
        """Note how far files came, and how fast: time for what was taken."""
        taken = gained = 0
        for number, (much, before) in self._taken.items():
            by = came_to(self.files[number], files.get(number), much, before, now)
            if by is not None:
                taken, gained = taken + much, gained + by
        if taken:
            self._pace = gained / taken

    # -- the rest of a batch --------------------------------------------------------------------

    def weigh(self, split: AnySplit) -> float:
        """About how many rows a piece has."""
        if isinstance(split, Split) and split.end < 0:  # a function of the user reads it whole
            return self.files[split.file].size / self.row_bytes
        return rows_of(split) / (1.0 if self.fmt.cut == "parquet" else self.row_bytes)

    def together(self, split: AnySplit) -> int:
        """Pieces of one file, unless participants are values of a column."""
        return split.file if isinstance(split, Split) and self.spec.participant is None else 0

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

    def save(self, state: SourceState) -> None:
        """Offsets of files that go on; complete ones are only named in the registry."""
        settled = [file for file in self.open.values() if self._is_settled(file)]
        if self.spec.follow:
            ends = [f for f in settled if f.latest is not None and not f.done]
            self._last = max([*ends, *filter(None, [self._last])], key=how_far, default=None)
        self._registry.save(settled, state)
        if self._sightings is not None:
            self._sightings.save(state)

    def _is_settled(self, file: Known) -> bool:
        if file.offset < file.end:
            return False
        if not self.spec.follow or file.done or is_sealed(self.fmt.cut, file.path):
            return True
        if self._merged and self._quiet.idle is None:
            return False  # it holds the watermark for ever
        old = time.time() - max(self._SETTLED, 2 * (self._quiet.idle or 0) / 1e6)
        return file.stamp is not None and file.stamp[1] < old * 1e9

    def committed(self) -> None:
        """Files belong to the user: nothing is removed."""
        self._taken = {}

    def silent(self) -> float:
        """Readers are asked in tasks."""
        return 0.0

    def ask_to_stop(self, patience: float) -> None:
        """Nothing is received."""

    def close(self) -> None:
        """Nothing is held open."""


def _lowest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _when_seen(file: Known) -> int:
    """Of two files with one inode the one counts that was seen later."""
    return -1 if file.seen is None else file.seen


def _moved(error: Exception) -> bool:
    """Whether a file was renamed or removed between a look at it and its reading."""
    return isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
