"""What a run gives its results to: directories it has taken for itself, mirrors, tables, topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.io.claims import Lease
from millstream.plan.stages import Plan
from millstream.run.mirroring import Mirrors
from millstream.run.owning import Owned
from millstream.run.tables.writing import Gave
from millstream.run.topics import TopicSinks
from millstream.state.manifests import Manifest
from millstream.state.storage import Storage


class Outside:
    """The receivers of one plan's results, from their first check until a run gives them up."""

    def __init__(
        self,
        plan: Plan,
        program: dict[str, Any],
        lease: Lease,
        state: Storage,
        waiting: Callable[[str | None], None],
    ) -> None:
        self.mirrors = Mirrors(plan, program["id"], state, waiting)
        self.topics = TopicSinks(plan, program["id"], lease.epoch, waiting)
        self.owned = Owned()
        self._plan, self._program, self._lease = plan, program, lease
        self.sinks: dict[str, Any] = {sink.name: sink.spec for sink in plan.sinks()}
        self.sinks.update(self.mirrors.takers)
        self.sinks.update(self.topics.sinks)

    def take(self, held: Owned, before: Lease, newest: int) -> None:
        """Take the directories, but for those that are held already."""
        self.owned = held.take(self._plan, self._program, self._lease, before, newest)

    def check(self, newest: int, gave: Gave) -> None:
        """See whether all of them answer, before anything is computed after this batch."""
        self.mirrors.check(newest, gave)
        self.topics.check()

    def mirror(self, manifest: Manifest, before: Manifest | None) -> None:
        """Make the mirrors those of a committed batch."""
        self.mirrors.publish(manifest, before)

    def close(self, but: Owned | None = None) -> None:
        """Let go of connections and directories, but for those that somebody else still holds."""
        self.mirrors.close()
        self.topics.close()
        self.owned.release(but)
