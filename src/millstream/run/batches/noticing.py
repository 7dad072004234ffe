"""What a run has to say, each thing once: of its program, and of sources that give nothing.

That a source is silent is no error, and somebody may wonder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from millstream.durations import micros, text
from millstream.plan.stages import Plan
from millstream.run.sources.tracking import Tracker
from millstream.settings import Settings
from millstream.state.manifests import Manifest


class Noticing:
    """What was said, and which sources of a run are known to give nothing."""

    def __init__(self, settings: Settings, tell: Callable[[], None]) -> None:
        self.notes: list[str] = []
        self._tell = tell
        self.silent: dict[str, float] = {}  # whose generator hangs, by the clock since when
        self._limit = settings.function_micros
        self._idle: set[str] = set()

    def note(self, told: Iterable[str | None]) -> bool:
        """Keep what was not said before, for whoever looks; whether there was something."""
        new = [one for one in told if one is not None and one not in self.notes]
        self.notes += new
        return bool(new)

    def say(self, *told: str | None) -> None:
        """Tell what was not said before, at once."""
        if self.note(told):
            self._tell()

    def silence(self, trackers: dict[str, Tracker], now: float) -> Iterator[str]:
        """Generators that have given nothing for long; they may have nothing to give."""
        for name, tracker in trackers.items():
            seconds = tracker.silent()
            if self._limit is None or seconds * 1e6 < self._limit:
                self.silent.pop(name, None)
            elif name not in self.silent:
                self.silent[name] = now - seconds
                yield (
                    f"source {name!r}: its generator has given nothing for {text(self._limit)} "
                    "(function_timeout); it is waited for: look there if it should have something"
                )

    def idleness(
        self, plan: Plan, manifest: Manifest, trackers: dict[str, Tracker], since: int, now: int
    ) -> Iterator[str]:
        """Sources without an end that windows no longer wait for."""
        for node in plan.sources():
            spec, name = node.spec, node.name
            if spec.bounded or spec.idle_timeout is None or name in self._idle:
                continue
            heard = int(manifest.source(name).heard * 1e6)
            limit = micros(spec.idle_timeout, "idle_timeout")
            if now - max(heard, since) > limit and not trackers[name].pending():
                self._idle.add(name)
                if plan.operators:
                    yield (
                        f"source {name!r} has been idle for {text(limit)} (idle_timeout): windows "
                        "do not wait for it until it gives something"
                    )
