"""Updaters by their definition: one call at a time, in one order, from one heap.

All updaters of a cycle are simulated together. Events and timers wait in a heap in the order of
(time, timers first, origin, position, creation); what a call publishes goes through the steps in
between and comes back into the heap. A slate is kept as its codec stores it, so that a call that
raises has changed nothing.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from millstream.durations import Duration, micros
from millstream.errors import ConfigError, RunError
from millstream.graph import nodes
from millstream.ops.keys.names import derived_position, hashes_of_values
from millstream.ops.updates.job import UpdateJob
from millstream.testing.reference.records import Record, Row, as_key, identity, moment, several

LONGEST_KEY = 1024  # bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = (datetime(9000, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Discovered(Exception):
    """An updater published to a stream it was not known to publish to."""

    def __init__(self, updater: nodes.Node, stream: str) -> None:
        super().__init__(updater.name, stream)
        self.updater, self.stream = updater, stream


class NotModelled(ConfigError):
    """A function asks for something this interpreter does not do: not an error of the function."""


class Event(NamedTuple):
    """What functions are called with."""

    key: Any
    value: Any
    ts: datetime
    stream: str


class Context:
    """What functions may ask for; it is looked at after the call, if that has not raised."""

    def __init__(self, job: UpdateJob, us: int, streams: frozenset[str]) -> None:
        self._job, self._us, self._streams = job, us, streams
        self.published: list[tuple[str, Any, Any]] = []
        self.timers: list[int] = []
        self.deleted = False
        self.replaced: list[Any] = []

    @property
    def ts(self) -> datetime:
        """The time of the event."""
        return moment(self._us)

    def publish(self, stream: str, key: Any, value: Any) -> None:
        """Send an event to a stream."""
        if stream not in self._streams:
            raise ConfigError(f"there is no stream {stream!r}")
        if self._job.merge is not None:
            raise ConfigError("an updater with merge cannot publish")
        if len(msgspec.msgpack.encode(key)) > LONGEST_KEY:
            raise ValueError("the key is too long")
        self.published.append((stream, as_key(_travelled(key)), _travelled(value)))

    def timer(
        self, *, after: Duration | None = None, at: datetime | None = None, clock: str | None = None
    ) -> None:
        """Have `on_timer` called."""
        if self._job.on_timer is None or (after is None) == (at is None):
            raise ConfigError("ctx.timer() needs on_timer=, and either after= or at=")
        if (clock or self._job.clock) != "event":
            raise NotModelled("reference() does not know timers by the wall clock")
        if after is not None:
            moment_ = self._us + micros(after, "ctx.timer(after=)")
        elif isinstance(at, datetime) and at.tzinfo is not None:
            moment_ = (at - _EPOCH) // timedelta(microseconds=1)
        else:
            raise ConfigError(f"ctx.timer(at={at!r}) needs a datetime with a time zone")
        if moment_ >= _END:
            raise ValueError("no timer is set beyond the year 8999")
        self.timers.append(max(moment_, self._us + 1))

    def replace(self, slate: Any) -> None:
        """Put another slate in the place of this one."""
        self.replaced = [slate]

    def delete(self) -> None:
        """Remove the slate."""
        self.deleted = True


def _travelled(value: Any) -> Any:
    """A value as it arrives elsewhere: tuples are lists. What cannot be stored raises."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


@dataclass(frozen=True)
class Slate:
    """A stored slate: until `expires` it is there."""

    data: bytes
    ts: int
    expires: float


@dataclass(frozen=True)
class Call:
    """An event or a timer of one key of one updater."""

    updater: nodes.Update
    name: Any  # the key, so that equal ones are equal
    ts: int
    timer: bool
    origin: int
    position: int
    created: int
    value: Any = None
    behind: int = 0  # of a late event: how much earlier its own time is than when it is applied

    @property
    def place(self) -> tuple[int, bool, int, int, int]:
        """Its place in the order of all calls."""
        return self.ts, not self.timer, self.origin, self.position, self.created


@dataclass
class State:
    """What one updater keeps."""

    slates: dict[Any, Slate] = field(default_factory=dict)
    keys: dict[Any, Any] = field(default_factory=dict)
    timers: dict[tuple[int, Any], Call] = field(default_factory=dict)
    waiting: list[Call] = field(default_factory=list)
    inbox: list[tuple[int, Record]] = field(default_factory=list)  # with the number of the input
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Times:
    """Where event time stands at a group of updaters in one batch."""

    before: float  # the watermark before the batch
    until: float  # and with it
    latest: float = math.inf  # where time ends, once all input was read


