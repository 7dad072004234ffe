"""A group of updaters' share of a batch in one task: how far it goes, and what it has to report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.operators.batch import Batch, Clocks, Control
from millstream.ops.updates.cells import Outcome
from millstream.ops.updates.job import UpdateGroup


@dataclass(frozen=True)
class Relief:
    """What an updater that is overloaded does about it in a batch."""

    since: int  # the wall clock when it set in
    before: int | None  # what entered and is due before it is dropped, if newer events are kept
    rows: int  # events that are due

    @property
    def closed(self) -> bool:
        """Whether what comes is turned away; else what is there."""
        return self.before is None


@dataclass(frozen=True)
class Order:
    """What the tasks of a group must know of the last manifest."""

    closed: dict[str, int]  # updater -> the time before which everything has been applied
    rung: dict[str, int]  # updater -> wall clock up to which its timers have fired
    worked: dict[str, int]  # updater -> how far it came beyond the end of the input
    cycle_events: int  # published events a cycle handles in one batch
    cycle_hops: int  # and how often one may go round
    relief: dict[str, Relief] = field(default_factory=dict)  # updaters that are overloaded
    keeping: frozenset[str] = frozenset()  # updaters that do not flush their slates in this batch

    def worked_to(self, updater: str) -> int:
        """The time before which an updater has done everything."""
        return self.worked.get(updater, self.closed[updater])


@dataclass
class Report:
    """What a task tells the driver of a group."""

    last_end: dict[str, int] = field(default_factory=dict)  # updater -> how far it came
    carried: dict[str, int] = field(default_factory=dict)  # events of a cycle that were left over
    worked: dict[str, int] = field(default_factory=dict)  # updaters that are beyond the input
    due: dict[str, tuple[int, int]] = field(default_factory=dict)  # updater -> next event, alarm
    hot: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)  # events, top keys


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


@dataclass(frozen=True)
class Origins:
    """Where records of a flow come from, and who publishes where."""

    names: dict[int, str]  # by their number
    publishes: dict[str, frozenset[str]]  # updater -> streams
    declared: frozenset[str]  # all streams that are published to


@dataclass
class Work:
    """One group's share of a batch in one task."""

    group: UpdateGroup
    order: Order
    report: Report
    batch: Batch
    control: Control
    clocks: Clocks
    origins: Origins
    route: Callable[[str, Outcome], list[Arrival]]  # sends what a call gave around the cycle
