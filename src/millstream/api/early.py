"""Early answers: what `flow.snapshots` gives, and what may end it before all was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.frames import plainly
from millstream.durations import Duration, micros, text
from millstream.errors import ConfigError

ESTIMATE = ("", "_lower", "_upper")  # what the columns of a value end with
MARKS = ("progress", "exact")  # columns of snapshots that are rows of a stream
_USUAL = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75)  # shares at which one looks if none are given


@dataclass(frozen=True)
class Unseen:
    """What any one group that was in no block yet can hold at most."""

    blocks: int
    share: float  # of the input
    holds: dict[str, float] = field(default_factory=dict)  # of every count and sum


@dataclass(frozen=True)
class Snapshot:
    """The answer as far as it is known.

    progress: the share of the input that was read, from 0 to 1.
    table: the key columns, and for every aggregate `x` its estimate `x` with `x_lower` and
        `x_upper`, null where nothing can be said yet.
    exact: everything was read; bounds are the value itself.
    confidence, promise: how sure bounds are, and in which sense.
    unseen: what a group that is not in the table can hold at most.
    ended_by: what ended the run with this snapshot, None if it goes on.
    elapsed, left: seconds since the start of the run, and until all is read at this speed.
    heavy: the values whose tail is so long that bounds have no promise: they look as if they had
        no variance.
    notes: aggregates for which there is no estimate before the end, and why; records that are dead
        letters, which no answer has.
    """

    progress: float
    table: pa.Table
    exact: bool
    confidence: float = 0.95
    promise: str = ""
    unseen: Unseen | None = None
    ended_by: str | None = None
    elapsed: float = 0.0
    notes: tuple[str, ...] = ()
    left: float | None = None
    heavy: tuple[str, ...] = ()

    @property
    def answer(self) -> pa.Table:
        """The table without bounds: once exact, what the flow gives."""
        columns = self.table.column_names
        bounds = {f"{name}{end}" for name in values_of(columns) for end in ESTIMATE[1:]}
        return self.table.select([name for name in columns if name not in bounds])


def values_of(columns: Sequence[str]) -> list[str]:
    """Of the columns of a snapshot's table, those that have bounds beside them."""
    return [name for name in columns if all(name + end in columns for end in ESTIMATE)]


@dataclass(frozen=True)
class Bounds:
    """What ends a run over stored data early: an error, a time, or whichever comes first."""

    error: float | None = None
    share: float = 1.0
    within: int | None = None  # microseconds

    def __or__(self, other: Any) -> Bounds:
        if not isinstance(other, Bounds):
            return NotImplemented
        for name in ("error", "within"):
            if getattr(self, name) is not None and getattr(other, name) is not None:
                raise ConfigError(f"{self} | {other}: give each kind of bound once")
        by_error = self if self.error is not None else other
        within = self.within if self.within is not None else other.within
        return Bounds(by_error.error, by_error.share, within)

    def __str__(self) -> str:
        parts = []
        if self.error is not None:
            share = "" if self.share == 1 else f", share={self.share:g}"
            parts.append(f"rel_error({self.error:g}{share})")
        if self.within is not None:
            parts.append(f'time_limit("{text(self.within)}")')
        return " | ".join(parts) or "no bound"


