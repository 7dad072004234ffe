"""The workflow buffer: what waits before every source, operator and sink, and what its rows cost.

Nothing of it is held in memory. What a source has and nobody read lies where it came from, or in
the spool; rows of a keyed operator that it has not worked on lie in its store, on the disk of the
checkpoint; results that wait to become larger files are staged. So a queue is figures, made of the
last manifest and of what the trackers know, and a manifest keeps those after its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.operators.batch import Control
from millstream.operators.protocol import Backlog, Known, Operator
from millstream.ops.times.progress import BEGIN, END
from millstream.plan.reaching import furthest
from millstream.plan.stages import Plan
from millstream.scheduling import Queue
from millstream.state.bases import Change
from millstream.state.holdings import Holdings
from millstream.state.manifests import Manifest, QueueState
from millstream.state.segments import Segment, rows_between, time_of

SOURCE, OPERATOR, SINK = "source", "operator", "sink"
_OLD = 0.7  # weight of all that was measured before a batch that brings as many rows as usual
_ROW = 64.0  # bytes of a row nobody has seen


class Cost(NamedTuple):
    """What the rows of a queue were measured to cost: sums in which the last batches count most."""

    taken: float = 0.0
    taken_size: float = 0.0
    given: float = 0.0
    given_size: float = 0.0
    seconds: float = 0.0

    def after(self, new: Cost) -> Cost:
        """With what a batch brought; one that brought no rows says nothing of them.

        What was measured is forgotten as rows come, and not with every batch: work on rows that
        came long ago, and what it gives, stands beside these rows.
        """
        if not new.taken and not new.seconds:
            return self
        usual = (1 - _OLD) * self.taken
        old = _OLD ** min(1.0, new.taken / usual) if usual else _OLD
        return Cost(*(old * before + now for before, now in zip(self, new, strict=True)))

    @property
    def input_size(self) -> float:
        """Bytes of a row that goes in."""
        return self.taken_size / self.taken if self.taken else _ROW

    @property
    def output_size(self) -> float:
        """Bytes of a row that comes out."""
        return self.given_size / self.given if self.given else 0.0

    @property
    def selectivity(self) -> float:
        """Rows that come out for one that goes in."""
        return self.given / self.taken if self.taken else 0.0

    @property
    def per_row(self) -> float:
        """Seconds that a row takes."""
        return self.seconds / self.taken if self.taken else 0.0


@dataclass(frozen=True)
class Waits:
    """A queue with what the scheduler needs to hand out work from it."""

    queue: Queue
    level: int  # exchanges from the sources
    arrives: float = 0.0  # rows that come to an operator for each that is read
    furthest: int = END  # of an operator: no watermark before the end of its input is beyond it
    steps: tuple[str, ...] = ()
    backlog: Backlog | None = None
    segments: tuple[Segment, ...] = ()

    def stays(self) -> int:
        """Where the clock of an operator stands."""
        assert self.backlog is not None
        return max(BEGIN, self.backlog.moment(self.backlog.worked))

    def up_to(self, rows: int) -> int | None:
        """How far it goes so that it works on about so many stored rows; None if there are none."""
        assert self.backlog is not None
        worked = self.backlog.worked
        first = _first(self.segments, worked)
        if first >= END:
            return None
        cut = time_of(list(self.segments), worked, max(1, rows))
        last = max(one.high for one in self.segments) + 1
        return self.backlog.lets(max(last if cut is None else cut, first + 1))


def queue_of(operator: Operator) -> str:
    """The name of its queue: that of its step, or of all that share it."""
    return " + ".join(operator.steps)


class Costs:
    """What rows cost, of every queue."""

    def __init__(self, manifest: Manifest) -> None:
        self._costs = {
            name: Cost(one.taken, one.taken_size, one.given, one.given_size, one.seconds)
            for name, one in manifest.queues.items()
        }
        self._arrives: dict[str, float] = {}  # queue -> rows for each that was read, lately

    def of(self, name: str) -> Cost:
        """Of one."""
        return self._costs.get(name, Cost())

    def arrives(self, name: str) -> float:
        """The rows that come to an operator for each that is read."""
        return self._arrives.get(name, 0.0)

    def learn(self, plan: Plan, controls: Iterable[Control], sizes: Mapping[str, int]) -> float:
        """Take in what the tasks of a batch measured; gives the bytes that went in and out.

        What one operator gives to another counts once, as the scheduler counts it.

        sizes: bytes that were read of sources.
        """
        queues = {one.name: queue_of(one) for one in plan.operators.values()}
        new: dict[str, Cost] = {}

        def add(name: str, more: Cost) -> None:
            one = new.get(name, Cost())
            new[name] = Cost(*(a + b for a, b in zip(one, more, strict=True)))

        read = 0
        arrived: dict[str, int] = {}
        for control in controls:
            for source, (rows, seconds) in control.read.items():
                add(source, Cost(taken=rows, seconds=seconds))
                read += rows
            for name, worked in control.worked.items():
                gave = Cost(0, 0, worked.rows, worked.size, worked.seconds)
                add(queues.get(name, name), gave)
            for operator, (rows, size) in control.sent.items():
                name = queues[operator]
                add(name, Cost(taken=rows, taken_size=size))
                arrived[name] = arrived.get(name, 0) + rows
        for source, size in sizes.items():
            if size and source in new:
                add(source, Cost(taken_size=size))
        for name, cost in new.items():
            self._costs[name] = self.of(name).after(cost)
        if read:
            for name in {*arrived, *self._arrives}:
                before = self._arrives.get(name, arrived.get(name, 0) / read)
                self._arrives[name] = _OLD * before + (1 - _OLD) * arrived.get(name, 0) / read
        return sum(sizes.values()) + sum(one.given_size for one in new.values())


def source_queues(
    plan: Plan, known: Known, costs: Costs, pending: Mapping[str, int], passed: Mapping[str, int]
) -> list[Waits]:
    """What was admitted and is not read yet."""
    assert known.times is not None
    found = []
    for node in plan.sources():
        name, cost, size = node.name, costs.of(node.name), pending[node.name]
        progress = known.times.progress[name]
        rows = 0 if not size else max(1, round(size / max(cost.input_size, 1.0)))
        head = _moment(progress.on_time(), progress.top) if size else None
        figures = _figures(name, SOURCE, cost, passed)
        found.append(Waits(Queue(rows=rows, ready=rows, bytes=size, head=head, **figures), 0))
    return found


def operator_queues(
    plan: Plan, known: Known, holdings: Holdings, costs: Costs, passed: Mapping[str, int]
) -> list[Waits]:
    """Rows that lie in the stores of operators."""
    assert known.times is not None
    reach = furthest(plan, known.times.progress, known.manifest.told)
    found = []
    for operator in plan.operators.values():
        backlog = operator.backlog(known)
        if backlog is None:
            continue
        name, segments = queue_of(operator), holdings.spread(backlog.owner, backlog.tables)
        cost = costs.of(name)
        watermark = max(known.times.inputs[step] for step in operator.steps)
        rows = rows_between(segments, backlog.worked, END)
        ready = rows_between(segments, backlog.worked, backlog.closes(watermark))
        figures = _figures(name, OPERATOR, cost, passed)
        size, head = round(rows * cost.input_size), _head(backlog, segments)
        if head is None:  # what comes is as old as what the sources read next
            head = _oldest(known)
        queue = Queue(rows=rows, ready=ready, bytes=size, head=head, **figures)
        last = min(reach[step] for step in operator.steps)
        level = plan.level_of(operator)
        brings, steps = costs.arrives(name), operator.steps
        found.append(Waits(queue, level, brings, last, steps, backlog, tuple(segments)))
    return found


def _figures(name: str, kind: str, cost: Cost, passed: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "input_size": cost.input_size,
        "output_size": cost.output_size,
        "selectivity": cost.selectivity,
        "seconds": cost.per_row,
        "passed": passed.get(name, 0),
    }


def _oldest(known: Known) -> int | None:
    assert known.times is not None
    times = (_moment(one.on_time(), one.top) for one in known.times.progress.values())
    return min((at for at in times if at is not None), default=None)


def _moment(at: int | None, top: int | None) -> int | None:
    """How far event time has come; without a lateness the latest time that was read says it."""
    return next((one for one in (at, top) if one is not None and BEGIN < one < END), None)


def _head(backlog: Backlog, segments: Iterable[Segment]) -> int | None:
    first = _first(segments, backlog.worked)
    return backlog.moment(first) if backlog.timed and first < END else None


def _first(segments: Iterable[Segment], worked: int) -> int:
    return min((max(one.low, worked) for one in segments if one.high >= worked), default=END)


def settled(
    plan: Plan,
    known: Known,
    holdings: Holdings,
    change: Change,
    costs: Costs,
    pending: Mapping[str, int],
    held: Mapping[str, int],
) -> dict[str, QueueState]:
    """What waits after a batch; `known` has its manifest."""
    manifest, found = known.manifest, {}
    for node in plan.sources():
        state, size = manifest.sources[node.name], pending[node.name]
        cost, at = costs.of(node.name), state.watermark
        if at is not None and BEGIN < at < END:
            at += node.spec.lateness_micros() or 0
        rows, head = (
            round(size / max(cost.input_size, 1.0)),
            _moment(at, state.top) if size else None,
        )
        found[node.name] = _state(SOURCE, rows, size, head, False, cost)
    for operator in plan.operators.values():
        name, backlog = queue_of(operator), operator.backlog(known)
        cost = costs.of(name)
        if backlog is None:
            found[name] = _state(OPERATOR, 0, 0, None, False, cost)
            continue
        segments = holdings.spread(backlog.owner, backlog.tables, change)
        rows = rows_between(segments, backlog.worked, END)
        size, head = round(rows * cost.input_size), _head(backlog, segments)
        is_held = any(step in held for step in operator.steps)
        found[name] = _state(OPERATOR, rows, size, head, is_held, cost)
    for sink, waiting in manifest.waiting.items():
        rows, size = (sum(getattr(one, of) for one in waiting) for of in ("rows", "size"))
        since = min((int(one.since * 1e6) for one in waiting), default=None)
        found[sink] = QueueState(SINK, rows, size, since)
    return found


def _state(kind: str, rows: int, size: int, head: int | None, held: bool, cost: Cost) -> QueueState:
    return QueueState(kind, rows, size, head, held, *cost)
