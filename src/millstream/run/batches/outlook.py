"""Where time stands between two batches, and what operators may know then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from millstream.errors import CheckpointError
from millstream.operators.protocol import Known, Times
from millstream.ops.times.fidelity import standings
from millstream.ops.times.progress import SourceProgress
from millstream.run.batches.attending import Attention
from millstream.run.batches.footing import Footing
from millstream.run.batches.intake import Intake
from millstream.run.batches.pacing import Pace
from millstream.run.outputs.handing import Hands
from millstream.run.sources.arrival import LAST, ArrivalClock
from millstream.run.sources.standing import progress_of
from millstream.settings import Settings
from millstream.state.manifests import Manifest


class Outlook:
    """The clock of a run, and what it makes of its last batch and its sources."""

    def __init__(
        self,
        footing: Footing,
        intake: Intake,
        pace: Pace,
        settings: Settings,
        hands: Hands,
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        # A clock that a test owns goes as far as it says.
        self._steady = ArrivalClock(clock) if clock is time.time else ArrivalClock(clock, clock)
        self.attention = Attention()
        self._polled = 0  # the clock when sources were looked at last
        self.ending = False  # nothing may stay in memory alone after the next batch
        self._footing, self._intake, self._pace = footing, intake, pace
        self._settings, self._hands = settings, hands
        self._until: dict[str, int] = {}  # source -> the clock up to which all of it was taken
        self._heard_by: tuple[Manifest, dict[str, dict[str, int]]] | None = None

    def begin(self) -> None:
        """Go on after the time of the last batch."""
        self._steady.raise_to(int(self._footing.manifest.at * 1e6) + 1)
        self.attention.since = self._polled = self.now()

    # -- the clock ------------------------------------------------------------------------------

    def now(self) -> int:
        """The wall clock; it never goes back, nor far ahead for a moment."""
        footing = self._footing
        now = max([self._steady.now(), *footing.manifest.rung.values()])
        if now >= LAST:  # a manifest with such a time could not be read again
            raise CheckpointError(
                f"checkpoint {footing.checkpoint.path} says that it was written after the year "
                "2999; run with a new checkpoint, or one from before the clock was wrong"
            )
        return now

    def wall(self) -> float:
        """The same in seconds."""
        return self.now() / 1e6

    @property
    def wrong(self) -> str | None:
        """What to say of a clock that shows what cannot be."""
        return self._steady.wrong

    def sign(self) -> None:
        """This process runs: whoever gives such signs does so in short intervals."""
        self.attention.sign(self._steady.now())

    # -- sources --------------------------------------------------------------------------------

    def looked(self, waiting: Mapping[str, int]) -> None:
        """Sources were looked at, and so much waits in each."""
        self._polled = self.now()
        self.all_taken(name for name, much in waiting.items() if not much)

    def all_taken(self, sources: Iterable[str]) -> None:
        """All that some sources had when they were looked at is in what is committed."""
        self._until.update(dict.fromkeys(sources, self._polled))

    def progress(self) -> dict[str, SourceProgress]:
        """How far each source is, with the pieces that were taken of it."""
        now, found = self.now(), {}
        self.attention.check(now)
        since = self.attention.since
        for node in self._footing.plan.sources():
            name, tracker = node.name, self._intake.trackers.get(node.name)
            if tracker is None:  # a run that waits before its start is over
                continue
            state = self._footing.manifest.source(name)
            read = self._until.get(name, since) if tracker.pending() else self._polled
            found[name] = progress_of(node.spec, state, tracker, now, since, read)
        return found

    def _heard(self) -> dict[str, dict[str, int]]:
        """The wall clock when participants of sources brought something last.

        It is asked for at every look for input, and changes with the manifest alone.
        """
        manifest = self._footing.manifest
        if self._heard_by is None or self._heard_by[0] is not manifest:
            found = {
                name: {who: int(at * 1e6) for who, at in state.seen_at.items()}
                for name, state in manifest.sources.items()
            }
            self._heard_by = (manifest, found)
        return self._heard_by[1]

    def participants(self, source: str, progress: SourceProgress) -> dict[str, tuple[int, float]]:
        """How far everybody is who takes part in a source, and for how long each was silent."""
        since, now = self.attention.since, self.now()
        return {
            self._intake.name_of(source, one.who): (
                one.at,
                max(0.0, (now - max(one.heard, since)) / 1e6),
            )
            for one in standings([source], {source: progress}, {}, self._heard())
        }

    # -- operators ------------------------------------------------------------------------------

    def known(self, *, committing: bool = False) -> Known:
        """What operators may know between two batches, or while one is committed."""
        footing = self._footing
        # Before `now`, at which records arrive: none of them may be earlier than their source is.
        times = None if committing else self._times(self.progress())
        return Known(
            footing.manifest,
            self._settings,
            self.now(),
            footing.born,
            footing.since,
            self._pace.cores,
            self.ending,
            times,
            self._intake.name_of,
            self._hands.ask,
        )

    def _times(self, progress: dict[str, SourceProgress]) -> Times:
        plan, manifest = self._footing.plan, self._footing.manifest
        marks = {name: one.watermark() for name, one in progress.items()}
        left = plan.evicted(manifest.closed)
        inputs, outputs = plan.times(marks, None, manifest.watermarks, left)
        since = self.attention.since
        return Times(progress, self._heard(), inputs, outputs, since, dict(self._until))

    def wakes(self) -> bool:
        """Whether operators have work although nothing came: input ended, clock or time-outs."""
        if self._intake.ended:
            return not self._footing.manifest.complete
        known = self.known()
        assert known.times is not None
        marks = known.times.inputs
        return any(one.wakes(known, marks) for one in self._footing.plan.operators.values())
