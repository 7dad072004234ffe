"""The sources of a run: what waits in them, and what a batch takes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from millstream.api.sources import Files
from millstream.api.sources.kafka import Kafka
from millstream.errors import RunError
from millstream.io.kafka.consuming import GONE
from millstream.io.prints import MOVED
from millstream.operators.batch import Control
from millstream.plan.stages import Plan
from millstream.run.sources.shedding import bytes_read
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks.executors import Executor
from millstream.run.tasks.splits import AnySplit
from millstream.state.manifests import Manifest
from millstream.state.storage import Storage


@dataclass(frozen=True)
class Taken:
    """What a batch takes of each source."""

    splits: dict[str, list[AnySplit]]
    sizes: dict[str, int]  # bytes
    emptied: list[str]  # sources in which nothing waits any more


class Intake:
    """The trackers of a run."""

    def __init__(self, store: Storage, make: Callable[..., Tracker]) -> None:
        self.trackers: dict[str, Tracker] = {}
        self._store, self._make = store, make

    def open(self, plan: Plan, manifest: Manifest) -> None:
        """Go on where the last batch left the sources."""
        for node in plan.sources():
            self.trackers[node.name] = self._tracker_of(node.name, plan, manifest)

    def _tracker_of(self, name: str, plan: Plan, manifest: Manifest) -> Tracker:
        nodes = {node.name: (number, node) for number, node in enumerate(plan.sources())}
        return self._make(*nodes[name], plan.formats[name], self._store, manifest.source(name))

    # -- a batch --------------------------------------------------------------------------------

    def poll(self, executor: Executor) -> None:
        """Look for what is new."""
        for name, tracker in self.trackers.items():
            tracker.poll(partial(executor.probe, name))

    def waiting(self) -> dict[str, int]:
        """Bytes of each source that are known and not taken."""
        return {name: tracker.pending() for name, tracker in self.trackers.items()}

    @property
    def ended(self) -> bool:
        """Whether all of all sources was taken."""
        return all(tracker.ended for tracker in self.trackers.values())

    def take(
        self,
        waiting: Mapping[str, int],
        granted: Mapping[str, tuple[int, int]],
        held: Collection[str],
        parts: int,
    ) -> Taken:
        """Take of what waits as much as each source may give; held: those that give nothing."""
        splits = {
            name: [] if name in held else tracker.take(*granted[name], parts)
            for name, tracker in self.trackers.items()
        }
        sizes = {name: bytes_read(one, waiting[name]) for name, one in self.trackers.items()}
        emptied = [name for name, one in self.trackers.items() if not one.pending()]
        return Taken(splits, sizes, emptied)

    def moving(self, plan: Plan, error: BaseException) -> set[str]:
        """The sources of which something went between the plan of a batch and its reading."""
        if not any(word in str(error) for word in (MOVED, GONE)):
            return set()
        specs = {node.name: node.spec for node in plan.sources()}
        return {
            name
            for name, spec in specs.items()
            if isinstance(spec, Kafka) or (isinstance(spec, Files) and spec.follow)
        }

    def look_again(self, name: str, plan: Plan, manifest: Manifest, executor: Executor) -> Tracker:
        """Forget what was seen of a source since the last commit, and look at it anew."""
        self.trackers[name] = self._tracker_of(name, plan, manifest)
        self.trackers[name].poll(partial(executor.probe, name))
        return self.trackers[name]

    def learn(self, controls: list[Control], reading: Iterable[str]) -> None:
        """Tell sources of which something was read how many rows and bytes that was."""
        for name in reading:
            read = sum(control.read.get(name, (0, 0.0))[0] for control in controls)
            self.trackers[name].learn(read, sum(control.sizes[name] for control in controls))

    def committed(self) -> None:
        """What was taken is committed."""
        for tracker in self.trackers.values():
            tracker.committed()

    # -- what is known of them ------------------------------------------------------------------

    def name_of(self, source: str, who: str | int) -> str:
        """What people know a participant by: a file by its name, a whole source by its own."""
        tracker = self.trackers.get(source)
        if isinstance(who, int):
            return str(who) if tracker is None else tracker.name_of(who)
        return who or source

    def close(self, patience: float) -> list[str]:
        """Stop all receivers together, and say what was received and could not be kept."""
        lost = []
        for tracker in self.trackers.values():
            tracker.ask_to_stop(patience)
        for tracker in self.trackers.values():
            try:
                tracker.close()
            except RunError as error:
                lost.append(str(error))
        return lost
