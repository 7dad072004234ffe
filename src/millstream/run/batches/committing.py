"""From what the tasks of a batch reported to what is committed and published.

A batch is committed by the rename of its manifest and by nothing else. Whatever a batch wrote
before is garbage until then; whatever is to be published afterwards is named in the manifest, so
that publishing can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.api.sinks import FileSink
from millstream.io.bundles import put_together
from millstream.operators.batch import Batch, Control
from millstream.ops.chunks import concat, decode_block, in_place
from millstream.ops.records import DeadLetter
from millstream.run import faults
from millstream.run.batches.footing import Footing
from millstream.run.batches.intake import Intake
from millstream.run.batches.letters import Letters
from millstream.run.batches.outlook import Outlook
from millstream.run.batches.settling import next_manifest
from millstream.run.outputs.bundling import bundle
from millstream.run.outputs.handing import Hands
from millstream.run.outputs.publishing import publish, stage_delivery
from millstream.run.pressure.queues import Costs, settled
from millstream.run.sources.shedlog import write_shed
from millstream.run.tasks.executors import Executor
from millstream.run.tasks.splits import Item
from millstream.settings import Settings
from millstream.state.bases import Change
from millstream.state.manifests import Manifest, Output

_GARBAGE_EVERY = 10


@dataclass(frozen=True)
class Reported:
    """What the tasks of a batch gave."""

    batch: Batch
    controls: list[Control]
    items: list[Item]  # rows for sinks, among others
    readers: dict[str, int]  # tasks that read each source

    @property
    def dead(self) -> list[DeadLetter]:
        """The dead letters of all of them."""
        return [letter for control in self.controls for letter in control.dead]

    def rows_for(self, sink: str) -> list[bytes]:
        """What is to be handed over to a sink, in blocks."""
        return [block for _, tag, name, block in self.items if tag == "deliver" and name == sink]


class Commits:
    """Commits the batches of a run, one after the other."""

    def __init__(
        self, footing: Footing, intake: Intake, outlook: Outlook, settings: Settings, hands: Hands
    ) -> None:
        self._footing, self._intake, self._outlook = footing, intake, outlook
        self._letters = Letters(footing.checkpoint.dead, settings, intake.trackers)
        self._hands = hands

    def commit(
        self, executor: Executor, found: Reported, costs: Costs, *, last: bool = False
    ) -> None:
        """Commit a batch and publish it; last: nothing is to wait for a larger file."""
        footing, number = self._footing, found.batch.number
        before, change = footing.manifest, footing.change(found.controls)
        manifest, watermarks = footing.patiently(lambda: self._make(found, change, costs))
        self._letters.check(footing.plan, before, manifest, found.dead)
        manifest.outputs, manifest.waiting = footing.patiently(
            lambda: bundle(
                manifest,
                before,
                footing.outside.sinks,
                lambda sink, orders: executor.probe(sink, put_together, orders),
                due=last,
            )
        )
        faults.crash_point(faults.BUNDLED, number)

        def write() -> None:
            self._write(found, manifest)
            footing.commit(manifest, change, watermarks)

        footing.patiently(write)
        faults.crash_point("after-manifest", number)
        self._publish(manifest, before)
        faults.crash_point("before-garbage", number)
        if number % _GARBAGE_EVERY == 0 or manifest.complete:
            footing.collect_garbage()

    def _make(
        self, found: Reported, change: Change, costs: Costs
    ) -> tuple[Manifest, dict[str, int]]:
        """The manifest, with what waits for the next batch; and the watermarks."""
        plan, known, batch = self._footing.plan, self._outlook.known(committing=True), found.batch
        manifest, watermarks = next_manifest(
            plan, known, batch, found.controls, self._intake.trackers, found.readers, change
        )
        manifest.queues = settled(
            plan,
            replace(known, manifest=manifest),
            self._footing.holdings(),
            change,
            costs,
            self._intake.waiting(),
            batch.holds,
        )
        return manifest, watermarks

    def _write(self, found: Reported, manifest: Manifest) -> None:
        """Everything the manifest refers to that is not written yet."""
        footing, number = self._footing, found.batch.number
        plan, dead = footing.plan, found.dead
        files = [output for output in manifest.outputs if output.final is not None]
        staged = []
        for sink, spec in footing.outside.sinks.items():
            blocks = found.rows_for(sink)
            if blocks and not isinstance(spec, FileSink):
                staged.append(self._stage(number, sink, blocks))
        manifest.outputs = files + staged
        if dead:
            self._letters.write(plan, f"{number:08d}", dead)
        shed = [one for control in found.controls for one in control.shed]
        write_shed(footing.checkpoint.shed, plan, self._intake.trackers, number, shed)
        faults.crash_point("dead-letters-written", number)
        faults.crash_point("before-manifest", number)

    def _stage(self, number: int, sink: str, blocks: list[bytes]) -> Output:
        table = in_place(concat([decode_block(block) for block in blocks]))
        return stage_delivery(self._footing.checkpoint.staged, number, sink, table)

    def _publish(self, manifest: Manifest, before: Manifest) -> None:
        """Give results away that are committed; all of this may be done again."""
        footing = self._footing
        checkpoint, outside = footing.checkpoint, footing.outside
        footing.check_claims()
        footing.patiently(lambda: publish(manifest, outside.sinks, checkpoint.staged, self._hands))
        outside.mirror(manifest, before)
        faults.crash_point("published", manifest.batch)
        footing.patiently(lambda: checkpoint.mark_published(manifest.batch))
        checkpoint.discard_delivered(manifest.batch)
        self._intake.committed()
