"""Every file of a checkpoint, damaged in every way: the right answer or a clear refusal."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import millstream as ms
from millstream.state import segments
from millstream.state.checkpoint import Checkpoint
from millstream.state.doctor import examine
from millstream.testing import run_in_process
from tests.chaos import support
from tests.chaos.apps import spooled, two_jobs
from tests.chaos.support import Rows, expected, finish, make_data, outputs, spawn
from tests.stored import content_of, manifests_in

SEED = 5


# -- ways to damage a file ------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = random.Random(f"{SEED} {path.name[:8]}").randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(bytes(data))


def delete(path: Path) -> None:
    path.unlink()


Ways = list[Callable[[Path], None]]
WAYS: Ways = [truncate, empty, zero, flip, delete]


# -- a checkpoint to damage -----------------------------------------------------------------------


@dataclass(frozen=True)
class Stopped:
    """A run that was killed, kept aside so that each case begins with the same."""

    data: Path
    work: Path
    backup: Path
    answer: dict[str, Rows]

    def restore(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.backup, self.work)
        segments._open.cache_clear()  # files are checked once per process: this is a new one

    def run(self) -> None:
        flow = two_jobs.build(self.data, self.work / "out")
        run_in_process(flow, self.work / "ck", parallelism=2, batch_rows=two_jobs.BATCH_ROWS)


def stopped(tmp: Path, crash_at: str) -> Stopped:
    data = make_data(tmp / "data", records=8_000)
    assert finish(spawn(data.path, tmp / "work", crash_at=crash_at)) == -signal.SIGKILL
    shutil.copytree(tmp / "work", tmp / "backup")
    return Stopped(data.path, tmp / "work", tmp / "backup", expected(data))


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Killed between two batches: everything is published."""
    return stopped(tmp_path_factory.mktemp("between"), "batch-planned:3")


