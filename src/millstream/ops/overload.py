"""Overload: when more waits than can be worked off, and what is done about it.

A policy says what to do (throttle, drop, divert) and when it sets in and ends. How much is too much
is one number, the pressure: what waits as a share of what may wait, in bytes or in event time,
whichever is the larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.durations import text
from millstream.sizes import shown

WHEN = 64 << 20  # bytes that may wait, unless somebody says it
UNTIL = 0.5


@dataclass(frozen=True)
class Overload:
    """What is done with records that are too many, and from when to when."""

    kind: str  # throttle, drop or divert
    keep: str | None = None  # which of those that wait are worked on; None: as it is usual there
    stream: str | None = None  # where the others go, if they are diverted
    when: int = WHEN  # bytes that wait when it sets in
    lag: int | None = None  # or microseconds that event time is behind the clock
    until: float = UNTIL  # the share of these at which it is over

    @property
    def sheds(self) -> bool:
        """Whether records are kept from the steps after this one at all."""
        return self.kind != "throttle"

    def pressure(self, size: int, lag: int | None) -> float:
        """What waits as a share of what may: from 1 on it is too much."""
        shares = [size / self.when]
        if self.lag is not None and lag is not None:
            shares.append(lag / self.lag)
        return max(shares)

    def holds(self, pressure: float, before: bool) -> bool:
        """Whether it is overloaded: from the limit on, and then until it is well below."""
        return pressure > (self.until if before else 1.0)

    def __str__(self) -> str:
        said = [] if self.stream is None else [self.stream]
        if self.keep is not None:
            said.append(f"keep={self.keep}")
        said.append(f"when={shown(self.when)}")
        if self.lag is not None:
            said.append(f"lag={text(self.lag)}")
        if self.until != UNTIL:
            said.append(f"until={self.until:g}")
        return f"{self.kind}({', '.join(said)})"


THROTTLE = Overload("throttle")


@dataclass(frozen=True)
class Standing:
    """Where a queue stands: whether it is overloaded, since when, and how much waits."""

    since: int = 0  # the wall clock in microseconds when it set in; 0: it is not overloaded
    pressure: float = 0.0

    @property
    def on(self) -> bool:
        """Whether it is overloaded."""
        return self.since > 0

    def moved(self, policy: Overload, pressure: float, now: int) -> Standing:
        """Where it stands with so much waiting."""
        if not policy.holds(pressure, self.on):
            return Standing(0, pressure)
        return replace(self, since=self.since or max(1, now), pressure=pressure)


@dataclass(frozen=True)
class Shed:
    """Records that were kept from a step: how many, from where to where, and where they went."""

    step: str
    rows: int
    to: str | None = None  # the stream; None: nowhere
    source: int | None = None  # whose positions these are
    first: int = 0  # the position where they begin
    last: int = 0  # where they end
    keys: tuple[str, str] | None = None  # the lowest and the highest key, where keys are known
