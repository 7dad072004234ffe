"""The output directories of a run: taken before anything is written, checked before each commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from millstream.api.sinks import FileSink
from millstream.io.claims import Claim, Lease
from millstream.io.writers import discard_staged
from millstream.plan.stages import Plan
from millstream.run.program import owner_of
from millstream.state.storage import open_storage


class Owned:
    """The claims of one run on the directories of its file sinks."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self.claims = list(claims)

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
