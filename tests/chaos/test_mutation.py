"""Each guarantee switched off in turn: the checks these tests rely on notice it.

A check passes on the real engine and fails on the crippled one; so a green suite means something.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.io import writers
from millstream.operators.batch import Batch
from millstream.run import faults
from millstream.run.batches import attempts, opening
from millstream.run.batches.engine import Engine
from millstream.run.batches.letters import Letters
from millstream.run.outputs import outside, publishing
from millstream.run.planning import plan_flow
from millstream.run.sources.trackers import make_tracker
from millstream.run.tasks.executors import InProcess
from millstream.run.tasks.splits import AnySplit, Item
from millstream.run.tasks.task import Task
from millstream.settings import Settings
from millstream.state import checkpoint as checkpoints
from millstream.state import locks, segments
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Place, SourceState
from millstream.state.storage import Storage
from millstream.testing import run_in_process
from tests.chaos.apps import two_jobs
from tests.chaos.support import Data, check_readable, expected, make_data, outputs
from tests.stored import content_of, manifests_in

Patch = pytest.MonkeyPatch
Check = Callable[[Path, Patch], None]
OPTIONS: dict[str, Any] = {"parallelism": 2, "batch_rows": 150, "shards": 8}


class Crash(BaseException):
    """The end of a process, as far as the engine can tell."""


def crash_at(patch: Patch, point: str, batch: int) -> None:
    def crash(at: str, number: int) -> None:
        if (at, number) == (point, batch):
            raise Crash

    patch.setattr(faults, "crash_point", crash)


def run(data: Data, work: Path) -> None:
    segments._open.cache_clear()
    run_in_process(two_jobs.build(data.path, work / "out"), work / "ck", **OPTIONS)


def crashed(tmp: Path, point: str, batch: int) -> Data:
    """A run that ended at a point."""
    data = make_data(tmp / "data", records=3_000)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, point, batch)
        with pytest.raises(Crash):
            run(data, tmp)
    return data


# -- checks, each of which must fail without the mechanism it is about ----------------------------


def recovers(point: str) -> Check:
    def check(tmp: Path, patch: Patch) -> None:
        data = crashed(tmp, point, 3)
        check_readable(tmp / "out")
        run(data, tmp)
        assert outputs(tmp / "out") == expected(data)

    return check


def refuses_a_second_driver(tmp: Path, patch: Patch) -> None:
    first, second = Checkpoint(tmp / "ck"), Checkpoint(tmp / "ck")
    first.lock()
    try:
        second.lock()
    except ms.CheckpointError:
        return
    finally:
        first.close()
        second.close()
    raise AssertionError("two drivers own one checkpoint")


def keeps_dead_letters(tmp: Path, patch: Patch) -> None:
    (tmp / "in.jsonl").write_text('{"ts": 1, "a": 1}\nnonsense\n{"ts": 2, "a": 2}\n')
    flow = ms.Flow("dead")
    rows = flow.source(ms.Files(tmp / "in.jsonl", schema="ts bigint, a bigint", time="ts"))
    rows.sink(ms.Memory())
    run_in_process(flow, tmp / "ck")
    letters = [
        json.loads(line)["raw"]
        for path in (tmp / "ck" / "dead").glob("*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    assert letters == ["nonsense"]


def notices_damaged_state(tmp: Path, patch: Patch) -> None:
    """Bits of a segment flipped here and there: right or refused, never wrong."""
    data = crashed(tmp, "batch-planned", 3)
    newest = content_of(manifests_in(tmp / "ck" / "manifests")[-1])
    path = tmp / "ck" / "state" / next(f for f in newest.files if "+by+key/" in f)
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 8, len(content) * 3 // 4, 8):
        content[at] ^= 1
    path.write_bytes(bytes(content))
    try:
        run(data, tmp)
    except ms.MillstreamError:
        return
    assert outputs(tmp / "out") == expected(data)


class LosesAnExecutor(InProcess):
    """Runs level 0 twice, as after a loss: partition 0 saw one attempt, the rest another."""

    losses = 0

    def run(self, batch: Batch, parts: list[list[AnySplit]]) -> list[Item]:
        if self.losses:
            return super().run(batch, parts)
        self.losses += 1
        attempts = [
            [
                item
                for number, splits in enumerate(parts)
                for item in Task(self.plan, batch, 0, number).ingest(splits)
            ]
            for _ in range(2)
        ]
        items: list[Item] = []
        for number in range(batch.parallelism):
            seen = attempts[min(number, 1)]
            mine = [item for item in seen if item[0] == number]
            items += Task(self.plan, batch, 1, number).keyed(mine)
        return items


def survives_a_lost_executor(tmp: Path, patch: Patch) -> None:
    """A function that is not deterministic: every record is counted once all the same."""
    (tmp / "in.jsonl").write_text("".join(f'{{"ts": 1, "a": {i}}}\n' for i in range(550)))
    for step in (5, 17, 23, 77, 100, 311, 1000):
        assert count_with_a_loss(tmp, step) == 550


def count_with_a_loss(tmp: Path, step: int) -> int:
    """Another attempt gives other keys, of which another number belongs to each partition."""
    calls = itertools.count()

    def other_keys(row: dict[str, Any]) -> dict[str, Any]:
        n = next(calls)
        return {"key": n // 550 * step + n % 11}

    flow, memory = ms.Flow("again"), ms.Memory()
    rows = flow.source(ms.Files(tmp / "in.jsonl", schema="ts bigint, a bigint", time="ts"))
    keyed = rows.map(other_keys).key_by("key")
    keyed.window(ms.tumbling("10s")).agg(n=ms.count()).sink(memory)
    plan = plan_flow(flow)
    engine = Engine(plan, Checkpoint(tmp / f"ck-{step}"), Settings(parallelism=2, shards=8))
    engine.open(2)
    executor = LosesAnExecutor(plan, 2)
    while not engine.done:
        engine.step(executor)
    engine.close()
    assert executor.losses == 1
    return sum(row["n"] for row in memory.rows)


# -- what is switched off -------------------------------------------------------------------------


def no_publishing_again(patch: Patch) -> None:
    patch.setattr(opening, "recover", lambda *args, **options: None)


def no_offsets(patch: Patch) -> None:
    """Sources begin again after every start, as if nothing had been committed."""

    def forgetful(number: int, node: Any, fmt: Any, path: Storage, state: SourceState) -> Any:
        return make_tracker(number, node, fmt, path, SourceState())

    real = Engine.__init__

    def init(self: Engine, plan: Any, place: Any, settings: Any, **options: Any) -> None:
        real(self, plan, place, settings, **{**options, "trackers": forgetful})

    patch.setattr(Engine, "__init__", init)


def no_atomic_publishing(patch: Patch) -> None:
    """Files are copied to where readers look, and the process ends half-way."""

    def copy(place: Place, size: int, checksum: int) -> None:
        staged, final = place.storage.where(place.staged), place.storage.where(place.final or "")
        if Path(staged).exists():
            data = Path(staged).read_bytes()
            Path(final).write_bytes(data[: len(data) // 2])
            if Path(final).name.startswith("part-00000003"):
                raise Crash
            Path(final).write_bytes(data)
            Path(staged).unlink()

    patch.setattr(publishing, "publish_file", copy)


def no_atomic_manifest(patch: Patch) -> None:
    """Manifests are written in place, and the process ends half-way."""

    def write(self: Checkpoint, manifest: Any, change: Any = None) -> None:
        checkpoints._write_manifest(self.manifests, manifest)
        path = manifests_in(self.path / "manifests")[-1]
        if manifest.batch == 3:
            path.write_bytes(path.read_bytes()[:100])
            raise Crash

    patch.setattr(Checkpoint, "commit", write)


def no_lock(patch: Patch) -> None:
    patch.setattr(locks.fcntl, "flock", lambda *args: None)


def no_dead_letters(patch: Patch) -> None:
    patch.setattr(Letters, "write", lambda self, plan, stem, dead: "")


def no_checksums(patch: Patch) -> None:
    patch.setattr(segments, "map_segment", lambda root, file: root.map(file.file))


def no_check_of_attempts(patch: Patch) -> None:
    patch.setattr(attempts, "same_attempts", lambda controls: True)


def no_discarding(patch: Patch) -> None:
    """What a dead attempt staged is published along with the rest."""

    def publish_all(storage: Storage, batch: int, keep: Collection[str]) -> None:
        directory = Path(storage.where())
        for path in (directory / writers.STAGING).glob("*-*"):
            path.rename(directory / f"part-{path.name.removesuffix('.staged')}")

    patch.setattr(outside, "discard_staged", publish_all)


MUTATIONS: list[tuple[Callable[[Patch], None], Check]] = [
    (no_publishing_again, recovers("after-manifest")),
    (no_publishing_again, recovers("half-published")),
    (no_offsets, recovers("before-manifest")),
    (no_atomic_publishing, recovers("published")),
    (no_atomic_manifest, recovers("after-manifest")),
    (no_discarding, recovers("before-manifest")),
    (no_lock, refuses_a_second_driver),
    (no_dead_letters, keeps_dead_letters),
    (no_checksums, notices_damaged_state),
    (no_check_of_attempts, survives_a_lost_executor),
]


@pytest.mark.parametrize(
    ("mutation", "check"), MUTATIONS, ids=lambda f: getattr(f, "__name__", None)
)
def test_the_check_notices(
    mutation: Callable[[Patch], None], check: Check, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "real").mkdir()
    check(tmp_path / "real", monkeypatch)
    (tmp_path / "crippled").mkdir()
    mutation(monkeypatch)
    with pytest.raises((AssertionError, ms.MillstreamError, OSError, ValueError)):
        check(tmp_path / "crippled", monkeypatch)
