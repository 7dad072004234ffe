"""What several flows read in one task is read once.

Flows that run together may read the same files. If their batches are in one task and have the same
piece of a file to read, the first one reads it, with the columns of all of them, and the others get
what it read. A record is checked only in the columns that are read, so for a piece with a record
that cannot be read this would not be the same: such a piece everybody reads by himself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from millstream.io.formats import READER, Format
from millstream.io.readers import Parsed, Split, read_split

_Place = tuple[str, int, int, int]


@dataclass
class _Shared:
    """A piece that several want."""

    fmt: Format  # with the columns of all
    left: int  # who have not had it yet
    read: list[Parsed] | None = None
    alone: bool = False  # everybody reads by himself


@dataclass
class Once:
    """Pieces that several flows of a task read."""

    _shared: dict[_Place, list[_Shared]] = field(default_factory=dict)
    saved: int = 0  # records that somebody else had read already

    @classmethod
    def of(cls, wanted: Iterable[tuple[Format, Split]]) -> Once:
        """Find those that are wanted more than once."""
        found: dict[_Place, list[_Shared]] = {}
        for fmt, split in wanted:
            several = found.setdefault(_place(split), [])
            same = next((one for one in several if _like(one.fmt, fmt)), None)
            if same is None:
                several.append(_Shared(fmt, 1))
            else:
                same.fmt, same.left = _with_columns(same.fmt, fmt), same.left + 1
        kept = {at: [one for one in several if one.left > 1] for at, several in found.items()}
        return cls({at: several for at, several in kept.items() if several})

    def read(self, fmt: Format, split: Split) -> Iterator[Parsed]:
        """The records of a split for one who wants these columns."""
        several = self._shared.get(_place(split), [])
        shared = next((one for one in several if _like(one.fmt, fmt)), None)
        if shared is None or shared.alone:
            yield from read_split(fmt, split)
            return
        shared.left -= 1
        first = shared.read is None
        if shared.read is None:
            shared.read = list(read_split(shared.fmt, split))
            shared.alone = any(one.dead for one in shared.read)
        if shared.alone:
            shared.read = None
            yield from read_split(fmt, split)
            return
        pieces = shared.read
        if not shared.left:  # and should somebody come whom nobody expected, he reads by himself
            shared.read, shared.alone = None, True
        names = fmt.delivered.names
        for one in pieces:
            self.saved += 0 if first else one.offered
            ts = None if one.ts is None else one.ts.copy()
            yield replace(one, table=one.table.select(names), ts=ts)


def _place(split: Split) -> _Place:
    return split.path, split.inode, split.start, split.end


def _like(one: Format, other: Format) -> bool:
    """Whether two differ in their columns alone, and no function of a user reads."""
    return one.kind != READER and replace(one, columns=None) == replace(other, columns=None)


def _with_columns(one: Format, other: Format) -> Format:
    if one.columns is None or other.columns is None:
        return replace(one, columns=None)
    wanted = {*one.columns, *other.columns}
    return replace(one, columns=tuple(name for name in one.schema.names if name in wanted))


_reading: ContextVar[Once | None] = ContextVar("once", default=None)


@contextmanager
def reading_once(wanted: Iterable[tuple[Format, Split]]) -> Iterator[Once]:
    """Within, `read_shared` reads each of these pieces once."""
    once = Once.of(wanted)
    token = _reading.set(once)
    try:
        yield once
    finally:
        _reading.reset(token)


def read_shared(fmt: Format, split: Split) -> Iterator[Parsed]:
    """The records of a split, read or already read for another flow."""
    once = _reading.get()
    return read_split(fmt, split) if once is None else once.read(fmt, split)
