"""Slates in the hands of a task, and what calls of their updaters gave beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.ops.codec import as_key, unpack
from millstream.ops.records import Row
from millstream.ops.updates import NEVER


class Cell:
    """One slate in the hands of a task."""

    __slots__ = (
        "check",
        "data",
        "events",
        "expires",
        "gone",
        "hash",
        "key",
        "packed",
        "stored",
        "ts",
        "wrote",
    )

    def __init__(self, packed: bytes, key_hash: int, check: int) -> None:
        self.packed, self.hash, self.check = packed, key_hash, check
        key = unpack(packed)
        self.key = as_key(key) if type(key) is list else key
        self.data: bytes | None = None  # None: there is no slate
        self.ts = -NEVER
        self.expires = -NEVER
        self.stored = False  # the store has a row that must be replaced or removed
        self.wrote = False
        self.gone = False
        self.events = 0  # in a partial slate

    def load(self, data: bytes, ts: int, expires: int) -> None:
        """Take over what is stored."""
        self.data, self.ts, self.expires, self.stored = data, ts, expires, True


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