@plainly
def rel_error(error: float, share: float = 1.0) -> Bounds:
    """End once every estimate is within this share of itself, on either side.

    share: the share of all values of the table for which that must be so; rare groups take long.
    """
    for name, value, most in (("error", error, 1.0), ("share", share, 1.0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise ConfigError(
                f"rel_error({name}={value!r}): expected a share above 0 and up to 1, like 0.01 for "
                "one in a hundred"
            )
    return Bounds(error=float(error), share=float(share))


@plainly
def time_limit(limit: Duration) -> Bounds:
    """End after so long, counted from the start of the run."""
    return Bounds(within=micros(limit, "time_limit()"))


@dataclass(frozen=True)
class Looks:
    """When to look, how sure to be, and what ends it."""

    at: tuple[float, ...] = ()
    every: int | None = None  # microseconds
    until: Bounds = Bounds()
    confidence: float = 0.95
    interval: str = "anytime"
    seed: int = 0
    step: str | None = None
    publish: Path | None = None  # a directory
    metric: Callable[[dict[str, Any]], float | None] | None = None  # share of a group that was seen
    ratios: tuple[tuple[str, tuple[str, str]], ...] = ()  # of two counts or sums, by name
    cuts: bool = True  # batches end at the shares at which one looks, not only after them

    def __post_init__(self) -> None:
        if not isinstance(self.confidence, int | float) or not 0.5 <= self.confidence < 1:
            raise ConfigError(
                f"snapshots(confidence={self.confidence!r}): expected a share from 0.5 to below 1"
            )
        if self.interval not in ("anytime", "pointwise"):
            raise ConfigError(
                f'snapshots(interval={self.interval!r}): use "anytime" (holds at all snapshots '
                'together) or "pointwise" (narrower, holds at one that is chosen beforehand)'
            )
        if self.interval == "pointwise" and self.until.error is not None:
            raise ConfigError(
                f'snapshots(interval="pointwise", until={self.until}): whoever stops when the '
                'bounds are narrow enough has chosen by them; use interval="anytime"'
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"snapshots(seed={self.seed!r}): expected a whole number from 0 on")
        if self.metric is not None and not callable(self.metric):
            raise ConfigError(
                f"snapshots(metric={self.metric!r}): expected a function that gets a row of what "
                "was seen of a group, and gives the share of the group that this is"
            )

    def when(self) -> str:
        """When one looks, in words."""
        marks = ", ".join(f"{100 * mark:g}%" for mark in self.at)
        every = f"every {text(self.every)}" if self.every is not None else ""
        return " and ".join(filter(None, (f"at {marks}" if marks else "", every, "at the end")))


@plainly
def snapshot(
    at: Iterable[float] | None = None,
    *,
    every: Duration | None = None,
    until: Bounds | None = None,
    confidence: float = 0.95,
    interval: str = "anytime",
    seed: int = 0,
    metric: Callable[[dict[str, Any]], float | None] | None = None,
    ratios: Mapping[str, tuple[str, str]] | None = None,
) -> Looks:
    """`agg(emit=ms.snapshot(at=[0.1, 0.5]), ...)`: estimates with bounds leave before the answer.

    What may be given is what `flow.snapshots` takes.
    """
    asked = {"confidence": confidence, "interval": interval, "seed": seed, "metric": metric}
    return looks(at, every, until, ratios=ratios, **asked)


def looks(
    at: Iterable[float] | None,
    every: Duration | None,
    until: Bounds | None,
    ratios: Mapping[str, tuple[str, str]] | None = None,
    **options: Any,
) -> Looks:
    """What `flow.snapshots` was asked for, checked."""
    options["ratios"] = _pairs(ratios or {})
    if at is not None and (isinstance(at, str) or not isinstance(at, Iterable)):
        raise ConfigError(f"snapshots(at={at!r}): expected a list of shares, like at=[0.1, 0.5]")
    marks = tuple(at) if at is not None else ()
    for mark in marks:
        if isinstance(mark, bool) or not isinstance(mark, int | float) or not 0 < mark <= 1:
            raise ConfigError(
                f"snapshots(at=): {mark!r} is not a share of the input; give numbers above 0 and "
                "up to 1, like at=[0.1, 0.25, 0.5]"
            )
    if until is not None and not isinstance(until, Bounds):
        raise ConfigError(
            f"snapshots(until={until!r}): expected ms.rel_error(0.01), ms.time_limit('30s') or "
            "both with |"
        )
    if every is not None:
        options["every"] = micros(every, "snapshots(every=)")
    elif not marks:
        # Whoever waits for an error to be small need not stop at shares nobody asked for.
        marks, options["cuts"] = _USUAL, until is None or until.error is None
    return Looks(tuple(sorted(set(map(float, marks)))), until=until or Bounds(), **options)


def _pairs(ratios: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, tuple[str, str]], ...]:
    found = []
    for name, pair in ratios.items():
        both = tuple(pair) if isinstance(pair, tuple | list) else ()
        if len(both) != 2 or not all(isinstance(one, str) for one in (name, *both)):
            raise ConfigError(
                f"snapshots(ratios=): {name!r}: {pair!r} is not a pair of counts or sums; give "
                'them by name, like ratios={"rate": ("clicks", "views")}'
            )
        found.append((name, (both[0], both[1])))
    return tuple(found)
