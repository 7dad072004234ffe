"""Which executors get no tasks for now, because they are far slower than the others.

Every batch waits for its slowest task, and its later tasks for blocks that lie where that one ran.
So an executor is *accused* if its tasks took several times as long as those of others in the same
stage, and gets no more from then on. That may have been the fault of its records. So it is *tried*
with a piece of work that is the same everywhere, beside the batches, and gets tasks again as soon
as that takes no longer there than elsewhere. Accused again soon after that, it is tried while it
has tasks. One that has just come is tried before it gets any: its processes begin with imports, for
which batches would wait. Nothing here knows Spark.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

_SLOW = 3.0  # times as long as elsewhere: it is accused
_LEAST = 0.25  # seconds more than elsewhere: below that nobody cares
_WELL = 2.0  # times as long as elsewhere at most: it is well
_SINGLE = 16  # tasks without others in their stage that are compared with each other
_SOON, _LATE = 0.5, 30.0  # seconds from one trial to the next: twice as many every time
_SPARED, _SPARED_LONGEST = 10.0, 300.0  # seconds for which one that was well has tasks if accused
_DOUBT = 1.0  # seconds between its trials, if it is


@dataclass(frozen=True)
class Ran:
    """A task of a stage, and how long it took: up to now, if it has not ended."""

    stage: int
    executor: str
    seconds: float
    counted: bool  # it gave what its stage needed


@dataclass
class _Standing:
    """An executor that is there."""

    state: str = "well"  # "new", "out" (both get no tasks) or "doubted": accused while spared
    next: float = 0.0  # when it may be tried, unless it is well
    pause: float = _SOON  # until it is tried again, if it stays out
    spared: float = 0.0  # seconds for which it has tasks if accused, since it was found well
    until: float = 0.0  # the end of these

    @property
    def idle(self) -> bool:
        """Whether it gets no tasks."""
        return self.state in ("new", "out")


class Sidelines:
    """The executors that get no tasks, from what tasks took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._there: dict[str, _Standing] = {}
        self._single: deque[Ran] = deque(maxlen=_SINGLE)  # those of small batches, one a stage

    @property
    def out(self) -> Collection[str]:
        """Who gets no tasks."""
        return {executor for executor, one in self._there.items() if one.idle}

    def keep(self, there: Collection[str]) -> None:
        """Forget executors that are gone, and let new ones wait for a trial.

        Where most of the others would be out none is, and where nobody would be left nobody is.
        """
        come = "new" if self._there else "well"
        self._there = {one: self._there.get(one) or _Standing(come) for one in there}
        if self._room() < 0:
            self._let_in("out")
        if all(one.idle for one in self._there.values()):
            self._let_in("new", "out")

    def _let_in(self, *states: str) -> None:
        for one in self._there.values():
            if one.state in states:
                one.state, one.next = "well", 0.0

    def _room(self) -> int:
        """How many more may be out, of those that had tasks: at least half of them are left."""
        states = Counter(one.state for one in self._there.values())
        return (states.total() - states["new"]) // 2 - states["out"]

    def accuse(self, ran: Iterable[Ran]) -> dict[str, float]:
        """Who was far slower than the others in some stage, the slowest first, and how many times.

        One that was found well lately is not among them, but due to be tried: its records may have
        been others.
        """
        stages: dict[int, list[Ran]] = {}
        for one in ran:
            stages.setdefault(one.stage, []).append(one)
        for stage in [stage for stage, tasks in stages.items() if len(tasks) == 1]:
            self._single += stages.pop(stage)
        stages[-1] = list(self._single)
        found: dict[str, float] = {}
        now = self._clock()
        for executor, times in (slow for tasks in stages.values() for slow in _slower(tasks)):
            known = self._there.get(executor, _Standing())
            if known.idle:
                continue
            if now < known.until:
                known.state = "doubted"
            else:
                found[executor] = max(found.get(executor, 0.0), times)
        return dict(sorted(found.items(), key=_slowest))

    def sideline(self, accused: Iterable[str], there: Collection[str]) -> list[str]:
        """Give accused ones no more tasks, as long as at least half of the others are left."""
        self.keep(there)
        new = []
        for executor in accused:
            known = self._there.get(executor)
            if known is not None and not known.idle and self._room() > 0:
                known.state, known.next, known.pause = "out", self._clock(), _SOON
                self._single.clear()
                new.append(executor)
        return new

    def due(self) -> list[str]:
        """Who is to be tried now."""
        now = self._clock()
        return [e for e, one in self._there.items() if one.state != "well" and one.next <= now]

    def is_new(self, executor: str) -> bool:
        """Whether one that is out has come and never had a task."""
        return executor in self._there and self._there[executor].state == "new"

    def tried(
        self, executors: Collection[str], took: Mapping[str, float]
    ) -> tuple[list[str], list[str]]:
        """Who of those tried gets tasks again, and who had some and gets no more.

        By the seconds that the same work took in each that did it. One that did not come to do it
        is as busy or slow as before. Of a new one it is enough that it did: its records will show
        the rest.
        """
        others = (s for one, s in took.items() if one not in {*self.out, *executors})
        most = _WELL * min(others, default=math.nan)  # of one that may have been busy
        back, gone, now = [], [], self._clock()
        for executor in executors:
            known, seconds = self._there.get(executor), took.get(executor)
            if known is None:
                continue
            if not known.idle:
                known.state, known.next = "well", now + _DOUBT
                if seconds is None or seconds > most:
                    gone += self.sideline([executor], self._there)
            elif seconds is not None and (known.state == "new" or seconds <= most):
                if known.state == "out":
                    known.spared = min(_SPARED_LONGEST, 2 * known.spared or _SPARED)
                    known.until = now + known.spared
                known.state, known.next = "well", 0.0
                back.append(executor)
            else:
                known.next, known.pause = now + known.pause, min(_LATE, 2 * known.pause)
        return back, gone


def _slower(tasks: list[Ran]) -> Iterator[tuple[str, float]]:
    """Who was far slower than the others in one stage, and how many times."""
    by: dict[str, list[Ran]] = {}
    for one in tasks:
        by.setdefault(one.executor, []).append(one)
    counted = sorted(one.seconds for one in tasks if one.counted)
    for executor, mine in by.items():
        rest = len(counted) - sum(one.counted for one in mine)
        own = statistics.fmean(one.seconds for one in mine)
        if not rest or own < _limit(counted[(rest - 1) // 2]):  # the others' median is no less
            continue
        usual = statistics.median(t.seconds for t in tasks if t.executor != executor and t.counted)
        if own >= _limit(usual):
            yield executor, own / max(usual, 1e-3)


def _limit(usual: float) -> float:
    return max(_SLOW * usual, usual + _LEAST)


def _slowest(found: tuple[str, float]) -> tuple[float, str]:
    return -found[1], found[0]
