"""Updaters: a function per event that changes the slate of its key.

A *cell* is a slate in the hands of a task. Every call gets the slate as it would come back from
the store and leaves it as bytes, so that no call sees more of another than a restart would leave,
and a call that raises leaves nothing behind. Calls of one key are in the order of
(time, timers first, origin, position); what a call emits is one microsecond later than its cause.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from millstream.durations import Duration, micros
from millstream.errors import ConfigError, RunError
from millstream.ops.codec import (
    as_key,
    check_plain,
    decode,
    decode_row,
    encode,
    encode_key,
    pack,
    unpack,
)
from millstream.ops.jobs import EPOCH, timestamp
from millstream.ops.keys import canonical, hash_keys
from millstream.ops.records import Row, as_json, describe, several

NEVER = 2**61  # when a slate without time to live expires
TIMER = "timer"  # what `event.stream` says of a timer
SECOND_HASH = 0x5EED
_MASK = (1 << 64) - 1

UInt64 = np.ndarray[Any, np.dtype[np.uint64]]


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
            return encode(slate)  # raises as well, and says what can be stored

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


@dataclass(frozen=True)
class UpdateGroup:
    """Updaters that run together: those of one cycle, or just one."""

    name: str
    jobs: tuple[UpdateJob, ...]
    cyclic: bool = False

    def number(self, updater: str) -> int:
        """The place of an updater in the group."""
        return next(i for i, job in enumerate(self.jobs) if job.name == updater)


class Event:
    """What an update function is called with: `key`, `value`, `ts` and `stream`."""

    __slots__ = ("_packed", "_us", "_value", "key", "stream")

    def __init__(self, stream: str, us: int, key: Any, packed: bytes | None) -> None:
        self.stream, self._us, self.key, self._packed = stream, us, key, packed
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The record as a dict, or the value that was published."""
        if self._packed is not None:
            self._value, self._packed = decode_row(self._packed), None
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
            _refuse_stream(self._job, stream, declared)
        self._used = True
        packed = pack_key(key)
        if len(packed) > self._longest:
            raise ValueError(
                f"ctx.publish(): the key has {len(packed):,} bytes, more than max_key="
                f"{self._longest:,}"
            )
        check_plain(value)
        self._published.append((stream, as_key(key), packed, encode(value)))

    def timer(
        self,
        *,
        after: Duration | None = None,
        at: datetime | None = None,
        clock: str | None = None,
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
        if after is not None:
            self._timers.append((clock, now + micros(after, "ctx.timer(after=)")))
            return
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise ConfigError(f"ctx.timer(at={at!r}): expected a datetime with a time zone")
        moment = (at.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
        self._timers.append((clock, max(moment, now + 1)))

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


def _refuse_stream(job: UpdateJob, stream: Any, declared: frozenset[str]) -> None:
    if stream in declared:
        raise UnforeseenStream(
            f"updater {job.name!r} publishes to {stream!r}, which could not be seen in its code; "
            f"say so with update(..., publishes=[{stream!r}])"
        )
    known = ", ".join(sorted(declared)) or "none"
    raise ConfigError(
        f"ctx.publish(): there is no stream {stream!r}; declare it with flow.stream({stream!r}). "
        f"Declared: {known}"
    )


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


class Machine:
    """Calls the functions of one updater in one batch."""

    def __init__(
        self,
        job: UpdateJob,
        *,
        closed: int,
        limit: int,
        now: int,
        latest: int | None,
        streams: frozenset[str] = frozenset(),
        declared: frozenset[str] = frozenset(),
        names: dict[int, str] | None = None,
        longest: int = 1024,
    ) -> None:
        self.job = job
        self.number = next((n for n, name in (names or {}).items() if name == job.name), -1)
        self.closed = closed  # event time reached before this batch
        self.limit = limit  # event time reached with it
        self.now = now
        self.latest = latest  # the latest time of all input, once that has ended
        self.names = names or {}  # origins by number
        self.late = False  # the event of the current call is
        self.out = Outcome()
        self.ctx = Context(job, streams, declared, now, longest)
        codec = job.codec
        self._new, self._encode = codec.new, codec.encode
        self._decode: Callable[[bytes], Any] = codec.decode
        if isinstance(codec, DictCodec):  # the same without a detour
            self._decode = unpack
        self.blank = codec.encode(codec.new())

    @property
    def is_plain(self) -> bool:
        """Whether slates are dicts that do not expire, and nobody sets timers."""
        job = self.job
        return job.ttl is None and job.on_timer is None and isinstance(job.codec, DictCodec)

    def call_plain(self, cell: Cell, events: Iterable[Item]) -> None:
        """`call` for several events of one key, where most calls only change the slate."""
        ctx, fn, names, key = self.ctx, self.job.fn, self.names, cell.key
        most, blank = self.job.max_slate, self.blank
        for us, src, pos, packed, behind in events:
            stored = cell.data
            self.late = behind > 0
            event = Event(names.get(src, ""), us - behind, key, packed)
            ctx._us = us
            try:
                slate = {} if stored is None else unpack(stored)
                given = fn(event, slate, ctx)
                if given is None and not ctx._used:
                    check_plain(slate)
                    data = pack(slate)
                    if len(data) <= most:
                        if stored is not None or data != blank:
                            cell.data, cell.wrote, cell.gone, cell.expires = (
                                data,
                                True,
                                False,
                                NEVER,
                            )
                            if us > cell.ts:
                                cell.ts = us
                        continue
            except BaseException as error:  # a user's function may raise anything
                self._failed(cell, us, src, pos, packed, False, error)
                continue
            self._conclude(cell, us, src, pos, packed, False, slate, given, stored is None)

    def call(
        self,
        cell: Cell,
        us: int,
        src: int,
        pos: int,
        packed: bytes | None,
        behind: int = 0,
        *,
        timer: bool = False,
    ) -> None:
        """One event or timer of one key; a late one has a time so much `behind` when it counts."""
        job, ctx = self.job, self.ctx
        self.out.fired += timer
        stored = cell.data
        if job.ttl is not None and stored is not None:
            gone_by = self.now if job.clock == "wall" else max(us, self.closed)
            if cell.expires <= gone_by:
                stored = None  # for this call; if it fails, nothing has changed
        self.late = behind > 0
        event = Event(TIMER if timer else self.names.get(src, ""), us - behind, cell.key, packed)
        ctx._us = us
        try:
            slate = self._new() if stored is None else self._decode(stored)
            given = (job.on_timer if timer else job.fn)(event, slate, ctx)  # type: ignore[misc]
        except BaseException as error:  # a user's function may raise anything
            self._failed(cell, us, src, pos, packed, timer, error)
            return
        self._conclude(cell, us, src, pos, packed, timer, slate, given, stored is None)

    def _conclude(
        self,
        cell: Cell,
        us: int,
        src: int,
        pos: int,
        packed: bytes | None,
        timer: bool,
        slate: Any,
        given: Any,
        fresh: bool,
    ) -> None:
        """Take over what a call did, all of it or nothing."""
        job, ctx = self.job, self.ctx
        rows: list[Row] = []
        try:
            if given is not None:
                rows = several(given)
                if rows and job.merge is not None:
                    raise ConfigError("an updater with merge cannot return records")
            if ctx._replaced is not None:
                (slate,) = ctx._replaced
            data = None if ctx._deleted else self._encode(slate)
            if data is not None and len(data) > job.max_slate:
                raise ValueError(
                    f"the slate would have {len(data):,} bytes, more than max_slate="
                    f"{job.max_slate:,}; keep less in it, or raise max_slate"
                )
        except BaseException as error:  # what a function gives may come from a generator
            self._failed(cell, us, src, pos, packed, timer, error)
            return
        self._write(cell, us, data, fresh=fresh)
        if rows or ctx._used:
            self._emit(cell, us, src, pos, rows, timer)

    def _failed(
        self,
        cell: Cell,
        us: int,
        src: int,
        pos: int,
        packed: bytes | None,
        timer: bool,
        error: BaseException,
    ) -> None:
        """A call that raised leaves a dead letter; a mistake of the program stops the run."""
        if isinstance(error, UnforeseenStream):
            raise error
        if isinstance(error, ConfigError):  # a mistake in the program, not in the record
            raise RunError(
                f"updater {self.job.name!r}: {error}; this batch was not committed"
            ) from error
        self.ctx._clear()
        value = None if packed is None else decode_row(packed)
        stream = TIMER if timer else self.names.get(src, "")
        raw = as_json({"key": cell.key, "value": value, "stream": stream})
        self.out.failures.append(Failure(us, src, pos, raw, describe(error), timer, self.late))

    def _emit(self, cell: Cell, us: int, src: int, pos: int, rows: list[Row], timer: bool) -> None:
        """Note what a call gave and asked for."""
        ctx, out = self.ctx, self.out
        if rows or ctx._published:
            at = derived_position(pos, src, cell.hash, timer, self.number)
            out.rows.extend(rows)
            out.row_ts.extend([us + 1] * len(rows))
            out.row_pos.extend([at] * len(rows))
            for name, key, packed, packed_value in ctx._published:
                out.published.append(Publication(name, us + 1, at, key, packed, packed_value))
        for clock, moment in ctx._timers:
            if clock == "wall":
                out.alarms.append((moment, cell))
            elif not (timer and self.latest is not None and us > self.latest):
                out.timers.append((max(moment, us + 1), cell))
        ctx._clear()

    def _write(self, cell: Cell, us: int, data: bytes | None, *, fresh: bool) -> None:
        job = self.job
        if data is None:
            cell.gone = cell.wrote = cell.stored or cell.wrote
            cell.data = None
            cell.ts = cell.expires = -NEVER
            return
        if fresh and data == self.blank:
            return  # nothing was put into a fresh slate: there is none
        if fresh:
            cell.ts = cell.expires = -NEVER
        cell.data, cell.wrote, cell.gone = data, True, False
        if us > cell.ts:
            cell.ts = us
        if job.ttl is None:
            cell.expires = NEVER
        else:
            cell.expires = max(cell.expires, (self.now if job.clock == "wall" else us) + job.ttl)

    def merge(self, cell: Cell, us: int, partial: bytes) -> None:
        """Take a partial slate into the stored one."""
        job = self.job
        if cell.data is not None and cell.expires <= self.now:
            cell.data = None
            cell.ts = cell.expires = -NEVER
        if cell.data is None:
            data = partial
        else:
            whole = job.merge(job.codec.decode(cell.data), job.codec.decode(partial))  # type: ignore[misc]
            data = job.codec.encode(whole)
        if len(data) > job.max_slate:
            raise RunError(
                f"{job.name}: the merged slate of {cell.key!r} has {len(data):,} bytes, more than "
                f"max_slate={job.max_slate:,}"
            )
        self._write(cell, us, data, fresh=cell.data is None)


def run_key(
    machine: Machine, cell: Cell, events: Iterable[Item], timers: list[int], alarm: bool = False
) -> None:
    """All calls of one key, in order; timers set on the way fire if their time is reached."""
    out, limit = machine.out, machine.limit
    later, out.timers = out.timers, []
    heap = sorted(set(timers))
    fired: set[int] = set()

    def collect() -> None:
        for at, owner in out.timers:
            if at < limit:
                heapq.heappush(heap, at)
            else:
                later.append((at, owner))
        out.timers = []

    def fire(before: int) -> None:
        while heap and heap[0] <= before:
            at = heapq.heappop(heap)
            if at not in fired:
                fired.add(at)
                machine.call(cell, at, -1, 0, None, timer=True)
                collect()

    for us, src, pos, packed, behind in events:
        if heap:
            fire(us)
        machine.call(cell, us, src, pos, packed, behind)
        if out.timers:
            collect()
    fire(limit)
    if alarm:
        machine.call(cell, alarm_time(machine, cell), -1, 0, None, timer=True)
        collect()
        fire(limit)
    out.timers = later


def alarm_time(machine: Machine, cell: Cell) -> int:
    """The event time of a timer that goes by the wall clock."""
    at = max(machine.closed, cell.ts)
    return at if at > -NEVER else machine.now


# -- keys ---------------------------------------------------------------------------------------


def hashes_of_values(values: list[Any]) -> tuple[UInt64, UInt64]:
    """The two hashes that name each key, as for a column of such keys."""
    hashes = np.zeros(len(values), np.uint64)
    checks = np.zeros(len(values), np.uint64)
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(_shape(value), []).append(index)
    for shape, at in groups.items():
        members = [values[index] for index in at]
        if isinstance(shape, tuple):
            columns = [_column([one[i] for one in members]) for i in range(len(shape))]
        else:
            columns = [_column(members)]
        if not columns:
            continue
        hashes[at], checks[at] = both_hashes(columns)
    return hashes, checks


def both_hashes(columns: list[pa.Array]) -> tuple[UInt64, UInt64]:
    """The same for canonical key columns."""
    return hash_keys(columns), hash_keys(columns, SECOND_HASH)


def _shape(value: Any) -> Any:
    """What can be one column; a tuple is several."""
    if isinstance(value, tuple | list):
        return tuple(
            _shape(one) if not isinstance(one, tuple | list) else "nested" for one in value
        )
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "big"
    return type(value).__name__


def _column(values: list[Any]) -> pa.Array:
    if isinstance(values[0], int) and not -(2**63) <= values[0] < 2**63:
        values = [f"integer {value}" for value in values]
    return canonical(pa.array(values))


def pack_key(value: Any) -> bytes:
    """A key as bytes; a whole number is one key, whatever type its column has."""
    return encode_key(_whole(value))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value == int_or_none(value):
        return int(value)
    if isinstance(value, tuple | list):
        return [_whole(one) for one in value]
    return value


def int_or_none(value: float) -> int | None:
    """A float as the integer it stands for, if it does."""
    return int(value) if abs(value) < 2.0**53 and value == int(value) else None


def key_text(value: Any) -> tuple[str, bool]:
    """A key as people write it, and whether it is a string."""
    if isinstance(value, str):
        return value, True
    return msgspec.json.encode(value, enc_hook=str).decode(), False


def derived_position(pos: int, src: int, key_hash: int, timer: bool, by: int) -> int:
    """The position of what a call of an updater emits: it follows from the cause, not from batches.

    `by` is the number of the updater among the origins of records.
    """
    mixed = (pos * 0x9E3779B97F4A7C15 + (src + 2) * 0xBF58476D1CE4E5B9 + 2 * by + timer) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xD6E8FEB86659FD93 + key_hash) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 2
