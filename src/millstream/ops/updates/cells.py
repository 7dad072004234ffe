"""Slates in the hands of a task, and what calls of their updaters gave beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from millstream.ops.codec import as_key, unpack
from millstream.ops.records import Row
from millstream.ops.updates.job import NEVER


class Cell(msgspec.Struct, eq=False):
    """One slate in the hands of a task; a batch makes one for every key it touches."""

    key: Any
    packed: bytes  # the key
    hash: int
    check: int
    shard: int
    data: bytes | None = None  # None: there is no slate
    ts: int = -NEVER
    expires: int = -NEVER
    stored: bool = False  # the store has a row that must be replaced or removed
    wrote: bool = False
    gone: bool = False
    events: int = 0  # in a partial slate


def blank_cell(packed: bytes, key_hash: int, check: int, shard: int = 0) -> Cell:
    """The cell of a key, without what is stored of it."""
    key = unpack(packed)
    return Cell(as_key(key) if type(key) is list else key, packed, key_hash, check, shard)


@dataclass
class Failure:
    """A call that raised: the event is a dead letter of the updater."""

    us: int
    src: int
    pos: int
    raw: str
    error: str
    timer: bool
    late: bool
    events: int = 1  # a partial slate stands for several


class Publication(NamedTuple):
    """An event on its way to a stream."""

    stream: str
    us: int
    pos: int
    key: Any
    packed_key: bytes
    value: bytes


@dataclass
class Outcome:
    """What the calls of one updater gave, apart from slates."""

    rows: list[Row] = field(default_factory=list)
    row_ts: list[int] = field(default_factory=list)
    row_pos: list[int] = field(default_factory=list)
    published: list[Publication] = field(default_factory=list)
    timers: list[tuple[int, Cell]] = field(default_factory=list)
    alarms: list[tuple[int, Cell]] = field(default_factory=list)  # timers by the wall clock
    failures: list[Failure] = field(default_factory=list)
    fired: int = 0  # timers, whether their call failed or not
    sent: tuple[int, int] = (0, 0)  # rows and publications that went around their cycle


# When it is applied, origin, position, packed value, and how much earlier its own time is.
Item = tuple[int, int, int, bytes, int]
