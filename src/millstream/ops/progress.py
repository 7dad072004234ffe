"""Progress: how far every participant of every source is, and the watermark that follows.

A watermark W means: no record with a time before W is still expected. The same pure functions run
in the driver (to plan) and in every keyed task (to close windows in the very batch that moved it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

END = 2**62  # the watermark after the end of all input, in microseconds
BEGIN = -(2**62)


@dataclass(frozen=True)
class SourceProgress:
    """What is known of one source: the latest event time per participant, and the rules."""

    lateness: int | None  # None: complete, nothing leaves before the end of the source
    latest: dict[str, int] = field(default_factory=dict)  # participant -> latest event time
    idle: frozenset[str] = frozenset()  # silent for longer than the idle timeout
    ended: bool = False  # all of it has been read
    silent: bool = False  # nothing came from anyone for longer than the idle timeout
    clock: int | None = None  # arrival time: the wall clock is the progress

    def watermark(self) -> int | None:
        """The time before which this source delivers nothing more; None if it holds nothing."""
        if self.ended:
            return END
        if self.lateness is None:
            return BEGIN
        if self.clock is not None:
            return self.clock - self.lateness
        active = [at for who, at in self.latest.items() if who not in self.idle]
        if active:
            return min(active) - self.lateness
        return None if self.silent else BEGIN

    def on_time(self) -> int | None:
        """The watermark if nothing were out of order: how far event time itself has come."""
        if self.lateness is None or self.ended:
            return self.watermark()
        return replace(self, lateness=0).watermark()

    def furthest(self) -> int:
        """The latest time of all: no watermark before the end of the source is beyond it."""
        clock = BEGIN if self.clock is None else self.clock
        return max([*self.latest.values(), clock])

    def seen(self, latest: dict[str, int]) -> SourceProgress:
        """This progress after a batch in which participants got so far."""
        merged = dict(self.latest)
        for who, at in latest.items():
            merged[who] = max(at, merged.get(who, at))
        silent = self.silent and not latest
        return replace(self, latest=merged, idle=self.idle - latest.keys(), silent=silent)

    def holder(self) -> str | None:
        """The participant that holds the watermark back, if one does."""
        active = {who: at for who, at in self.latest.items() if who not in self.idle}
        return min(active, key=lambda who: active[who]) if active and not self.ended else None


def merge_latest(parts: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Progress reports of many tasks as one: source -> participant -> latest time."""
    merged: dict[str, dict[str, int]] = {}
    for part in parts:
        for source, latest in part.items():
            into = merged.setdefault(source, {})
            for who, at in latest.items():
                into[who] = max(at, into.get(who, at))
    return merged


def lowest(watermarks: list[int | None]) -> int:
    """The watermark of an operator fed by these: the lowest of those that hold anything."""
    holding = [at for at in watermarks if at is not None]
    return min(holding) if holding else BEGIN
