"""The manifest of a batch, from what its tasks reported: state, accounts, progress."""

from __future__ import annotations

from millstream.operators.batch import Batch, Control, held_back
from millstream.operators.protocol import Done, Known, Relieving
from millstream.ops.times.progress import (
    BEGIN,
    END,
    Reached,
    merge_reached,
    shares_since,
    told_since,
)
from millstream.ops.times.shares import Shares, Spell
from millstream.plan.stages import Plan
from millstream.run.batches import ledger as books
from millstream.run.batches.failing import lost_in
from millstream.run.sources.standing import state_after
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks import fitting
from millstream.state.bases import Change, applied
from millstream.state.manifests import Manifest


def next_manifest(
    plan: Plan,
    known: Known,
    batch: Batch,
    controls: list[Control],
    trackers: dict[str, Tracker],
    readers: dict[str, int],
    change: Change,
) -> tuple[Manifest, dict[str, int]]:
    """What a batch commits, and the watermarks it brought."""
    old = known.manifest
    ended = all(tracker.ended for tracker in trackers.values())
    segments, files = applied(old.segments, old.files, change)
    manifest = Manifest(
        batch=batch.number,
        at=known.now / 1e6,
        shards=batch.shards,
        closed=dict(old.closed),
        segments=segments,
        files=files,
        strategies=dict(old.strategies),
        rates=dict(old.rates),
        combining=dict(old.combining),
        firing=dict(old.firing),
        left=dict(old.left),
        late={step: dict(account) for step, account in old.late.items()},
        readers=readers,
        written=fitting.agreed(old.written, controls)[0],
        hot=dict(old.hot),
        ledger={step: dict(account) for step, account in old.ledger.items()},
        dead=old.dead + sum(len(control.dead) for control in controls),
        lost=old.lost + lost_in(letter for control in controls for letter in control.dead),
        windows=old.windows + sum(_results(plan, control) for control in controls),
    )
    holds = held_back(batch.holds, *(control.holds for control in controls))
    manifest.complete = ended and not holds
    for control in controls:
        manifest.outputs.extend(control.outputs)
        for step, counts in control.ledger.items():
            books.add(manifest.ledger, step, counts)
    books.check(manifest.ledger)
    reached = merge_reached(control.reached for control in controls)
    manifest.told = told_since(batch.told, reached, batch.progress)
    shares = shares_since(batch.shares, reached)
    manifest.shares = {name: list(map(list, one.spells)) for name, one in shares.items()}
    progress = _move_sources(plan, known, batch, controls, trackers, manifest)
    watermarks, _ = plan.times(progress, holds, old.watermarks, batch.left)
    passed = {name: at for name, at in watermarks.items() if BEGIN < at < END}
    manifest.watermarks = {**old.watermarks, **passed}
    done = Done(batch, controls, watermarks, ended)
    for operator in plan.operators.values():
        operator.settle(known, done, manifest)
    return manifest, watermarks


def _results(plan: Plan, control: Control) -> int:
    """Rows of results of a task: of operators, or where there is none, rows for sinks."""
    if plan.operators:
        return control.results
    return sum(control.ledger[s.name]["offered"] for s in plan.sinks() if s.name in control.ledger)


def _move_sources(
    plan: Plan,
    known: Known,
    batch: Batch,
    controls: list[Control],
    trackers: dict[str, Tracker],
    manifest: Manifest,
) -> dict[str, int | None]:
    """Bring sources to where this batch brought them; gives their watermarks."""
    progress: dict[str, int | None] = {}
    reports = merge_reached(control.reached for control in controls if control.level == 0)
    for node in plan.sources():
        before = known.manifest.source(node.name)
        report = reports.get(node.name, Reached())
        seen = batch.progress[node.name].seen(report)
        state = state_after(before, trackers[node.name], seen, report, known.now)
        if seen.shares is not None:
            state.shares, state.unplaced = list(map(list, seen.shares.spells)), seen.shares.unplaced
        state.watermark = progress[node.name] = seen.watermark()
        manifest.sources[node.name] = state
    return progress


def shares_of_steps(plan: Plan, manifest: Manifest) -> dict[str, Shares]:
    """What became of the records of keyed steps that some may be kept from."""
    return {
        name: Shares(False, tuple(Spell(*one) for one in manifest.shares.get(name, [])))
        for operator in plan.operators.values()
        if isinstance(operator, Relieving)
        for name in operator.relieved()
    }
