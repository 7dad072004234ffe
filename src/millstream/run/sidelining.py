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

import statistics
import time
from collections import deque
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
class _Out:
    """An executor that gets no tasks."""

    next: float  # when it is tried
    new: bool = False  # it never had any
    pause: float = _SOON


@dataclass
class _Spared:
    """An executor that was accused, and found well."""

    seconds: float
    until: float
    next: float = 0.0  # when it may be tried again
    accused: bool = False  # again


class Sidelines:
    """The executors that get no tasks, from what tasks took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._there: set[str] = set()
        self._out: dict[str, _Out] = {}
        self._single: deque[Ran] = deque(maxlen=_SINGLE)  # those of small batches, one a stage
        self._spared: dict[str, _Spared] = {}

    @property
    def out(self) -> Collection[str]:
        """Who gets no tasks."""
        return self._out.keys()

    def keep(self, there: Collection[str]) -> None:
        """Forget executors that are gone, and let new ones wait for a trial.

        Where most of the others would be out none is, and where nobody would be left nobody is.
        """
        for known in (self._out, self._spared):
            for gone in known.keys() - set(there):
                del known[gone]
        if self._there:
            now = self._clock()
            self._out |= {one: _Out(now, new=True) for one in set(there) - self._there}
        self._there = set(there)
        if self._room() < 0:
            self._out = {one: out for one, out in self._out.items() if out.new}
        if not self._there - self._out.keys():
            self._out.clear()

    def _room(self) -> int:
        """How many more may be out, of those that had tasks: at least half of them are left."""
        new = sum(one.new for one in self._out.values())
        return (len(self._there) - new) // 2 - (len(self._out) - new)

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
        for tasks in stages.values():
            for executor, times in _slower(tasks):
                if executor not in self._out:
                    found[executor] = max(found.get(executor, 0.0), times)
        now = self._clock()
        spared = {one for one, known in self._spared.items() if now < known.until}
        for executor in spared & found.keys():
            self._spared[executor].accused = True
        return dict(sorted(((e, x) for e, x in found.items() if e not in spared), key=_slowest))

    def sideline(self, accused: Iterable[str], there: Collection[str]) -> list[str]:
        """Give accused ones no more tasks, as long as at least half of the others are left."""
        self.keep(there)
        new = []
        for executor in accused:
            if executor in there and executor not in self._out and self._room() > 0:
                self._out[executor] = _Out(self._clock())
                self._single.clear()
                new.append(executor)
        return new

    def due(self) -> list[str]:
        """Who is to be tried now."""
        now = self._clock()
        out = [executor for executor, one in self._out.items() if one.next <= now]
        doubted = (e for e, one in self._spared.items() if one.accused and one.next <= now)
        return [*out, *(executor for executor in doubted if executor not in self._out)]

    def is_new(self, executor: str) -> bool:
        """Whether one that is out has come and never had a task."""
        return executor in self._out and self._out[executor].new

    def tried(
        self, executors: Collection[str], took: Mapping[str, float]
    ) -> tuple[list[str], list[str]]:
        """Who of those tried gets tasks again, and who had some and gets no more.

        By the seconds that the same work took in each that did it. One that did not come to do it
        is as busy or slow as before. Of a new one it is enough that it did: its records will show
        the rest.
        """
        others = [s for one, s in took.items() if one not in self._out and one not in executors]
        back, gone = [], []
        for executor in executors:
            seconds, out = took.get(executor), self._out.get(executor)
            compared = seconds is not None and bool(others)
            slow = compared and took[executor] > _WELL * min(others)  # which may have been busy
            if out is None:
                gone += self._doubted(executor, slow or seconds is None)
            elif (out.new and seconds is not None) or (compared and not slow):
                self._let_in(executor)
                back.append(executor)
            else:
                out.next, out.pause = self._clock() + out.pause, min(_LATE, 2 * out.pause)
        return back, gone

    def _let_in(self, executor: str) -> None:
        if self._out.pop(executor).new:
            return
        before = self._spared.get(executor)
        seconds = _SPARED if before is None else min(_SPARED_LONGEST, 2 * before.seconds)
        self._spared[executor] = _Spared(seconds, self._clock() + seconds)

    def _doubted(self, executor: str, slow: bool) -> list[str]:
        """One that was accused while it was spared, and tried: it is out if it is slow."""
        known = self._spared.get(executor)
        if known is not None:
            known.accused, known.next = False, self._clock() + _DOUBT
        return self.sideline([executor], self._there) if slow else []


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
