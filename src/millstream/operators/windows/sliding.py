"""What a windowed operator keeps from batch to batch, so that live windows cost what changes.

A slider is asked first: if the windows that leave can be had from what it keeps, panes that neither
enter nor leave are not read. If not, windows are computed from all their panes, and the slider
begins anew with these.

What is kept is of the window that left last, in every shard. Whether it is, and whether it is worth
keeping, is seen from the segments of all shards, so that all tasks decide alike: a shard without
rows then has no key in the window, however shards move between tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.stores import Kept
from millstream.operators.windows.bags import PaneBag
from millstream.operators.windows.work import Work
from millstream.ops.chunks import Chunk, numbers
from millstream.ops.windows import running, stacks
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.closing import Outcome, close
from millstream.ops.windows.jobs import Measure, WindowJob
from millstream.ops.windows.preparing import count_panes, merge_panes
from millstream.ops.windows.results import LeavingWindows, results

_MOST_STEPS = 64  # windows per batch: a backlog with more is faster in blocks
_REFRESH = 256  # slides after which running values are recomputed, so that rounding stays bounded
_GAIN = 4  # panes per key from which on running values are cheaper
_GAIN_STACKS = 8  # likewise panes per row of tops; a key has up to two


Load = Callable[[], pa.Table | None]


class Slider(Protocol):
    """How the windows of one operator go on from batch to batch."""

    name: str  # of the strategy
    entered: int  # panes that entered windows in this batch, of all keys

    def slide(self) -> Chunk | None:
        """The windows that leave, and what is kept brought up to date; None if that needs panes."""

    def begin(self, load: Load) -> None:
        """Keep what follows from all panes (merged), as of the windows that leave now."""

    def stale(self) -> bool:
        """Whether panes are needed although no window leaves."""


def slider_of(work: Work, job: WindowJob, bag: PaneBag | None) -> Slider | None:
    """The slider of an operator; None if its windows are always computed from panes or values."""
    if bag is not None and running.can_run(job):
        return RunningValues(work, job, bag)
    if bag is not None and stacks.can_stack(job):
        return KeptStacks(work, job, bag)
    return None


class _Sliding:
    """What both sliders look at."""

    def __init__(self, work: Work, job: WindowJob, bag: PaneBag) -> None:
        self.work, self.job, self.bag = work, job, bag
        self.closed, self.closing = work.closed(job), work.closing(job)
        self.steps = (self.closing - self.closed) // job.span.step
        self.entered = 0

    def late(self, first: int) -> pa.Table | None:
        """New rows for panes from `first` on that windows which have left already held."""
        if self.bag.new is None or self.bag.first_new() >= self.closed:
            return None
        pane = numbers(self.bag.new, "pane")
        rows = self.bag.new.filter(pa.array((pane >= first) & (pane < self.closed)))
        return rows if len(rows) else None

    def stale(self) -> bool:
        """Whether records came for panes of what is kept although no window leaves."""
        return self.steps == 0 and self.covers_all()

    def covers_all(self) -> bool:
        """Whether all tasks will have what they keep as of `closing` if this one has."""
        return self.steps > 0 or self.kept().valid(self.closed)

    def kept(self) -> Kept:
        """What says of which window is kept."""
        raise NotImplementedError

    def complete(self, end: int, measures: tuple[Measure, ...]) -> bool:
        """Whether all panes of a window have the states of some measures: they may be new."""
        since = self.work.order.since
        begun = [since[m.state] for m in measures if m.state in since]
        return all(at <= (end - self.job.span.panes) * self.job.span.pane for at in begun)

    def nothing(self) -> Chunk:
        """No window leaves."""
        number = self.work.numbers[self.job.name]
        outcome = close(self.job, None, None, self.closed, self.closing, number)
        return self.work.account(self.job, outcome.last, outcome)

    def answer(self, found: LeavingWindows, answers: Answers) -> Chunk:
        """The windows that left, as rows."""
        chunk, dead = results(self.job, self.work.numbers[self.job.name], found, answers)
        outcome = Outcome(chunk, self.closing, dead, len(found.key))
        return self.work.account(self.job, outcome.last, outcome)

    def compare(self, found: Chunk, hint: str) -> None:
        """In debug mode: stop if results are not what recomputing from panes gives."""
        if not self.work.batch.debug:
            return
        panes = self.bag.all_rows()
        if panes is not None and len(panes):
            panes = merge_panes(self.work.family, panes)
        number = self.work.numbers[self.job.name]
        again = close(self.job, panes, None, self.closed, self.closing, number)
        wrong = running.disagreement(self.job, found, again.chunk, panes, hint)
        if wrong is not None:
            raise RunError(wrong)


class RunningValues(_Sliding):
    """One value per key: panes that enter are added, panes that leave are taken away."""

    name = "running values"

    def __init__(self, work: Work, job: WindowJob, bag: PaneBag) -> None:
        super().__init__(work, job, bag)
        self.store = Kept(work.family.name, f"running {job.name}", work.batch, work.control)

    def _complete(self, end: int) -> bool:
        return self.complete(end, (*self.job.measures, running.PRESENCE))

    def slide(self) -> Chunk | None:
        """None also where recomputing is cheaper, or due because of rounding."""
        closed, closing, every = self.closed, self.closing, self.job.span.step * _REFRESH
        late = self.late(closed - self.job.span.panes)
        if self.steps == 0 and late is None:
            return self.nothing()
        refresh = closed // every != closing // every
        if self.steps > _MOST_STEPS or refresh or not self._complete(closed):
            return None
        if self.bag.size() < _GAIN * self.store.size() or not self.store.valid(closed):
            return None
        width = self.job.span.panes
        panes = self.bag.rows_in((closed - width, closing - width), (closed, closing))
        self.entered = count_panes(self.work.family, panes, closed, closing)
        values = self.store.rows()
        if values is None and panes is None and late is None:
            return self.nothing()
        advanced = running.advance(self.job, values, panes, late, closed, closing)
        if not advanced.sure:
            return None
        chunk = self.answer(advanced.found, advanced.answers)
        self.compare(chunk, "is uncombine the inverse of combine?")
        self.store.replace(advanced.running)
        return chunk

    def kept(self) -> Kept:
        """The values."""
        return self.store

    def begin(self, load: Load) -> None:
        """Where the next batch is likely to gain from them."""
        if not self.covers_all():
            return
        panes = None
        if self.steps <= _MOST_STEPS and self._complete(self.closing):
            panes = load()
        values = None if panes is None else running.recompute(self.job, panes, self.closing)
        self.store.replace(values)


class KeptStacks(_Sliding):
    """Two stacks per key: a front that knows what is left after each pane, and a back."""

    name = "kept stacks"

    def __init__(self, work: Work, job: WindowJob, bag: PaneBag) -> None:
        super().__init__(work, job, bag)
        self.tops = Kept(work.family.name, f"tops {job.name}", work.batch, work.control)
        self.front = Kept(work.family.name, f"front {job.name}", work.batch, work.control)
        self.first = self.closed + job.span.step - job.span.panes  # pane of windows to come

    def slide(self) -> Chunk | None:
        """None also if the front is used up, or has changed."""
        closed, closing, width = self.closed, self.closing, self.job.span.panes
        late = self.late(self.first)
        if self.steps == 0 and late is None:
            return self.nothing()
        if not self._possible(closed) or not self.tops.valid(closed) or closing - width > closed:
            return None
        tops = self.tops.rows()
        if stacks.used_up(tops, closing - width):
            return None
        if late is not None:
            if not stacks.in_back(tops, late):
                return None
            tops = stacks.absorb(self.job, tops, late, closed)
        if self.steps == 0:
            self.tops.replace(tops)
            return self.nothing()
        gone = self.front.rows_in((closed - width, closing - width))
        panes = self.bag.rows_in((self.first, closing - width), (closed, closing))
        self.entered = count_panes(self.work.family, panes, closed, closing)
        advanced = stacks.advance(self.job, tops, gone, panes, closed, closing)
        chunk = self.answer(advanced.found, advanced.answers)
        self.compare(chunk, "is combine associative and commutative?")
        self.tops.replace(advanced.tops)
        return chunk

    def kept(self) -> Kept:
        """The tops."""
        return self.tops

    def _possible(self, end: int) -> bool:
        gain = self.bag.total().rows >= _GAIN_STACKS * self.tops.total().rows
        pays = gain or self.steps == 0
        return self.steps <= _MOST_STEPS and pays and self.complete(end, self.job.measures)

    def begin(self, load: Load) -> None:
        """Flip; where that does not pay, what is stored stays and is no longer valid."""
        if not self._possible(self.closing) or not self.covers_all():
            return
        front, tops = stacks.flip(self.job, load(), self.closing) or (None, None)
        self.front.replace(front)
        self.tops.replace(tops)
