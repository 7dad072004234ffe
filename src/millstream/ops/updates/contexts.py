"""What a user's update function is called with: the event, and what it may ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from millstream.durations import Duration, micros
from millstream.errors import ConfigError, RunError
from millstream.ops.codec import as_key, check_plain, encode, unpack_row
from millstream.ops.keys.names import pack_published
from millstream.ops.updates.job import UpdateJob
from millstream.ops.zones import EPOCH, timestamp

# Records may have times of this year at the latest (`settings.py`), and so may what timers give.
_END = (datetime(9000, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


class Event(msgspec.Struct, eq=False):
    """What an update function is called with: `key`, `value`, `ts` and `stream`."""

    stream: str
    _us: int
    key: Any
    _packed: bytes | None  # the value, until somebody asks for it
    _value: Any = None

    @property
    def value(self) -> Any:
        """The record as a dict, or the value that was published."""
        packed = self._packed
        if packed is not None:
            self._value, self._packed = unpack_row(packed), None
        return self._value

    @property
    def ts(self) -> datetime:
        """The time of the event, UTC."""
        return timestamp(self._us)

    def __repr__(self) -> str:
        return f"Event({self.stream!r}, {self.ts.isoformat()}, {self.key!r}, {self.value!r})"


class Context:
    """What a function may ask for beside changing its slate."""

    __slots__ = (
        "_deleted",
        "_job",
        "_longest",
        "_now",
        "_published",
        "_replaced",
        "_streams",
        "_timers",
        "_us",
        "_used",
    )

    def __init__(
        self,
        job: UpdateJob,
        streams: frozenset[str],
        declared: frozenset[str],
        now: int,
        longest: int,
    ) -> None:
        self._job = job
        self._streams = (streams, declared)
        self._now = now
        self._longest = longest
        self._us = 0
        self._clear()

    def _clear(self) -> None:
        self._used = False
        self._published: list[tuple[str, Any, bytes, bytes]] = []
        self._timers: list[tuple[str, int]] = []
        self._deleted = False
        self._replaced: Any = None

    @property
    def ts(self) -> datetime:
        """The time of the event at hand."""
        return timestamp(self._us)

    def publish(self, stream: str, key: Any, value: Any) -> None:
        """Send an event to a stream declared with `flow.stream(name)`."""
        expected, declared = self._streams
        if self._job.merge is not None:
            raise ConfigError("an updater with merge cannot publish")
        if stream not in expected:
            refuse_stream(f"updater {self._job.name!r}", "update", stream, declared)
        self._used = True
        packed = pack_published(key, self._longest)
        check_plain(value)
        self._published.append((stream, as_key(key), packed, encode(value)))

    def timer(
        self, *, after: Duration | None = None, at: datetime | None = None, clock: str | None = None
    ) -> None:
        """Have `on_timer` called later: after a while, or at a moment."""
        clock = clock or self._job.clock
        if clock not in ("event", "wall"):
            raise ConfigError(f'ctx.timer(clock={clock!r}): use "event" or "wall"')
        if self._job.on_timer is None:
            raise ConfigError("ctx.timer() needs update(..., on_timer=...)")
        if (after is None) == (at is None):
            raise ConfigError("ctx.timer(): give either after= or at=")
        self._used = True
        now = self._us if clock == "event" else self._now
        self._timers.append((clock, max(_moment(after, at, now), now + 1)))

    def replace(self, slate: Any) -> None:
        """Put another slate in the place of this one."""
        self._used = True
        self._replaced = (slate,)

    def delete(self) -> None:
        """Remove the slate."""
        self._used = True
        self._deleted = True


class UnforeseenStream(RunError):
    """An updater publishes to a stream the plan does not expect it to."""


def _moment(after: Duration | None, at: datetime | None, now: int) -> int:
    """When a timer is due; a bad time may come from the record, so it does not stop a run."""
    if after is not None:
        try:
            moment = now + micros(after, "ctx.timer(after=)")
        except ConfigError as error:
            raise ValueError(str(error)) from None
    elif isinstance(at, datetime) and at.tzinfo is not None:
        moment = (at.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
    else:
        raise ValueError(f"ctx.timer(at={at!r}): expected a datetime with a time zone")
    if moment >= _END:
        raise ValueError(f"ctx.timer(): {after or at} leads beyond the year 8999")
    return moment


def refuse_stream(who: str, step: str, stream: Any, declared: frozenset[str]) -> None:
    """Nobody expects that a function publishes to a stream: not the plan, or not even the flow."""
    if stream in declared:
        raise UnforeseenStream(
            f"{who} publishes to {stream!r}, which could not be seen in its code; say so with "
            f"{step}(..., publishes=[{stream!r}])"
        )
    known = ", ".join(sorted(declared)) or "none"
    raise ConfigError(
        f"ctx.publish(): there is no stream {stream!r}; declare it with flow.stream({stream!r}). "
        f"Declared: {known}"
    )
