"""What a run gives its results to: directories it has taken for itself, mirrors, tables, topics."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from millstream.api.sinks import FileSink
from millstream.io.claims import Claim, Lease
from millstream.io.writers import discard_staged
from millstream.plan.stages import Plan
from millstream.run.outputs.mirroring import Mirrors
from millstream.run.outputs.tables.writing import Gave
from millstream.run.outputs.topics import TopicSinks
from millstream.run.program.program import owner_of
from millstream.state.manifests import Manifest
from millstream.state.storage import Storage, open_storage


class Owned:
    """The claims of one run on the directories of its file sinks, checked before each commit."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def take(
        self, plan: Plan, program: dict[str, Any], lease: Lease, before: Lease, newest: int
    ) -> Owned:
        """The directories of a plan: those that are held already, and the others taken now."""
        held = {claim.directory: claim for claim in self.claims}
        now = Owned()
        try:
            for sink in plan.sinks():
                if isinstance(sink.spec, FileSink):
                    directory = open_storage(sink.spec.directory)
                    claim = held.get(directory)
                    if claim is None:
                        claim = Claim(directory, owner_of(program), lease)
                        claim.take(before, newest)
                    now.claims.append(claim)
        except BaseException:
            now.release(but=self)
            raise
        return now

    def check(self) -> None:
        """No directory has been taken by another run."""
        for claim in self.claims:
            claim.check()

    def discard_staged(self, batch: int, keep: Collection[str]) -> None:
        """Remove what was staged and is not committed; this batch was the last that was.

        keep: what is committed and still waits.
        """
        for claim in self.claims:
            discard_staged(claim.directory, batch, keep)

    def release(self, but: Owned | None = None) -> None:
        """Give directories back, all but those that somebody else still holds."""
        kept = [] if but is None else but.claims
        for claim in self.claims:
            if claim not in kept:
                claim.release()


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
