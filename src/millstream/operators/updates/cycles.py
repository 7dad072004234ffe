"""Updaters of a cycle, simulated together: the next call is always the earliest that is known.

So what a call publishes is seen by every later one, whatever the batches are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.stores import in_order
from millstream.operators.updates.members import Member, behind
from millstream.operators.updates.work import Arrival, Work
from millstream.ops.chunks import flat
from millstream.ops.times.progress import BEGIN
from millstream.ops.updates.cells import Cell, blank_cell
from millstream.ops.updates.events import SCHEMA
from millstream.ops.updates.machine import Machine, alarm_time


class Item(NamedTuple):
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


def simulate(
    work: Work, members: list[Member], ready: pa.Table | None, until: int
) -> tuple[int, list[Item]]:
    """All calls of a cycle in order of time; gives how far it came, and what is left over."""
    cycle = _Cycle(work, members, until)
    cycle.load(ready)
    return cycle.run(), cycle.left()


class _Cycle:
    """The calls to come, and those that wait for a later batch."""

    def __init__(self, work: Work, members: list[Member], until: int) -> None:
        self.work, self.members, self.until = work, members, until
        self.heap: list[Item] = []
        self.rest: list[Item] = []
        self.fired: set[tuple[int, int, int, int]] = set()
        self.made = 0  # items so far, which orders those that are otherwise equal
        self.handled = 0  # events that came round

    def load(self, ready: pa.Table | None) -> None:
        """Timers, alarms and events that are due, with the slates of their keys."""
        for to, member in enumerate(self.members):
            for key, moments in member.times(member.timers_due()).items():
                for at in set(moments):
                    self._timer(at, to, member.cells[key], alarm=False)
            for key in member.times(member.alarms_due()):
                self._timer(0, to, member.cells[key], alarm=True)
        for row in () if ready is None else _events(in_order(ready)):
            to, us, src, pos, key_hash, check, packed, value, hops, late_by = row
            cells = self.members[to].cells
            if (key_hash, check) not in cells:
                cells[key_hash, check] = blank_cell(packed, key_hash, check)
            cell = cells[key_hash, check]
            place = (us, 1, src, pos, self._number(), to)
            self.heap.append(Item(*place, cell, value, False, False, hops, late_by))
        for member in self.members:
            member.load()
        self.heap = [
            item._replace(us=alarm_time(self.members[item.to].machine, item.cell))
            if item.alarm
            else item
            for item in self.heap
        ]
        heapq.heapify(self.heap)

    def _timer(self, at: int, to: int, cell: Cell, *, alarm: bool) -> None:
        self.heap.append(Item(at, 0, -1, 0, self._number(), to, cell, None, False, alarm))

    def _number(self) -> int:
        self.made += 1
        return self.made

    def run(self) -> int:
        """Call until nothing is due or enough has come round; gives how far that is."""
        most, last = self.work.order.cycle_events, BEGIN
        while self.heap:
            if self.handled >= most and self.heap[0].us > last:
                return self.heap[0].us
            item = heapq.heappop(self.heap)
            last = item.us
            if item.hops > self.work.order.cycle_hops:
                raise self._unsettled(item)
            machine = self.members[item.to].machine
            if self._call(machine, item):
                self._set_timers(machine, item)
                for arrival in self.work.route(machine.job.name, machine.out):
                    self._arrived(arrival, item.hops + 1)
        return self.until

    def _call(self, machine: Machine, item: Item) -> bool:
        """Call the function; False for a timer that was set twice."""
        if item.phase:
            machine.call(item.cell, item.us, item.src, item.pos, item.value, item.behind)
            return True
        timer = (item.to, item.cell.hash, item.cell.check, item.us)
        if not item.alarm:
            if timer in self.fired:
                return False
            self.fired.add(timer)
        machine.call(item.cell, item.us, -1, 0, None, timer=True)
        return True

    def _set_timers(self, machine: Machine, item: Item) -> None:
        """Timers that the last call set."""
        for at, cell in machine.out.timers:
            past_input = machine.latest is not None and at > machine.latest
            hops = item.hops + 1 if past_input else 0
            made = Item(at, 0, -1, 0, self._number(), item.to, cell, None, True, False, hops)
            self._keep(made, machine.limit)
        machine.out.timers = []

    def _arrived(self, one: Arrival, hops: int) -> None:
        """An event that the last call set off."""
        self.handled += 1
        cell = self.members[one.to].cell(one.key_hash, one.check, one.packed_key, 0)
        place = (one.us, 1, one.src, one.pos, self._number(), one.to)
        self._keep(Item(*place, cell, one.value, True, False, hops), self.until)

    def _keep(self, made: Item, until: int) -> None:
        if made.us < until:
            heapq.heappush(self.heap, made)
        else:
            self.rest.append(made)

    def left(self) -> list[Item]:
        """Events that wait and are not stored yet; timers go back to their queue."""
        at_once = self.members[0].job.order == "arrival"
        events = []
        for item in (*self.heap, *self.rest):
            if item.phase == 0:
                if item.fresh:
                    self.members[item.to].machine.out.timers.append((item.us, item.cell))
            elif item.fresh or at_once:
                events.append(item)
        return events

    def _unsettled(self, item: Item) -> RunError:
        jobs, most = self.work.group.jobs, self.work.order.cycle_hops
        names = " and ".join(repr(job.name) for job in jobs)
        return RunError(
            f"the cycle of updater{'s' if len(jobs) > 1 else ''} {names} does not settle: what one "
            f"event set off has gone round {most:,} times, last to the key {item.cell.key!r} of "
            f"{jobs[item.to].name!r}. Let an updater stop publishing at some point, or raise "
            "cycle_hops if so long a chain is meant; this batch was not committed"
        )


def _events(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Events that are due, as they were stored."""
    names = ("to", "time", "src", "pos", "hash", "check", "key", "value", "hops")
    columns = (flat(rows.column(name)).to_pylist() for name in names)
    return zip(*columns, behind(rows), strict=True)


def event_rows(items: list[Item]) -> pa.Table | None:
    """Events as they are stored."""
    if not items:
        return None
    columns: dict[str, list[Any]] = {
        "shard": [0] * len(items),
        "time": [item.us for item in items],
        "to": [item.to for item in items],
        "hash": [item.cell.hash for item in items],
        "check": [item.cell.check for item in items],
        "key": [item.cell.packed for item in items],
        "src": [item.src for item in items],
        "pos": [item.pos for item in items],
        "value": [item.value for item in items],
        "hops": [item.hops for item in items],
        "behind": [item.behind for item in items],
    }
    return pa.table(columns, schema=SCHEMA)
