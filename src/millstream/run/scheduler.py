"""The scheduler: hands the room of a batch to queues, in the order in which a policy ranks them.

A batch has room for so many seconds of work and so many bytes of rows. If all that waits fits into
it, everybody gets what there is. Else a source gives less, and an operator that comes too late in
the order is not let go as far as its input has come: its clock is held back in this batch. What
comes for it is stored all the same, and its answers come with a later batch, the same as ever.

Nobody starves. A source always gives a little. An operator that got nothing for `PATIENCE` requests
comes first, and whoever comes first gets on, at least by one window or one moment. If that did not
move its clock, the next time it is not held at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from millstream.errors import RunError
from millstream.operators.protocol import Known
from millstream.plan.stages import Plan
from millstream.run.queues import Costs, Waits, operator_queues, source_queues
from millstream.scheduling import BY_NAME, Policy, Queue, Request
from millstream.state.holdings import Holdings

PATIENCE = 8  # requests in a row that may give an operator nothing
SMALL = 20_000  # rows that an operator is never made to wait with: they cost less than a batch
LEAST = 1_000  # rows that a source gives at least, and an operator works on if it does at all


@dataclass(frozen=True)
class Room:
    """What a batch has room for."""

    seconds: float  # of work, of all tasks together
    rows: int  # that a source gives at most
    size: int  # the same in bytes
    memory: float = math.inf  # bytes of rows, in and out of queues
    used: float = 0.0  # share of the memory budget


@dataclass(frozen=True)
class Grants:
    """What a batch takes from whom."""

    sources: dict[str, tuple[int, int]] = field(default_factory=dict)  # rows and bytes at most
    holds: dict[str, int] = field(default_factory=dict)  # keyed step -> how far it goes at most
    size: float = 0.0  # bytes of rows that go in and out of queues, about


class Scheduler:
    """One flow's."""

    def __init__(self, policy: Policy, seed: str) -> None:
        self.policy, self.seed = policy, seed
        self.passed: dict[str, int] = {}  # queue -> requests in a row that gave it nothing
        self._partly: dict[str, int] = {}  # operator held half-way -> where it stood then

    def request(
        self,
        plan: Plan,
        known: Known,
        holdings: Holdings,
        costs: Costs,
        pending: Mapping[str, int],
        room: Room,
        ask: Callable[[str, Callable[[], Any]], Any],
    ) -> Grants:
        """Hand out the room of the next batch."""
        sources = source_queues(plan, known, costs, pending, self.passed)
        read = sum(min(one.queue.rows, room.rows) for one in sources)
        operators = operator_queues(plan, known, holdings, costs, self.passed, read)
        asked = [one for one in (*sources, *operators) if one.queue.ready]
        wanted = {one.queue.name: self._wanted(one, room) for one in asked}
        seconds = sum(wanted[one.queue.name] * one.queue.seconds for one in asked)
        size = sum(wanted[one.queue.name] * _bytes(one.queue) for one in asked)
        if seconds <= room.seconds and size <= room.memory:
            self.passed, self._partly = {}, {}
            return Grants({one.queue.name: (room.rows, room.size) for one in sources}, {}, size)
        request = Request(known.manifest.batch + 1, room.used, self._draw(known))
        order = self._in_order(asked, request, ask)
        return self._hand_out(order, wanted, room, sources)

    def _wanted(self, one: Waits, room: Room) -> int:
        """Rows that somebody would work on if there were nobody else."""
        return min(one.queue.ready, room.rows) if one.backlog is None else one.queue.ready

    def _draw(self, known: Known) -> float:
        return Random(f"{self.seed}/{known.manifest.batch + 1}").random()

    def _in_order(
        self,
        asked: list[Waits],
        request: Request,
        ask: Callable[[str, Callable[[], Any]], Any],
    ) -> list[Waits]:
        """Who waited too long, then by rank; of two alike whoever is further from the sources."""
        queues = [one.queue for one in asked]
        own = type(self.policy) in BY_NAME.values()
        rank = self._rank
        ranks = (
            rank(queues, request)
            if own
            else ask(f"scheduler {_name(self.policy)}", lambda: rank(queues, request))
        )
        return sorted(
            asked,
            key=lambda one: (
                -one.queue.passed if one.queue.passed >= PATIENCE else 0,
                -ranks[one.queue.name],
                -one.level,
                one.queue.name,
            ),
        )

    def _rank(self, queues: list[Queue], request: Request) -> dict[str, float]:
        ranks = {}
        for queue in queues:
            try:
                found = float(self.policy.rank(queue, request))
            except Exception as error:
                raise RunError(
                    f"scheduler {_name(self.policy)}: rank() failed for {queue.name!r} with "
                    f"{type(error).__name__}: {error}; it must give a number for every queue"
                ) from error
            if math.isnan(found):
                raise RunError(
                    f"scheduler {_name(self.policy)}: rank() gave {found!r} for {queue.name!r}; "
                    "expected a number that can be compared"
                )
            ranks[queue.name] = found
        return ranks

    def _hand_out(
        self, order: list[Waits], wanted: dict[str, int], room: Room, sources: list[Waits]
    ) -> Grants:
        seconds, memory, size = room.seconds, room.memory, 0.0
        granted = {one.queue.name: (LEAST, room.size) for one in sources}
        holds: dict[str, int] = {}
        before, self._partly = self._partly, {}
        self.passed = {}
        for one in order:
            queue, all_rows = one.queue, wanted[one.queue.name]
            needs = all_rows * queue.seconds, all_rows * _bytes(queue)
            rows = int(all_rows * min(1.0, _part(seconds, needs[0]), _part(memory, needs[1])))
            if one.backlog is None:
                rows = max(LEAST, rows)
                much = min(room.size, int(rows * queue.input_size) + 1)
                granted[queue.name] = (rows, much)
            elif rows < all_rows > SMALL and one.backlog.holdable:
                rows = max(rows, LEAST) if one is order[0] else rows
                at = self._held_at(one, rows, before)
                rows = all_rows if at is None else rows
                holds.update({} if at is None else dict.fromkeys(one.steps, at))
            else:
                rows = all_rows
            seconds -= rows * queue.seconds
            memory -= rows * _bytes(queue)
            size += rows * _bytes(queue)
        return Grants(granted, holds, size)

    def _held_at(self, one: Waits, rows: int, before: dict[str, int]) -> int | None:
        """How far an operator goes that may work on so many rows; None: as far as it can.

        Where only the end of the input leads nobody is held: time stands where the input ended.
        """
        assert one.backlog is not None
        name, stands = one.queue.name, one.backlog.worked
        at = one.stays() if rows < LEAST else one.up_to(rows)
        if at is None or at > one.furthest or (rows >= LEAST and before.get(name) == stands):
            return None
        if rows < LEAST:
            self.passed[name] = one.queue.passed + 1
        else:
            self._partly[name] = stands
        return at


def _bytes(queue: Queue) -> float:
    """Bytes that a row has in memory on its way: as it goes in, and what comes of it."""
    return queue.input_size + queue.selectivity * queue.output_size


def _part(left: float, wanted: float) -> float:
    """Which part of what is wanted is left."""
    return 1.0 if wanted <= left else max(0.0, left) / wanted


def _name(policy: Policy) -> str:
    return type(policy).__name__