@dataclass
class Updaters:
    """All updaters of a flow. `push` gives records to the steps after one."""

    origins: list[nodes.Node]
    streams: dict[str, nodes.Published]
    targets: dict[nodes.Node, set[str]]
    push: Callable[[nodes.Node, list[Record], Callable[[nodes.Node], bool]], None]
    push_late: Callable[[nodes.Node, list[Record]], None]
    states: dict[nodes.Node, State] = field(default_factory=dict)
    created: int = 0
    together: list[nodes.Node] = field(default_factory=list)  # the steps of the cycle at hand
    leaving: dict[nodes.Node, list[Record]] = field(default_factory=dict)

    def arrive(self, node: nodes.Update, number: int, records: list[Record]) -> None:
        """Records of one of the inputs of an updater."""
        self.states.setdefault(node, State()).inbox += [(number, one) for one in records]

    def run(self, together: list[nodes.Node], times: Times) -> None:
        """All calls of a batch of the updaters of one cycle (or of one that is in none).

        What leaves the cycle goes on when all calls are done.
        """
        self.together, self.leaving = together, {}
        self._run([node for node in together if isinstance(node, nodes.Update)], times)
        for node, records in self.leaving.items():
            self.push(node, records, lambda consumer: consumer not in together)

    def _run(self, group: list[nodes.Update], times: Times) -> None:
        heap: list[tuple[tuple[int, bool, int, int, int], Call]] = []
        for node in group:
            state = self.states.setdefault(node, State())
            due = [one for one in state.waiting if one.ts < times.until]
            state.waiting = [one for one in state.waiting if one.ts >= times.until]
            due += [one for (at, _), one in state.timers.items() if at < times.until]
            heap += [(one.place, one) for one in due]
        heapq.heapify(heap)
        while True:
            for node in group:
                for call in self._admitted(node, times):
                    heapq.heappush(heap, (call.place, call))
            if not heap:
                return
            _, call = heapq.heappop(heap)
            state = self.states[call.updater]
            if call.timer:
                del state.timers[call.ts, call.name]
            for timer in self._call(call, state, times):
                if (timer.ts, timer.name) not in state.timers:
                    state.timers[timer.ts, timer.name] = timer
                    if timer.ts < times.until:
                        heapq.heappush(heap, (timer.place, timer))

    def slates(self, reached: dict[nodes.Node, float]) -> dict[str, dict[Any, Any]]:
        """Per updater and key the slates that are there at these times."""
        return {
            node.name: {
                state.keys[name]: node.job.codec.decode(slate.data)
                for name, slate in state.slates.items()
                if slate.expires > reached[node]
            }
            for node, state in self.states.items()
            if isinstance(node, nodes.Update)
        }

    # -- events ---------------------------------------------------------------------------------

    def _admitted(self, node: nodes.Update, times: Times) -> list[Call]:
        """New events that are to be applied in this batch; others are kept, or set aside."""
        state, out = self.states[node], []
        inbox, state.inbox = state.inbox, []
        for number, record in inbox:
            state.counts["offered"] += 1
            in_order = node.job.order == "event"
            late = in_order and record.late
            if late and node.job.late == "divert":
                state.counts["diverted"] += 1
                self.push_late(node, [record])
                continue
            call = self._event(node, number, record)
            if call is None:
                state.counts["dead"] += 1
                continue
            state.counts["late"] += late
            if in_order and call.ts >= times.until:
                state.waiting.append(call)
            else:
                out.append(call)
        return out

    def _event(self, node: nodes.Update, number: int, record: Record) -> Call | None:
        """A record as an event; None if it has no key to be had."""
        keys = node.keys[number]
        values = [record.row.get(name) for name in keys]
        if None in values and node.null_keys[number] == "dead":
            return None
        key = as_key(values[0] if len(values) == 1 else values)
        if len(msgspec.msgpack.encode(key)) > LONGEST_KEY:
            return None
        value: Any = dict(record.row)
        if keys == ("key",) and set(record.row) == {"key", "value"}:
            value = record.row["value"]
        name = identity(key, exact=False)
        self.states[node].keys.setdefault(name, key)
        self.created += 1
        applied = record.ts if record.due is None else max(record.due, record.ts)
        at = (applied, False, record.source, record.position, self.created)
        return Call(node, name, *at, value, applied - record.ts)

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, call: Call, state: State, times: Times) -> list[Call]:
        """One call and all that comes of it; gives the timers it set."""
        node, job = call.updater, call.updater.job
        key = state.keys[call.name]
        old = state.slates.get(call.name)
        if old is not None and old.expires <= max(call.ts, times.before):
            old = None
        ctx = Context(job, call.ts, frozenset(self.streams))
        try:
            rows, data = self._applied(call, key, old, ctx)
        except (Discovered, NotModelled):
            raise
        except Exception:  # a user's function may raise anything: the event is a dead letter
            state.counts["failed" if call.timer else "dead"] += 1
            state.counts["late"] -= call.behind > 0 and job.order == "event"
            return []
        for stream, _, _ in ctx.published:
            self._expect(node, stream)
        self._store(call, state, old, data)
        key_hash = int(hashes_of_values([key])[0][0])
        number = self.origins.index(node)
        position = derived_position(call.position, call.origin, key_hash, call.timer, number)
        made: dict[nodes.Node, list[Row]] = {node: rows}
        for stream, to, value in ctx.published:
            made.setdefault(self.streams[stream], []).append({"key": to, "value": value})
        for origin, given in made.items():
            number = self.origins.index(origin)
            records = [Record(call.ts + 1, number, position, row) for row in given]
            self.leaving.setdefault(origin, []).extend(records)
            self.push(origin, records, self._inside)
        if call.timer and call.ts > times.latest:
            return []  # the input has ended: what recurs ends too
        return [self._timer(call, at) for at in ctx.timers]

    def _inside(self, consumer: nodes.Node) -> bool:
        return consumer in self.together

    def _applied(
        self, call: Call, key: Any, old: Slate | None, ctx: Context
    ) -> tuple[list[Row], bytes | None]:
        """The rows a call gives, and what it leaves as slate (None: no slate)."""
        job = call.updater.job
        codec, function = job.codec, job.on_timer if call.timer else job.fn
        assert function is not None
        stream = "timer" if call.timer else self.origins[call.origin].name
        event = Event(key, copy.deepcopy(call.value), moment(call.ts - call.behind), stream)
        slate = codec.new() if old is None or job.merge else codec.decode(old.data)
        rows = several(function(event, slate, ctx))
        if ctx.replaced:
            (slate,) = ctx.replaced
        data = codec.encode(slate)
        if job.merge is not None:
            if rows:
                raise ConfigError("an updater with merge cannot return records")
            if old is not None:
                data = codec.encode(job.merge(codec.decode(old.data), codec.decode(data)))
        if ctx.deleted:
            return rows, None
        if len(data) > job.max_slate:
            raise ValueError("the slate is too large")
        return rows, data

    def _store(self, call: Call, state: State, old: Slate | None, data: bytes | None) -> None:
        job = call.updater.job
        if data is None:
            state.slates.pop(call.name, None)
            return
        if old is None and data == job.codec.encode(job.codec.new()):
            return  # nothing was put into it: it was never there
        expires = math.inf if job.ttl is None else call.ts + job.ttl
        ts = call.ts
        if old is not None:
            ts, expires = max(ts, old.ts), max(expires, old.expires)
        state.slates[call.name] = Slate(data, ts, expires)

    def _timer(self, call: Call, at: int) -> Call:
        self.created += 1
        return Call(call.updater, call.name, at, True, -1, 0, self.created)

    def _expect(self, node: nodes.Update, stream: str) -> None:
        if stream in self.targets[node]:
            return
        if node.publishes is None:
            raise Discovered(node, stream)
        raise RunError(
            f"updater {node.name!r} publishes to {stream!r}, which is not among its "
            f"publishes={list(node.publishes)}"
        )


def check_update(node: nodes.Update) -> None:
    """Refuse what is not modelled."""
    if node.job.clock == "wall" and (node.job.ttl is not None or node.job.on_timer is not None):
        raise ConfigError(
            f'{node.name}: reference() does not know the wall clock; use update(..., clock="event")'
        )
