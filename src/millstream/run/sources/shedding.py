"""A source under an overload policy, in the driver: which pieces a batch sets aside.

What is shed is decided with the batch that takes it, and committed with it as all that it reads: a
batch that was not committed is planned again, and nothing is dropped, diverted or read twice. A
policy looks at what waits (`Tracker.pending`) and at event time. While it holds, a batch takes what
it can process from the newest or the oldest end, and sets the rest aside until so much is left that
it is over (`until`). What fits into one batch is never shed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

from millstream.durations import text
from millstream.graph import nodes
from millstream.operators.protocol import Known, Throttling
from millstream.ops.overload import Overload, Standing
from millstream.plan.stages import Plan, upstream
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.splits import AnySplit, Aside
from millstream.state.manifests import OVERLOADED, SourceState

_log = logging.getLogger("millstream")

_ROW_BYTES = 64.0  # assumed until rows have been read
_MOST = 16  # times what a batch reads that it sets aside at most
_COUNTED = 0.05  # what a row costs that is only counted, against one that is read


def shedding(
    inner: Tracker,
    name: str,
    policy: Overload,
    state: SourceState,
    clock: Callable[[], float] = time.time,
) -> Tracker:
    """A source with its policy; one that is throttled takes what it can as it is."""
    return cast(Tracker, Shedding(inner, name, policy, state, clock)) if policy.sheds else inner


def held_sources(plan: Plan, known: Callable[[], Known]) -> set[str]:
    """The sources that are not read in the next batch, because an operator below throttles them.

    What an operator has to do without them it does in that batch, so this cannot last for ever.
    """
    may = [one for one in plan.operators.values() if isinstance(one, Throttling)]
    if not may:
        return set()
    now = known()
    busy = [step for one in may if one.throttles(now) for step in one.steps]
    above = (one for step in busy for one in upstream(plan, plan.node(step)))
    return {one.name for one in above if isinstance(one, nodes.Source)}


def bytes_read(tracker: Tracker, waited: int) -> int:
    """Bytes that a batch reads of a source; what is set aside says nothing of what rows cost.

    Compressed files may turn out to be longer than they looked.
    """
    if isinstance(tracker, Shedding):
        return max(0, tracker.kept)
    return max(0, waited - tracker.pending())


class Shedding:
    """A tracker that sets pieces of another aside; what is not said here is as without a policy."""

    def __init__(
        self,
        inner: Tracker,
        name: str,
        policy: Overload,
        state: SourceState,
        clock: Callable[[], float],
    ) -> None:
        self.inner, self.name, self.policy, self._clock = inner, name, policy, clock
        self.standing = Standing(state.extra.get(OVERLOADED, 0))
        self._told = self.standing
        self._state = state
        self._row_bytes, self.kept, self._waited = _ROW_BYTES, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # -- a batch ----------------------------------------------------------------------------------

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """Pieces for a batch, of which some may be set aside."""
        waiting, policy = self.inner.pending(), self.policy
        self._waited = waiting
        room = min(size, int(rows * self._row_bytes))
        now = int(self._clock() * 1e6)
        pressure = policy.pressure(waiting, self.lag(now)) if waiting > room else 0.0
        self.standing = self.standing.moved(policy, pressure, now)
        if not self.standing.on:
            return self._take(rows, size, parts)
        leave, most = int(waiting * policy.until / pressure), _MOST * size
        if policy.keep != "oldest":
            aside = self.skip(min(waiting - room - leave, most), parts)
            return [*aside, *self._take(rows, size, parts)]
        kept = self._take(rows, size, parts)
        return [*kept, *self.skip(min(self.inner.pending() - leave, most), parts)]

    def skip(self, size: int, parts: int) -> list[AnySplit]:
        """Pieces of at most so many bytes that are set aside."""
        if size <= 0:
            return []
        to = self.policy.stream
        return [Aside(piece, to) for piece in self.inner.skip(size, parts)]  # type: ignore[arg-type]

    def _take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        before = self.inner.pending()
        kept = self.inner.take(rows, size, parts)
        self.kept = before - self.inner.pending()
        return kept

    def lag(self, now: int) -> int | None:
        """How far event time, as far as it was read, is behind the clock."""
        top = self._state.top
        return None if top is None else max(0, now - top)

    def weigh(self, split: AnySplit) -> float:
        """About how many rows a piece has, those that are only counted as the less they cost."""
        if isinstance(split, Aside):
            return self.inner.weigh(split.piece) * (_COUNTED if split.to is None else 1.0)
        return self.inner.weigh(split)

    def together(self, split: AnySplit) -> int:
        """As without a policy."""
        return self.inner.together(split.piece if isinstance(split, Aside) else split)

    def learn(self, rows: int, size: int = 0) -> None:
        """How many rows there were in the pieces that were not set aside."""
        if rows and self.kept > 0:
            self._row_bytes = max(1.0, self.kept / rows)
        self.inner.learn(rows, size)

    # -- the commit -------------------------------------------------------------------------------

    def save(self, state: SourceState) -> None:
        """Whether it is overloaded is committed too, so that a restart goes on where it was."""
        self.inner.save(state)
        self._state = state
        if self.standing.on:
            state.extra[OVERLOADED] = self.standing.since
        else:
            state.extra.pop(OVERLOADED, None)

    def committed(self) -> None:
        """Say when overload set in and when it is over."""
        self.inner.committed()
        before, now = self._told, self.standing
        if now.on and not before.on:
            _log.warning(
                "source %r is overloaded: %s wait, %.1f times what %s allows; until it is over "
                "the %s is processed and the rest %s",
                self.name,
                f"{self._waited / 2**20:,.1f} MB",
                now.pressure,
                self.policy,
                self.policy.keep or "newest",
                "dropped" if self.policy.stream is None else f"goes to {self.policy.stream!r}",
            )
        elif before.on and not now.on:
            seconds = max(0, int(self._clock()) - before.since // 1_000_000)
            _log.warning(
                "source %r is no longer overloaded, after %s", self.name, text(seconds * 1_000_000)
            )
        self._told = now
