"""Calling the functions of an updater, key by key.

A *cell* is a slate in the hands of a task. Every call gets the slate as it would come back from
the store and leaves it as bytes, so that no call sees more of another than a restart would leave,
and a call that raises leaves nothing behind. Calls of one key are in the order of
(time, timers first, origin, position); what a call emits is one microsecond later than its cause.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from millstream.errors import ConfigError, RunError
from millstream.ops.codec import decode_row, unpack_row
from millstream.ops.keys.names import derived_position
from millstream.ops.records import Row, as_json, describe, several
from millstream.ops.updates.cells import Cell, Failure, Item, Outcome, Publication
from millstream.ops.updates.contexts import Context, Event, UnforeseenStream
from millstream.ops.updates.job import NEVER, DictCodec, UpdateJob
from millstream.ops.updates.kept import Keeper

TIMER = "timer"  # what `event.stream` says of a timer


class Cause(NamedTuple):
    """The event or timer a function was called for."""

    us: int
    src: int
    pos: int
    packed: bytes | None
    timer: bool = False


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
        self.latest = latest  # where time ends, once all input has been read
        self.names = names or {}  # origins by number
        self.late = False  # the event of the current call is
        self.out = Outcome()
        self.ctx = Context(job, streams, declared, now, longest)
        codec = job.codec
        self._new, self._encode = codec.new, codec.encode
        self._decode: Callable[[bytes], Any] = codec.decode
        self.keeper = Keeper(job, now)
        self.blank, self._write = self.keeper.blank, self.keeper.write

    @property
    def is_plain(self) -> bool:
        """Whether slates are dicts that do not expire, and nobody sets timers."""
        job = self.job
        return job.ttl is None and job.on_timer is None and isinstance(job.codec, DictCodec)

    def call_plain(self, calls: Iterable[tuple[Cell, list[Item]]]) -> None:
        """`call` for the events of one key after the other, where most only change the slate."""
        ctx, fn, encode, name_of = self.ctx, self.job.fn, self._encode, self.names.get
        most, blank, by_time = self.job.max_slate, self.blank, self.job.order == "event"
        for cell, events in calls:
            key = cell.key
            for us, src, pos, packed, behind in events:
                stored = cell.data
                self.late = by_time and behind > 0
                ctx._us = us
                try:
                    slate = {} if stored is None else unpack_row(stored)
                    given = fn(Event(name_of(src, ""), us - behind, key, packed), slate, ctx)
                    if given is None and not ctx._used:
                        data = encode(slate)
                        if len(data) <= most:
                            if stored is not None or data != blank:
                                cell.data, cell.expires = data, NEVER
                                cell.wrote, cell.gone = True, False
                                if us > cell.ts:
                                    cell.ts = us
                            continue
                except BaseException as error:  # a user's function may raise anything
                    self._failed(cell, Cause(us, src, pos, packed), error)
                    continue
                self._conclude(cell, Cause(us, src, pos, packed), slate, given, stored is None)

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
        self.late = behind > 0 and job.order == "event"
        event = Event(TIMER if timer else self.names.get(src, ""), us - behind, cell.key, packed)
        ctx._us = us
        cause = Cause(us, src, pos, packed, timer)
        try:
            slate = self._new() if stored is None else self._decode(stored)
            given = (job.on_timer if timer else job.fn)(event, slate, ctx)  # type: ignore[misc]
        except BaseException as error:  # a user's function may raise anything
            self._failed(cell, cause, error)
            return
        self._conclude(cell, cause, slate, given, stored is None)

    def _conclude(self, cell: Cell, cause: Cause, slate: Any, given: Any, fresh: bool) -> None:
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
            self._failed(cell, cause, error)
            return
        self._write(cell, cause.us, data, fresh=fresh)
        if rows or ctx._used:
            self._note(cell, cause, rows)

    def _failed(self, cell: Cell, cause: Cause, error: BaseException) -> None:
        """A call that raised leaves a dead letter; a mistake of the program stops the run."""
        if isinstance(error, UnforeseenStream):
            raise error
        if isinstance(error, ConfigError):  # a mistake in the program, not in the record
            raise RunError(
                f"updater {self.job.name!r}: {error}; this batch was not committed"
            ) from error
        self.ctx._clear()
        us, src, pos, packed, timer = cause
        value = None if packed is None else decode_row(packed)
        stream = TIMER if timer else self.names.get(src, "")
        raw = as_json({"key": cell.key, "value": value, "stream": stream})
        self.out.failures.append(Failure(us, src, pos, raw, describe(error), timer, self.late))

    def _note(self, cell: Cell, cause: Cause, rows: list[Row]) -> None:
        """What a call gave and asked for."""
        ctx, out = self.ctx, self.out
        us, src, pos, _, timer = cause
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
