"""The scheduler: hands the room of a batch to queues, in the order in which a policy ranks them.

A batch has room for so many seconds of work and so many bytes of rows. If all that waits fits into
it, everybody gets what there is. Else a source gives less, and an operator that comes too late in
the order is not let go as far as its input has come: its clock is held back in this batch. What
comes for it is stored all the same, and its answers come with a later batch, the same as ever.

Nobody starves. A source always gives a little. An operator that got nothing for `PATIENCE` requests
comes first, and whoever comes first gets on, at least by one window or one moment. If that did not
move its clock, the next time it is not held at all; and if no clock moved, nobody is: then sources
give as much less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from random import Random
from typing import Any

from millstream.errors import RunError
from millstream.operators.protocol import Known
from millstream.ops.records import describe
from millstream.plan.stages import Plan
from millstream.run.pressure.queues import Costs, Waits, operator_queues, source_queues
from millstream.scheduling import BY_NAME, Policy, Queue, Request
from millstream.state.holdings import Holdings

PATIENCE = 8  # requests in a row that may give an operator nothing
SMALL = 20_000  # rows that an operator is never made to wait with: they cost less than a batch
LEAST = 1_000  # rows that a source gives at least, and an operator works on if it does at all
LITTLE = 1 << 20  # or so many bytes, where rows are large


@dataclass(frozen=True)
class Room:
    """What a batch has room for."""

    seconds: float  # of work, of all tasks together
    rows: int  # that a source gives at most
    size: int  # the same in bytes
    memory: float = math.inf  # bytes of rows, in and out of queues
    used: float = 0.0  # share that rows have of what processes leave of the memory budget


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
        self._stood: tuple[Any, ...] = ()  # where everybody was when somebody was held last

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
        operators = operator_queues(plan, known, holdings, costs, self.passed)
        asked = [one for one in sources if one.queue.ready]
        asked += [one for one in operators if one.queue.ready or (asked and one.arrives)]
        work = _Work(room)
        work.read(asked, (), {one.queue.name: room.rows for one in sources})
        for one in operators:
            work.do(one, one.queue.ready, work.rows)
        if work.seconds >= 0 and work.memory >= 0:
            self.passed, self._partly, self._stood = {}, {}, ()
            granted = {one.queue.name: (room.rows, room.size) for one in sources}
            return Grants(granted, {}, work.size)
        stands = _stands(operators, pending)
        stuck, self._stood = stands == self._stood, stands
        request = Request(known.manifest.batch + 1, room.used, self._draw(known))
        return self._hand_out(self._in_order(asked, request, ask), room, sources, stuck)

    def _draw(self, known: Known) -> float:
        return Random(f"{self.seed}/{known.manifest.batch + 1}").random()

    def _in_order(
        self, asked: list[Waits], request: Request, ask: Callable[[str, Callable[[], Any]], Any]
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
                given = self.policy.rank(queue, request)
                found = float(given) if isinstance(given, Real) else math.nan
            except BaseException as error:  # a user's policy may raise anything
                raise RunError(
                    f"scheduler {_name(self.policy)}: rank() failed for {queue.name!r} with "
                    f"{describe(error)}; it must give a number for every queue"
                ) from error
            if math.isnan(found):
                raise RunError(
                    f"scheduler {_name(self.policy)}: rank() gave {given!r} for {queue.name!r}; "
                    "expected a number that can be compared"
                )
            ranks[queue.name] = found
        return ranks

    def _hand_out(
        self, order: list[Waits], room: Room, sources: list[Waits], stuck: bool
    ) -> Grants:
        """Serve queues in an order; `stuck`: holding operators moved nothing, so none is held."""
        work = _Work(room)
        granted = {
            one.queue.name: (min(room.rows, LEAST), min(room.size, LITTLE)) for one in sources
        }
        holds: dict[str, int] = {}
        before, self._partly = self._partly, {}
        served: list[Waits] = []
        self.passed = {}
        free = [
            one for one in order if one.backlog is not None and (stuck or not one.backlog.holdable)
        ]
        for place, one in enumerate(order):
            if one in served:
                continue
            if one.backlog is None:
                wanted = min(one.queue.ready, room.rows)
                rest = [
                    other for other in order[place + 1 :] if other.backlog and other not in free
                ]
                least = min(room.rows, _least(one))
                while little := _with_little(
                    rest, work.rows + max(least, work.fits(one, wanted, free))
                ):
                    # They will not be held, so what they make of these rows has to fit, too.
                    for other in little:
                        work.do(other, other.queue.ready, work.rows)
                        rest.remove(other)
                    free += little
                    served += little
                rows = max(least, work.fits(one, wanted, free))
                granted[one.queue.name] = (
                    rows,
                    min(room.size, int(rows * one.queue.input_size) + 1),
                )
                work.read([one], free, {one.queue.name: rows})
                continue
            arrived = 0 if one in free else work.rows
            all_rows = one.queue.ready + round(one.arrives * arrived)
            rows = work.fits(one, all_rows, ())
            if rows < all_rows > SMALL and one not in free:
                rows = max(rows, LEAST, SMALL) if one is order[0] else rows
                at = self._held_at(one, rows, before)
                if at is not None:
                    holds.update(dict.fromkeys(one.steps, at))
                    work.do(one, rows if rows >= LEAST else 0, 0)
                    continue
            work.do(one, one.queue.ready, arrived)
            if one not in free:  # what is read from here on it works on at once
                free.append(one)
        return Grants(granted, holds, work.size)

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


def _stands(operators: list[Waits], pending: Mapping[str, int]) -> tuple[Any, ...]:
    """Where everybody is: as long as somebody is held, somebody else must move."""
    clocks = ((one.queue.name, one.backlog and one.backlog.worked) for one in operators)
    return (*sorted(pending.items()), *clocks)


class _Work:
    """What of the room of a batch is left, and what is done with the rest.

    Rows that are read go on at once to the operators that are free to work on them. They count with
    what comes out: what goes in is what the source gave.
    """

    def __init__(self, room: Room) -> None:
        self.seconds, self.memory = room.seconds, room.memory
        self.size = 0.0  # bytes of rows that go in and out
        self.rows = 0  # that are read

    def read(self, sources: list[Waits], free: Iterable[Waits], most: Mapping[str, int]) -> None:
        """Read of some sources, with all that this brings to operators that are free."""
        free = list(free)
        for one in sources:
            if one.backlog is None:
                rows = min(one.queue.ready, most[one.queue.name])
                self.rows += rows
                self._take(rows, *self._of_row(one, free))

    def do(self, one: Waits, stored: int, arrived: int) -> None:
        """Let an operator work on stored rows, and on what so many that were read bring it."""
        self._take(stored, *self._of_row(one, ()))
        self._take(arrived, *self._arriving(one))

    def fits(self, one: Waits, rows: int, free: Iterable[Waits]) -> int:
        """How many of some rows there is room for."""
        seconds, size = self._of_row(one, free)
        return int(rows * min(_part(self.seconds, rows * seconds), _part(self.memory, rows * size)))

    def _take(self, rows: float, seconds: float, size: float) -> None:
        self.seconds -= rows * seconds
        self.memory -= rows * size
        self.size += rows * size

    def _of_row(self, one: Waits, free: Iterable[Waits]) -> tuple[float, float]:
        """Seconds and bytes of a row: as it goes in, what comes of it, and what that brings."""
        queue = one.queue
        more = [self._arriving(other) for other in free]
        seconds = queue.seconds + sum(much for much, _ in more)
        size = queue.input_size + queue.selectivity * queue.output_size
        return seconds, size + sum(much for _, much in more)

    def _arriving(self, one: Waits) -> tuple[float, float]:
        queue = one.queue
        return one.arrives * queue.seconds, one.arrives * queue.selectivity * queue.output_size


def _with_little(operators: list[Waits], read: int) -> list[Waits]:
    """Those that are not held, whenever it is their turn, if so many rows are read."""
    return [one for one in operators if one.queue.ready + one.arrives * read <= SMALL]


def _least(source: Waits) -> int:
    """How many rows a source gives at least."""
    size = source.queue.input_size
    return min(LEAST, max(1, int(LITTLE / size))) if size else LEAST


def _part(left: float, wanted: float) -> float:
    """Which part of what is wanted is left."""
    return 1.0 if not wanted or wanted <= left else max(0.0, left) / wanted


def _name(policy: Policy) -> str:
    return type(policy).__name__
