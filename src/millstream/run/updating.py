"""A group of updaters in one task: events that are due are applied, the rest waits.

Updaters outside cycles work key by key. Those of a cycle are simulated together: the next call is
always the earliest of all that are known, so that what a call publishes is seen by every later one,
whatever the batches are.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.ops.chunks import concat, decode_block, flat
from millstream.ops.codec import decode_key
from millstream.ops.events import SCHEMA
from millstream.ops.progress import BEGIN, END
from millstream.ops.records import DeadLetter
from millstream.ops.updates import (
    Cell,
    Item,
    Machine,
    Outcome,
    UpdateGroup,
    UpdateJob,
    alarm_time,
    key_text,
    run_key,
)
from millstream.run.batch import Batch, Control
from millstream.run.slates import Queue, Slates

_HOTTEST = 10  # keys that are reported
_MOST_CARRIED = 50  # batches' worth of events a cycle may leave over


class Arrival(NamedTuple):
    """An event for an updater of a group, while the group is being simulated."""

    to: int
    us: int
    src: int
    pos: int
    key_hash: int
    check: int
    packed_key: bytes
    value: bytes


@dataclass
class Surroundings:
    """What a group must know of the flow it is in."""

    group: UpdateGroup
    batch: Batch
    control: Control
    watermarks: dict[str, int]
    latest: int  # the latest event time of all input
    furthest: dict[str, int]  # updater -> a time that no watermark of its input has passed
    names: dict[int, str]  # origins by number
    publishes: dict[str, frozenset[str]]
    declared: frozenset[str]
    route: Callable[[str, Outcome], list[Arrival]]  # sends what a call gave around the cycle


@dataclass
class _Member:
    """One updater at work."""

    job: UpdateJob
    machine: Machine
    slates: Slates
    timers: Queue
    alarms: Queue
    cells: dict[tuple[int, int], tuple[Cell, int]] = field(default_factory=dict)

    def cell(self, key_hash: int, check: int, packed: bytes, shard: int) -> Cell:
        """The slate of a key; loaded alone if no other way brought it here."""
        known = self.cells.get((key_hash, check))
        if known is None:
            made = Cell(packed, key_hash, check)
            self.slates.load([made], [shard])
            self.cells[key_hash, check] = known = (made, shard)
        return known[0]


def run_group(around: Surroundings, blocks: list[bytes]) -> dict[str, Outcome]:
    """Apply what is due to all updaters of a group; segments and accounts go into the control."""
    group, batch, control = around.group, around.batch, around.control
    members = [_member(around, job) for job in group.jobs]
    first = members[0]
    tables = [decode_block(block) for block in blocks]
    waiting = Queue(first.job.name, "waiting", concat(tables) if tables else None, batch, control)
    at_once = first.job.order == "arrival"
    planned = until = END if at_once else first.machine.limit
    ready = waiting.due(BEGIN if at_once else batch.worked_to(first.job.name), until)
    rest: list[_Item] = []
    if first.job.merge is not None:
        _merge(first, ready)
    elif group.cyclic:
        until, rest = _simulate(around, members, ready, until)
    else:
        _by_key(first, ready)
    if at_once:
        waiting.forget()
    next_event = waiting.store(until, _event_rows(rest))
    for number, member in enumerate(members):
        _settle(around, member, until, next_event)
        _account(around, member, ready, number)
        if until < planned:
            control.holds[member.job.name] = until
            control.carried[member.job.name] = sum(1 for item in rest if item.to == number)
            if len(rest) > _MOST_CARRIED * batch.cycle_events:
                raise RunError(
                    f"the cycle of {group.name!r} does not settle: every event sets off more of "
                    f"them, and {len(rest):,} wait by now. Let an updater publish less; this batch "
                    "was not committed"
                )
    return {member.job.name: member.machine.out for member in members}


def _member(around: Surroundings, job: UpdateJob) -> _Member:
    batch, control = around.batch, around.control
    watermark = around.watermarks[job.name]
    machine = Machine(
        job,
        closed=batch.closed[job.name],
        limit=min(watermark, batch.limits.get(job.name, watermark)),
        now=batch.now,
        latest=around.latest if watermark >= END else None,
        streams=around.publishes.get(job.name, frozenset()),
        declared=around.declared,
        names=around.names,
        longest=batch.max_key,
    )
    return _Member(
        job,
        machine,
        Slates(job.name, batch, control),
        Queue(job.name, "timers", None, batch, control),
        Queue(job.name, "alarms", None, batch, control),
    )


# -- key by key ---------------------------------------------------------------------------------


def _by_key(member: _Member, ready: pa.Table | None) -> None:
    """The calls of every key in turn: keys do not see each other."""
    worked = member.timers.batch.worked_to(member.job.name)
    timers = _times(member, member.timers.due(worked, member.machine.limit))
    alarms = _times(member, _rung(member))
    keys: list[tuple[int, int]] = []
    starts: list[int] = [0]
    items: list[Item] = []
    if ready is not None:
        rows = _sorted(ready)
        hashes, checks = (np.asarray(flat(rows.column(name))) for name in ("hash", "check"))
        bounds = np.flatnonzero((np.diff(hashes) != 0) | (np.diff(checks) != 0)) + 1
        starts = [0, *bounds.tolist()]
        at = pa.array(starts)
        shards = flat(rows.column("shard")).take(at).to_pylist()
        packed = flat(rows.column("key")).take(at).to_pylist()
        keys = list(zip(hashes[starts].tolist(), checks[starts].tolist(), strict=True))
        for key, shard, name in zip(keys, shards, packed, strict=True):
            if key not in member.cells:
                member.cells[key] = (Cell(name, *key), shard)
        columns = [flat(rows.column(name)).to_pylist() for name in ("pane", "src", "pos", "value")]
        items = list(zip(*columns, _behind(rows), strict=True))
    cells = list(member.cells.values())
    member.slates.load([cell for cell, _ in cells], [shard for _, shard in cells])
    stops = [*starts[1:], len(items)]
    machine, call = member.machine, member.machine.call
    if machine.is_plain:
        for key, start, stop in zip(keys, starts, stops, strict=False):
            machine.call_plain(member.cells[key][0], items[start:stop])
        return
    if member.job.on_timer is None:
        for key, start, stop in zip(keys, starts, stops, strict=False):
            cell = member.cells[key][0]
            for us, src, pos, value, behind in items[start:stop]:
                call(cell, us, src, pos, value, behind)
        return
    for key, start, stop in zip(keys, starts, stops, strict=False):
        run_key(
            machine,
            member.cells[key][0],
            items[start:stop],
            timers.pop(key, []),
            alarms.pop(key, None) is not None,
        )
    for key in {**timers, **alarms}:
        run_key(machine, member.cells[key][0], (), timers.get(key, []), key in alarms)


def _behind(rows: pa.Table) -> list[int]:
    """Of late events how much earlier than when applied their time is, else 0."""
    if "behind" not in rows.column_names:  # waiting since an older version
        return [0] * len(rows)
    found: list[int] = flat(rows.column("behind")).to_pylist()
    return found


def _sorted(rows: pa.Table) -> pa.Table:
    """Events by key, and of one key in the order in which they are applied."""
    names = ("pos", "src", "pane", "check", "hash")
    order = np.lexsort(tuple(np.asarray(flat(rows.column(name))) for name in names))
    return rows.take(pa.array(order))


def _times(member: _Member, rows: pa.Table | None) -> dict[tuple[int, int], list[int]]:
    """Timers by key; their cells are made on the way."""
    found: dict[tuple[int, int], list[int]] = {}
    if rows is None:
        return found
    names = ("hash", "check", "key", "shard", "pane")
    for key_hash, check, packed, shard, at in zip(
        *(flat(rows.column(name)).to_pylist() for name in names), strict=True
    ):
        found.setdefault((key_hash, check), []).append(at)
        if (key_hash, check) not in member.cells:
            member.cells[key_hash, check] = (Cell(packed, key_hash, check), shard)
    return found


def _rung(member: _Member) -> pa.Table | None:
    """Timers by the wall clock that are due."""
    batch = member.alarms.batch
    return member.alarms.due(batch.rung.get(member.job.name, BEGIN), batch.now + 1)


def _merge(member: _Member, ready: pa.Table | None) -> None:
    """Partial slates, built where records were read, into those that are stored."""
    if ready is None:
        return
    names = ("hash", "check", "key", "shard", "pane", "value")
    rows = list(
        zip(*(flat(_sorted(ready).column(name)).to_pylist() for name in names), strict=True)
    )
    for key_hash, check, packed, shard, _, _ in rows:
        member.cells.setdefault((key_hash, check), (Cell(packed, key_hash, check), shard))
    cells = list(member.cells.values())
    member.slates.load([cell for cell, _ in cells], [shard for _, shard in cells])
    for key_hash, check, _, _, us, partial in rows:
        member.machine.merge(member.cells[key_hash, check][0], us, partial)


# -- cycles -------------------------------------------------------------------------------------


class _Item(NamedTuple):
    """A call to come; compared by time, timers first, origin and position."""

    us: int
    phase: int  # 0 timer, 1 event
    src: int
    pos: int
    number: int
    to: int
    cell: Cell
    value: bytes | None
    fresh: bool  # made in this batch
    alarm: bool = False
    hops: int = 0  # publications from the event of a source (or a timer) to this one
    behind: int = 0  # of a late event: how much earlier its own time is


def _simulate(
    around: Surroundings, members: list[_Member], ready: pa.Table | None, until: int
) -> tuple[int, list[_Item]]:
    """All calls of a cycle in order of time; gives how far it came, and what is left over."""
    heap: list[_Item] = []
    rest: list[_Item] = []
    for to, member in enumerate(members):
        limit, worked = member.machine.limit, around.batch.worked_to(member.job.name)
        for times, alarm in (
            (_times(member, member.timers.due(worked, limit)), False),
            (_times(member, _rung(member)), True),
        ):
            for key, moments in times.items():
                cell = member.cells[key][0]
                for at in set(moments) if not alarm else {0}:
                    heap.append(_Item(at, 0, -1, 0, len(heap), to, cell, None, False, alarm))
    if ready is not None:
        names = ("to", "pane", "src", "pos", "hash", "check", "key", "value", "hops")
        rows = _sorted(ready)
        columns = (flat(rows.column(name)).to_pylist() for name in names)
        for row in zip(*columns, _behind(rows), strict=True):
            to, us, src, pos, key_hash, check, packed, value, hops, behind = row
            cells = members[to].cells
            if (key_hash, check) not in cells:
                cells[key_hash, check] = (Cell(packed, key_hash, check), 0)
            cell = cells[key_hash, check][0]
            place = (us, 1, src, pos, len(heap), to)
            heap.append(_Item(*place, cell, value, False, hops=hops, behind=behind))
    for member in members:
        held = list(member.cells.values())
        member.slates.load([cell for cell, _ in held], [shard for _, shard in held])
    heap = [
        item._replace(us=alarm_time(members[item.to].machine, item.cell)) if item.alarm else item
        for item in heap
    ]
    heapq.heapify(heap)
    number, handled, last = len(heap), 0, BEGIN
    fired: set[tuple[int, int, int, int]] = set()
    while heap:
        if handled >= around.batch.cycle_events and heap[0].us > last:
            return heap[0].us, _left(members, heap, rest, around)
        item = heapq.heappop(heap)
        last = item.us
        machine = members[item.to].machine
        out = machine.out
        if item.hops > around.batch.cycle_hops:
            raise _unsettled(around, item)
        hops = item.hops + 1
        if item.phase == 0:
            timer = (item.to, item.cell.hash, item.cell.check, item.us)
            if not item.alarm:
                if timer in fired:
                    continue
                fired.add(timer)
            machine.call(item.cell, item.us, -1, 0, None, timer=True)
        else:
            machine.call(item.cell, item.us, item.src, item.pos, item.value, item.behind)
        for at, cell in out.timers:
            past_input = machine.latest is not None and at > machine.latest
            made = _Item(
                *(at, 0, -1, 0, number, item.to, cell, None, True),
                hops=hops if past_input else 0,
            )
            number += 1
            if at < machine.limit:
                heapq.heappush(heap, made)
            else:
                rest.append(made)
        out.timers = []
        for arrival in around.route(machine.job.name, out):
            handled += 1
            cell = members[arrival.to].cell(arrival.key_hash, arrival.check, arrival.packed_key, 0)
            made = _Item(
                *(arrival.us, 1, arrival.src, arrival.pos, number, arrival.to, cell),
                *(arrival.value, True),
                hops=hops,
            )
            number += 1
            if arrival.us < until:
                heapq.heappush(heap, made)
            else:
                rest.append(made)
    return until, _left(members, heap, rest, around)


def _unsettled(around: Surroundings, item: _Item) -> RunError:
    names = " and ".join(repr(job.name) for job in around.group.jobs)
    plural = "s" if len(around.group.jobs) > 1 else ""
    return RunError(
        f"the cycle of updater{plural} {names} does not settle: what one event set off has gone "
        f"round {around.batch.cycle_hops:,} times, last to the key {item.cell.key!r} of "
        f"{around.group.jobs[item.to].name!r}. Let an updater stop publishing at some point, or "
        "raise cycle_hops if so long a chain is meant; this batch was not committed"
    )


def _left(
    members: list[_Member], heap: list[_Item], rest: list[_Item], around: Surroundings
) -> list[_Item]:
    """Events that wait for the next batch and are not stored yet; timers go back to their queue."""
    at_once = members[0].job.order == "arrival"
    events = []
    for item in (*heap, *rest):
        if item.phase == 0:
            if item.fresh:
                members[item.to].machine.out.timers.append((item.us, item.cell))
        elif item.fresh or at_once:
            events.append(item)
    return events


def _event_rows(items: list[_Item]) -> pa.Table | None:
    if not items:
        return None
    columns: dict[str, list[Any]] = {
        "shard": [0] * len(items),
        "pane": [item.us for item in items],
        "to": [item.to for item in items],
        "hash": [item.cell.hash for item in items],
        "check": [item.cell.check for item in items],
        "key": [item.cell.packed for item in items],
        "src": [item.src for item in items],
        "pos": [item.pos for item in items],
        "value": [item.value for item in items],
        "hops": [item.hops for item in items],
        "behind": [0] * len(items),  # what was late is applied in the batch it came with
    }
    return pa.table(columns, schema=SCHEMA)


# -- leaving ------------------------------------------------------------------------------------


def _settle(around: Surroundings, member: _Member, until: int, next_event: int) -> None:
    """Store slates, timers and alarms; say how far the updater came and when it is due next."""
    job, machine, control = member.job, member.machine, around.control
    reached = min(machine.limit, until)
    next_timer = member.timers.store(reached, _time_rows(machine.out.timers, member))
    next_alarm = member.alarms.store(around.batch.now + 1, _time_rows(machine.out.alarms, member))
    if machine.latest is not None:  # the end of input: time stands where the input ended
        ended = max(around.latest, around.furthest[job.name])
        stands = min(reached, max(machine.closed, ended + 1 if ended > BEGIN else BEGIN))
        if stands < reached < END:  # what timers set off beyond that takes several batches
            control.worked[job.name] = reached
        reached = stands
    changed = [one for one in member.cells.values() if one[0].wrote]
    member.slates.store(changed, around.batch.now if job.clock == "wall" else reached)
    control.last_end[job.name] = reached
    control.due[job.name] = (min(next_event, next_timer), next_alarm)


def _time_rows(times: list[tuple[int, Cell]], member: _Member) -> pa.Table | None:
    if not times:
        return None
    unique = {(at, cell.hash, cell.check): cell for at, cell in times}
    cells = list(unique.values())
    return pa.table(
        {
            "shard": pa.array(
                [member.cells[cell.hash, cell.check][1] for cell in cells], pa.int32()
            ),
            "pane": pa.array([at for at, _, _ in unique], pa.int64()),
            "hash": pa.array([cell.hash for cell in cells], pa.uint64()),
            "check": pa.array([cell.check for cell in cells], pa.uint64()),
            "key": pa.array([cell.packed for cell in cells], pa.binary()),
        }
    )


def _account(around: Surroundings, member: _Member, ready: pa.Table | None, number: int) -> None:
    """Dead letters, and which keys had the most events."""
    control, name = around.control, member.job.name
    ledger = control.ledger.setdefault(name, Counter())
    if member.machine.out.fired:
        ledger["answered"] += member.machine.out.fired
    for failure in member.machine.out.failures:
        control.dead.append(DeadLetter(name, failure.src, failure.pos, failure.raw, failure.error))
        if failure.timer:
            ledger["failed"] += 1
            ledger["answered"] -= 1
        else:
            ledger["late" if failure.late else "aggregated"] -= 1
            ledger["dead"] += 1
    if ready is None:
        return
    mine = ready.filter(pc.equal(ready.column("to"), number))
    if not len(mine):
        return
    # An event is one; a partial slate is as many as were put into it where they were read.
    events = ("hops", "sum") if member.job.merge is not None else ("key", "count")
    keys = mine.select(["key", "hops"]).group_by("key", use_threads=False).aggregate([events])
    counts = np.asarray(flat(keys.column("_".join(events))))
    top = np.argsort(-counts, kind="stable")[:_HOTTEST].tolist()
    control.hot[name] = (
        int(counts.sum()),
        {key_text(decode_key(keys.column("key")[i].as_py()))[0]: int(counts[i]) for i in top},
    )
