"""Files that are known, at a look: how far they can be read by now, and those that are gone."""

from __future__ import annotations

from millstream.errors import RunError
from millstream.io.formats import Format
from millstream.io.readers import is_gzip
from millstream.run.extents import Extents
from millstream.run.listing import Seen
from millstream.run.recognising import ByName, Recogniser
from millstream.run.registry import Known
from millstream.run.sightings import Sightings


class Growth:
    """What looks say of known files; followed ones may grow, others may not."""

    def __init__(
        self,
        fmt: Format,
        extents: Extents,
        recogniser: Recogniser | ByName,
        sightings: Sightings | None,
        *,
        follow: bool,
    ) -> None:
        self._fmt, self._extents, self._follow = fmt, extents, follow
        self._recogniser, self._sightings = recogniser, sightings

    def measure(self, file: Known, seen: Seen) -> bool:
        """Note how far a known file can be read now; False if it was not there any more."""
        if file.done and not self._follow:
            self._refuse_grown(file, seen)
        if file.stamp != seen.stamp and (self._follow or not file.done):
            # A compressed file that was read to its end does not grow, and its offset may be one of
            # an earlier version, which counted compressed bytes.
            read = file.done and file.sealed and self._extents.is_packed(seen.path)
            end = file.offset if read else self._extents.of(seen)
            try:
                self._grow(file, seen, end)
            except FileNotFoundError:
                return False  # it was just renamed or removed: the next look finds out
        return True

    def _refuse_grown(self, file: Known, seen: Seen) -> None:
        """A file that was read to its end has more by now: neither reading it nor not is right."""
        plain = file.stamp is not None and file.stamp[1] >= 0 and not file.sealed
        if plain and seen.size > file.size and not self._extents.is_packed(seen.path):
            raise RunError(
                f"{file.path} was read to its end at byte {file.size} by an earlier run, and has "
                f"{seen.size} bytes now: files that grow are read with follow=True; else put what "
                "is new into a file of its own"
            )

    def _grow(self, file: Known, seen: Seen, end: int) -> None:
        compressed = is_gzip(self._fmt.kind, seen.path) and not file.sealed  # since it was begun
        if (end > file.end or not file.print.span) and not compressed:
            self._recogniser.see(file, seen, end)
        if end >= file.offset:
            file.end, file.size, file.stamp = end, seen.size, seen.stamp
        elif file.sealed:
            raise RunError(
                f"{file.path} has {end} {self._extents.unit}s, and {file.offset} of them were "
                "read: it was replaced, or the checkpoint was. Put it back, or start with a new "
                "checkpoint"
            )
        if file.number is None and self._sightings is not None:
            self._sightings.note(file)

    def give_up(self, file: Known) -> None:
        """A file is nowhere to be found."""
        if file.offset < file.end or not self._follow:
            known = f"read to {self._extents.unit} {file.offset}, had more"
            if file.number is None:
                known = "seen, nothing of it was read yet"
            raise RunError(
                f"{file.path} was {known}, and is not there any more: it was removed, truncated or "
                "replaced, and neither it nor a copy of it was found beside it. What the rest of "
                "it was cannot be known: put it back, or start with a new checkpoint"
            )
        file.done = True
