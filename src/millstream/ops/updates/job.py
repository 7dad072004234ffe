"""Updaters as their authors declare them: a function that changes the slate of a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.ops.codec import check_plain, decode, encode, pack
from millstream.ops.overload import THROTTLE, Overload

NEVER = 2**61  # when a slate without time to live expires


class Codec(Protocol):
    """How slates that are not plain dicts are made, stored and read."""

    def new(self) -> Any: ...
    def encode(self, slate: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class DictCodec:
    """Slates as dicts of plain values, in MessagePack."""

    def new(self) -> dict[str, Any]:
        """An empty slate."""
        return {}

    def encode(self, slate: Any) -> bytes:
        """A slate as bytes."""
        if type(slate) is not dict:
            raise TypeError(f"a slate is a dict, not {type(slate).__name__}; give update() a codec")
        check_plain(slate)
        try:
            return pack(slate)
        except (TypeError, OverflowError):
            return encode(slate)  # numbers of more than 64 bits; else it says why

    def decode(self, data: bytes) -> Any:
        """The inverse of `encode`."""
        return decode(data)


DICTS = DictCodec()


@dataclass(frozen=True)
class UpdateJob:
    """What an updater does, as its author declared it."""

    name: str
    fn: Callable[..., Any]
    on_timer: Callable[..., Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    codec: Codec = DICTS
    ttl: int | None = None
    order: str = "event"  # or "arrival"
    late: str = "apply"  # or "divert"
    clock: str = "event"  # or "wall": what ttl and timers go by
    max_slate: int = 1 << 20
    partition: Callable[[Any], int] | None = None  # which shard a key belongs to; None: by hash
    overload: Overload = THROTTLE  # what is done with more events than it can apply
    flush: int | None = None  # how long changed slates may be in memory alone; None: no batch


@dataclass(frozen=True)
class UpdateGroup:
    """Updaters that run together: those of one cycle, or just one."""

    name: str
    jobs: tuple[UpdateJob, ...]
    cyclic: bool = False

    def number(self, updater: str) -> int:
        """The place of an updater in the group."""
        return next(i for i, job in enumerate(self.jobs) if job.name == updater)