@pytest.fixture(scope="module")
def unpublished(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Killed right after a commit: all of a batch is still to be published."""
    return stopped(tmp_path_factory.mktemp("unpublished"), "after-manifest:2")


def newest(work: Path) -> Path:
    return manifests_in(work / "ck" / "manifests")[-1]


def older(work: Path) -> Path:
    return manifests_in(work / "ck" / "manifests")[0]


def segment_of(operator: str) -> Callable[[Path], Path]:
    def find(work: Path) -> Path:
        files = content_of(newest(work)).files
        return work / "ck" / "state" / next(f for f in sorted(files) if operator in f)

    return find


def staged(sink: str) -> Callable[[Path], Path]:
    def find(work: Path) -> Path:
        named = [o for o in content_of(newest(work)).outputs if o.sink == sink]
        return work / "out" / OF[sink] / ".millstream" / named[0].staged

    return find


OF = {"parquet": "first", "jsonl": "raw"}
TARGETS: dict[str, Callable[[Path], Path]] = {
    "newest manifest": newest,
    "older manifest": older,
    "segment of the first job": segment_of("+by+key/"),
    "segment of the second job": segment_of("+by+grp/"),
    "flow.json": lambda work: work / "ck" / "flow.json",
    "registry of csv": lambda work: work / "ck" / "sources" / "csv.jsonl",
    "registry of json": lambda work: work / "ck" / "sources" / "json.jsonl",
    "published": lambda work: work / "ck" / "published",
}
STAGED = {"staged parquet": staged("parquet"), "staged jsonl": staged("jsonl")}
HARMLESS = ("older manifest", "published")  # what is needed can be had without them


def check_damage(
    state: Stopped, target: str, find: Callable[[Path], Path], way: Callable[[Path], None]
) -> bool:
    """Damage one file and go on; whether it was refused. A wrong answer is a failure."""
    state.restore()
    path = find(state.work)
    way(path)
    lines, sound = examine(state.work / "ck")
    try:
        state.run()
    except ms.MillstreamError as error:
        assert path.name in str(error), f"{target}, {way.__name__}: {error}"
        assert not sound, f"{target}, {way.__name__}: doctor saw nothing, but: {error}"
        report = "\n".join(lines)
        assert path.name in report, report
        assert "last good" in report or "no good batch is left" in report
        support.check_readable(state.work / "out")
        return True
    assert outputs(state.work / "out") == state.answer, f"{target}, {way.__name__}: wrong"
    return False


# What is harmless is run to the end each time: some ways always, all of them in long runs.
SOME = [(target, WAYS[3:] if target in HARMLESS else WAYS) for target in TARGETS]
ALL = [pytest.param(target, WAYS, marks=pytest.mark.long) for target in HARMLESS]


@pytest.mark.parametrize(("target", "ways"), [*SOME, *ALL])
def test_between_batches(between: Stopped, target: str, ways: Ways) -> None:
    refused = {w.__name__: check_damage(between, target, TARGETS[target], w) for w in ways}
    if target not in HARMLESS:
        assert all(refused.values()), refused
    else:
        assert not any(refused.values()), refused


@pytest.mark.parametrize(("target", "ways"), [*SOME, *((one, WAYS) for one in STAGED), *ALL])
def test_before_publishing(unpublished: Stopped, target: str, ways: Ways) -> None:
    find = (TARGETS | STAGED)[target]
    refused = {w.__name__: check_damage(unpublished, target, find, w) for w in ways}
    if target == "newest manifest":  # nothing of its batch was published: it never was
        assert not refused.pop("delete")
    if target in HARMLESS:
        assert not any(refused.values()), refused
    else:
        assert all(refused.values()), refused


@pytest.mark.parametrize("target", ["newest manifest", "segment of the first job", "flow.json"])
def test_every_bit_counts(between: Stopped, target: str) -> None:
    """Many single bits, not just one."""
    random_ = random.Random(SEED)

    def flip_any(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        path.write_bytes(bytes(data))

    for _ in range(10):
        check_damage(between, target, TARGETS[target], flip_any)


def test_one_can_go_back_as_doctor_says(between: Stopped) -> None:
    """A damaged newest manifest: remove it, the marker and its part files, and go on."""
    between.restore()
    flip(newest(between.work))
    lines, sound = examine(between.work / "ck")
    assert not sound
    assert any(line.startswith("last good      batch 1,") for line in lines), lines
    assert any("remove the manifests after 00000001.json" in line for line in lines)
    newest(between.work).unlink()
    with pytest.raises(ms.CheckpointError, match=r"00000002\.json is missing"):
        between.run()
    (between.work / "ck" / "published").unlink()
    for part in (between.work / "out").glob("*/part-00000002-*"):
        part.unlink()
    between.run()
    assert outputs(between.work / "out") == between.answer


def test_retained_batches_stay_usable_after_a_restart(between: Stopped) -> None:
    """Opening a checkpoint must not delete what older manifests refer to."""
    between.restore()
    program = Checkpoint(between.work / "ck")
    before = {p: content_of(p).files for p in manifests_in(program.path / "manifests")}
    assert len(before) == 3
    program.discard_uncommitted(2)
    for files in before.values():
        for name in files:
            assert program.state.exists(name)
    assert examine(between.work / "ck")[1]


# -- spooled sources ------------------------------------------------------------------------------


def piece(work: Path, index: int) -> Path:
    return sorted((work / "ck" / "spool" / "rows").glob("*-*"))[index]


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A generator whose pieces were sealed and not yet committed."""
    tmp = tmp_path_factory.mktemp("spool")
    process = spawn(Path("generator"), tmp / "work", crash_at="tasks-done:2", app=spooled_app())
    assert finish(process) == -signal.SIGKILL
    shutil.copytree(tmp / "work", tmp / "backup")
    return Stopped(tmp, tmp / "work", tmp / "backup", {})


def spooled_app() -> Path:
    return support.APP.with_name("spooled.py")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("index", [0, -1], ids=["first", "last"])
def test_spool_pieces(spool: Stopped, way: Callable[[Path], None], index: int) -> None:
    spool.restore()
    path = piece(spool.work, index)
    way(path)
    lines, sound = examine(spool.work / "ck")
    flow = spooled.build("generator", spool.work / "out")
    try:
        run_in_process(flow, spool.work / "ck", poll=0.01)
    except (ms.CheckpointError, ms.RunError) as error:
        told = str(error)
    else:  # of a last piece that is gone nobody may have known yet: then it is made anew
        assert (way, index) == (delete, -1)
        assert spooled_rows(spool) == list(range(spooled.ROWS))
        return
    assert "spool" in told
    if way is not delete:
        assert path.name in told
        assert not sound
        assert path.name in "\n".join(lines)
    else:
        assert str(int(path.name.split("-")[0])) in told
    assert any(line.startswith("last good") for line in lines)


def spooled_rows(spool: Stopped) -> list[int]:
    return sorted(
        json.loads(line)["id"]
        for part in (spool.work / "out" / "rows").glob("part-*")
        for line in part.read_bytes().splitlines()
    )


def test_an_undamaged_spool_goes_on(spool: Stopped) -> None:
    spool.restore()
    flow = spooled.build("generator", spool.work / "out")
    run_in_process(flow, spool.work / "ck", poll=0.01)
    assert spooled_rows(spool) == list(range(spooled.ROWS))


# -- input that is no longer what was read --------------------------------------------------------


@pytest.mark.parametrize("how", ["shorter", "gone"])
def test_a_file_that_lost_its_rest_is_not_the_end(between: Stopped, how: str) -> None:
    between.restore()
    state = content_of(newest(between.work)).sources["json"]
    started = [int(n) for n, offset in state.open.items() if offset > 60]
    path = between.data / f"part-{started[0]}.jsonl"
    data = path.read_bytes()
    try:
        path.write_bytes(data[:60]) if how == "shorter" else path.unlink()
        with pytest.raises(ms.RunError, match=f"{path.name}.*(truncated|replaced)"):
            between.run()
    finally:
        path.write_bytes(data)
    between.restore()
    between.run()
    assert outputs(between.work / "out") == between.answer
