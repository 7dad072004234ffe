"""What a run stands on: its program and its last batch, as its checkpoint has them.

Each moves on in one step, which writes the program or a manifest. What is done before that can be
given up, and what comes after it can be done again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from millstream.io.claims import Lease
from millstream.operators.batch import Batch, Control
from millstream.plan.stages import Plan
from millstream.run import faults
from millstream.run.batches.opening import take_over
from millstream.run.batches.patience import Patience
from millstream.run.outputs.handing import Hands
from millstream.run.outputs.outside import Outside
from millstream.run.program.adopting import adopt, without_dropped
from millstream.run.program.program import check_owners
from millstream.settings import Settings
from millstream.state.bases import Change, Segments
from millstream.state.checkpoint import Checkpoint
from millstream.state.holdings import Holdings
from millstream.state.manifests import Manifest
from millstream.state.segments import SegmentFile

T = TypeVar("T")


class Footing:
    """The program and the last committed batch of a run, and who gets its results."""

    def __init__(self, plan: Plan, checkpoint: Checkpoint, retain: int, patience: Patience) -> None:
        self.plan, self.checkpoint = plan, checkpoint
        self.manifest = Manifest(-1)
        self.watermarks: dict[str, int] = {}  # per keyed step
        self.dropped = False  # state was dropped, and no manifest says so yet
        self._lease: Lease | None = None
        self._outside: Outside | None = None
        self._retain, self._patience = retain, patience
        self._written: Manifest | None = None  # the last one, if it was committed by this run
        self._held: Holdings | None = None

    def open(self, settings: Settings, hands: Hands, cores: int, least_shards: int) -> list[str]:
        """Take the checkpoint over and go on from there; gives what is to be said of it."""
        pause, plan, checkpoint = self._patience.pause, self.plan, self.checkpoint
        opened = take_over(plan, checkpoint, settings, hands, pause, cores, least_shards)
        self._lease, self._outside = opened.lease, opened.outside
        self.shards: int = opened.program["shards"]
        self.manifest, self.dropped = opened.manifest, opened.dropped
        self.watermarks = dict(self.manifest.watermarks)
        self._follow(plan, opened.program)
        return opened.notes

    def close(self) -> None:
        """Let go of whoever gets results."""
        if self._outside is not None:
            self._outside.close()

    # -- the program ----------------------------------------------------------------------------

    @property
    def outside(self) -> Outside:
        """Who gets results."""
        assert self._outside is not None  # from the start on
        return self._outside

    def _follow(self, plan: Plan, program: dict[str, Any]) -> None:
        """Take the state for what the program says it is."""
        self.plan = plan
        self.born: dict[str, int] = program["born"]
        self.since: dict[str, dict[str, int]] = program["since"]
        manifest = without_dropped(self.manifest, program)
        self.dropped |= manifest is not self.manifest and not manifest.complete
        self.manifest = manifest
        self.watermarks = {n: at for n, at in self.watermarks.items() if n in plan.levels}

    def replace(self, plan: Plan, prepare: Callable[[], None], *, dry_run: bool) -> list[str]:
        """Go on with another plan, between two batches; gives what is to be said of the change.

        Whatever can fail comes first. The change is made by the one step that writes the program,
        so a crash finds the old one or the new one.
        """
        checkpoint, batch, before = self.checkpoint, self.manifest.batch, self.outside
        known, lease = checkpoint.read_whole_program(), self._lease
        assert known is not None and lease is not None  # from the start on
        check_owners(plan, checkpoint.path, known)
        program, notes = adopt(plan, known, self.manifest)
        outside = Outside(plan, program, lease, checkpoint.state, self._patience.pause)
        try:
            # Topics are taken over when there is something to send.
            outside.check(batch, checkpoint.gave)
            prepare()
            if dry_run:
                outside.close()
                return notes
            outside.take(before.owned, lease, batch)
            faults.crash_point("before-switch", batch)
            self.patiently(lambda: checkpoint.write_program(program))
        except BaseException:
            outside.close(but=before.owned)
            raise
        faults.crash_point("after-switch", batch)
        before.close(but=outside.owned)
        self._outside = outside
        self._follow(plan, program)
        if batch >= 0:
            outside.mirror(self.manifest, checkpoint.before(self.manifest))
        return notes

    # -- what is stored -------------------------------------------------------------------------

    def holdings(self) -> Holdings:
        """What the manifest's segments come to; counted anew where it is not the one written."""
        if self._held is None or self._held.manifest is not self.manifest:
            self._held = Holdings(self.manifest)
        return self._held

    def change(self, controls: list[Control]) -> Change:
        """What becomes of it by what tasks reported."""
        files = chain.from_iterable(control.files for control in controls)
        return self.holdings().change([control.segments for control in controls], files)

    def stored(self) -> tuple[tuple[int, str] | None, Segments, dict[str, SegmentFile]]:
        """What tasks are told of the state: all of it, or a base and what has changed since."""
        manifest = self.manifest
        found = self.checkpoint.stored_since(manifest) if self._written is manifest else None
        if found is None:
            return None, manifest.segments, manifest.files
        base, segments = found
        shards = (one for tables in segments.values() for one in tables.values())
        used = {one.file for several in shards for found in several.values() for one in found}
        return base, segments, {name: manifest.files[name] for name in used}

    # -- the next batch -------------------------------------------------------------------------

    def check_claims(self) -> None:
        """Neither the checkpoint nor an output directory has been taken by another run."""
        self.checkpoint.check_lock()
        self.outside.owned.check()

    def commit(self, manifest: Manifest, change: Change, watermarks: dict[str, int]) -> None:
        """Write a manifest, and stand there."""
        self.check_claims()
        self.checkpoint.commit(manifest, change if self._written is self.manifest else None)
        self.holdings().follow(manifest, change)
        self.manifest = self._written = manifest
        self.watermarks, self.dropped = watermarks, False

    def patiently(self, work: Callable[[], T], batch: Batch | None = None) -> T:
        """Do something that can be done again; wait and do it again while the disk is full."""
        undo = partial(self.discard, batch) if batch is not None else lambda: None
        return self._patience.keep_trying(work, self.manifest.batch + 1, undo)

    def discard(self, batch: Batch) -> None:
        """Remove what a batch wrote that will not be committed."""
        self.checkpoint.discard_uncommitted(batch.number - 1)
        self._discard_staged(batch.number - 1)

    def collect_garbage(self) -> None:
        """Remove what no batch needs which one may still go back to."""
        self.checkpoint.collect_garbage(self.manifest, self._retain)
        self._discard_staged(self.manifest.batch)

    def _discard_staged(self, batch: int) -> None:
        self.outside.owned.discard_staged(batch, self.checkpoint.waiting(self._retain))
