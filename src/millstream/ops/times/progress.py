"""Progress: how far every participant of every source is, and the watermark that follows.

A watermark W means: no record with a time before W is still expected. The same pure functions run
in the driver (to plan) and in every keyed task (to close windows in the very batch that moved it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from millstream.ops.times.shares import Shares, Spell, Taken, remembered

END = 2**62  # the watermark after the end of all input, in microseconds
BEGIN = -(2**62)


@dataclass(frozen=True)
class Horizon:
    """What of a source is still to come once the pieces taken so far have been read."""

    unread: int | None = None  # the first time of files not begun; None if there are none
    files: dict[int, int] = field(default_factory=dict)  # files that go on -> how far they are
    clock: int | None = None  # arrival time: all that was received before this has been taken
    heard: dict[int | str, int] = field(default_factory=dict)  # who -> the clock when last heard of
    taken: int | None = None  # the clock up to which all that came has been taken, if it is known
    since: int = 0  # the clock from which on all that was sent could come


@dataclass
class Reached:
    """How far the records of one source came in one task."""

    top: int = BEGIN  # the latest time of all
    latest: dict[str, int] = field(default_factory=dict)  # participant -> latest time
    files: dict[int, int] = field(default_factory=dict)  # the same for files that go on
    taken: Taken = field(default_factory=Taken)  # where its records went, if overload keeps some
    spells: tuple[Spell, ...] = ()  # the same of the events of an updater, whose times are known

    def merge(self, other: Reached) -> None:
        """Take in what another task saw."""
        self.top = max(self.top, other.top)
        raise_all(self.latest, other.latest)
        raise_all(self.files, other.files)
        self.taken.merge(other.taken)
        self.spells = remembered((*self.spells, *other.spells))


def raise_all(into: dict[str, int] | dict[int, int], by: dict[str, int] | dict[int, int]) -> None:
    """Raise every value to the one given, if that is higher."""
    for who, at in by.items():
        into[who] = max(at, into.get(who, at))  # type: ignore[index, arg-type]


@dataclass(frozen=True)
class SourceProgress:
    """What is known of one source: the latest event time per participant, and the rules."""

    lateness: int | None  # None: complete, nothing leaves before the end of the source
    latest: dict[str, int] = field(default_factory=dict)  # participant -> latest event time
    idle: frozenset[str] = frozenset()  # silent for longer than the idle timeout
    ended: bool = False  # all of it has been read
    silent: bool = False  # nothing came from anyone for longer than the idle timeout
    horizon: Horizon = Horizon()
    awaited: frozenset[str] = frozenset()  # declared participants that still hold everything back
    undeclared: bool = False  # bounded, and who takes part is only known at its end
    top: int = BEGIN  # the latest time of all
    shares: Shares | None = None  # what became of its records, if overload keeps some back

    def watermark(self) -> int | None:
        """The time before which this source delivers nothing more; None if it holds nothing."""
        if self.ended:
            return END
        if self.lateness is None:
            return BEGIN
        if self.horizon.clock is not None:
            return self.horizon.clock - self.lateness
        if self.awaited or self.undeclared:
            return BEGIN
        holding = [at for who, at in self.latest.items() if who not in self.idle]
        holding.extend(self.horizon.files.values())
        if self.horizon.unread is not None:
            holding.append(self.horizon.unread)
        if holding:
            return max(BEGIN, min(holding) - self.lateness)
        return None if self.silent else BEGIN

    def on_time(self) -> int | None:
        """The watermark if nothing were out of order: how far event time itself has come."""
        if self.lateness is None or self.ended:
            return self.watermark()
        return replace(self, lateness=0).watermark()

    def furthest(self) -> int:
        """The latest time of all: no watermark before the end of the source is beyond it."""
        return max(self.top, BEGIN if self.horizon.clock is None else self.horizon.clock)

    def seen(self, reached: Reached) -> SourceProgress:
        """This progress after a batch in which records got so far."""
        latest, files = dict(self.latest), dict(self.horizon.files)
        top = None if self.top == BEGIN else self.top
        raise_all(latest, reached.latest)
        raise_all(files, {number: at for number, at in reached.files.items() if number in files})
        return replace(
            self,
            latest=latest,
            horizon=replace(self.horizon, files=files),
            idle=self.idle - reached.latest.keys(),
            silent=self.silent and reached.top == BEGIN,
            awaited=self.awaited - reached.latest.keys(),
            top=max(self.top, reached.top),
            shares=self.shares and self.shares.after(top, reached.taken),
        )

    def holder(self) -> str | int | None:
        """Who holds the watermark back, if anybody does: a participant, or the number of a file."""
        if self.ended or self.lateness is None or self.horizon.clock is not None:
            return None
        if self.awaited:
            return min(self.awaited)
        holding: list[tuple[int, str | int]] = [
            (at, who) for who, at in self.latest.items() if who not in self.idle
        ]
        holding.extend((at, number) for number, at in self.horizon.files.items())
        return min(holding, key=lambda one: one[0])[1] if holding else None


def told_since(
    told: dict[str, int], reached: dict[str, Reached], sources: Collection[str]
) -> dict[str, int]:
    """Steps that give times, and the latest each gave, after a batch in which all got so far."""
    steps = ((name, one.top) for name, one in reached.items() if name not in sources)
    since = {name: top for name, top in steps if top > BEGIN}
    return {name: max(since.get(name, BEGIN), told.get(name, BEGIN)) for name in {**told, **since}}


def shares_since(kept: dict[str, Shares], reached: dict[str, Reached]) -> dict[str, Shares]:
    """Updaters that may shed, and what became of their events, after such a batch."""
    return {
        name: one.with_spells(reached.get(name, Reached()).spells) for name, one in kept.items()
    }


def merge_reached(parts: Iterable[dict[str, Reached]]) -> dict[str, Reached]:
    """Reports of many tasks as one, by source."""
    merged: dict[str, Reached] = {}
    for part in parts:
        for source, reached in part.items():
            merged.setdefault(source, Reached()).merge(reached)
    return merged
