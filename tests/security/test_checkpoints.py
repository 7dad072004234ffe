"""A checkpoint is data, not orders: what a forged or misplaced one may not do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.run import faults
from millstream.state.checkpoint import Checkpoint, checksum
from millstream.state.doctor import examine
from millstream.testing import run_in_process
from tests.security.hostile import OPTIONS, ROWS, flow_to, forge, newest, rows_in
from tests.stored import content_of, manifests_in

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


class Crash(BaseException):
    """The end of a process."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(tmp: Path, point: str, batch: int) -> None:
        def crash(at: str, number: int) -> None:
            if (at, number) == (point, batch):
                raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(faults, "crash_point", crash)
            with pytest.raises(Crash):
                run_in_process(flow_to(tmp), tmp / "ck", **OPTIONS)

    return run


# -- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["staged", "final"])
@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_a_forged_output_is_not_written(
    tmp_path: Path, crash_at: Callable[..., None], field: str, how: str
) -> None:
    crash_at(tmp_path, "after-manifest", 2)
    victim = tmp_path / "victim.jsonl"
    victim.write_text("mine\n")
    target = str(victim) if how == "absolute" else "../../victim.jsonl"
    forge(newest(tmp_path), lambda content: content["outputs"][0].update({field: target}))
    with pytest.raises(ms.MillstreamError, match="batch 2"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert victim.read_text() == "mine\n"
    assert not examine(tmp_path / "ck")[1]


def test_a_forged_segment_does_not_lead_out(tmp_path: Path) -> None:
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)

    def lead_out(content: dict[str, Any]) -> None:
        content["files"] = {"../../in.jsonl": ["../../in.jsonl", 1, 2]}

    forge(newest(tmp_path), lead_out)
    with pytest.raises(ms.CheckpointError, match="outside of the state"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert not examine(tmp_path / "ck")[1]


@pytest.mark.parametrize("part", ["staged", "state", "manifests", "dead", "sources", "spool"])
def test_a_linked_part_is_refused_and_its_target_left(tmp_path: Path, part: str) -> None:
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    shutil.rmtree(tmp_path / "ck" / part)
    (tmp_path / "ck" / part).symlink_to(elsewhere)
    with pytest.raises(ms.CheckpointError, match=f"{part} is a link"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]
    lines, sound = examine(tmp_path / "ck")
    assert not sound
    assert any(part in line and "is a link" in line for line in lines)


@pytest.mark.parametrize("name", ["lock", "published", "flow.json", ".published.tmp"])
def test_a_linked_file_is_refused_and_its_target_left(tmp_path: Path, name: str) -> None:
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "ck" / name).unlink(missing_ok=True)
    (tmp_path / "ck" / name).symlink_to(target)
    with pytest.raises(ms.CheckpointError, match="is a link"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert target.read_text() == "precious"
    assert not examine(tmp_path / "ck")[1]


@pytest.mark.parametrize("name", ["lock", "sources/in.jsonl"])
def test_a_file_with_another_name_elsewhere_is_left(
    tmp_path: Path, crash_at: Callable[..., None], name: str
) -> None:
    """Hard links are no links to look at: a backup may be made of them, or somebody's trap."""
    crash_at(tmp_path, "batch-planned", 3)
    elsewhere = tmp_path / "elsewhere"
    os.link(tmp_path / "ck" / name, elsewhere)
    with elsewhere.open("a") as more:
        more.write("precious\n")
    before = elsewhere.read_bytes()
    with (tmp_path / "in.jsonl").open("a") as more:
        more.write(f'{{"ts": {ROWS}, "n": {ROWS}}}\n')
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert elsewhere.read_bytes() == before
    assert rows_in(tmp_path / "out") == list(range(ROWS + 1))


def test_a_linked_staging_folder_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "00000000-0-0000-ab.jsonl").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".millstream").symlink_to(elsewhere)
    with pytest.raises(ms.CheckpointError, match="is a link"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert (elsewhere / "00000000-0-0000-ab.jsonl").read_text() == "x"


def test_a_directory_everybody_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck").chmod(0o777)
    with pytest.raises(ms.CheckpointError, match=r"everybody; run: chmod -R o-w .*ck"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    (tmp_path / "ck").chmod(0o755)
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    (newest(tmp_path)).chmod(0o666)
    with pytest.raises(ms.CheckpointError, match=r"\.json may be written by everybody"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)


@root_only
def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    for path in (tmp_path / "ck", newest(tmp_path)):
        os.chown(path, 12345, -1)
        with pytest.raises(ms.CheckpointError, match=r"belongs to user 12345.*chown -R"):
            run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
        assert not examine(tmp_path / "ck")[1]
        os.chown(path, 0, -1)
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)


def test_doctor_takes_whatever_lies_there(tmp_path: Path) -> None:
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    place = tmp_path / "ck"
    (place / "spool" / "loop").symlink_to(place / "spool")
    (place / "spool" / "rows").mkdir()
    (place / "spool" / "rows" / "0-0-0-0.jsonl").mkdir()
    (place / "manifests" / "99999999.json").mkdir()
    os.mkfifo(place / "manifests" / "99999998.json")
    os.mkfifo(place / "state" / "pipe")
    (place / "sources" / "in.jsonl").unlink()
    (place / "sources" / "in.jsonl").mkdir()
    (place / "manifests" / ("9" * 200 + ".json")).write_text("")
    lines, sound = examine(place)
    assert not sound
    told = "\n".join(lines)
    for name in ("spool/loop", "0-0-0-0.jsonl", "99999999.json", "state/pipe", "in.jsonl"):
        assert name in told
    assert "last good" in told or "no good batch" in told


# -- the chain of manifests -----------------------------------------------------------------------


def test_an_older_manifest_in_the_place_of_the_newest(
    tmp_path: Path, crash_at: Callable[..., None]
) -> None:
    crash_at(tmp_path, "batch-planned", 3)
    last = newest(tmp_path)
    before = last.with_name("00000001.json")
    shutil.copy(before, last)
    with pytest.raises(ms.CheckpointError, match=r"00000002\.json is the one of batch 1"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    lines, sound = examine(tmp_path / "ck")
    assert not sound
    assert any(line.startswith("00000002.json  BAD") for line in lines)
    forge(last, lambda content: content.update(batch=2))  # and with the number made to fit
    with pytest.raises(ms.CheckpointError, match="is not the one whose batch was published"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert not examine(tmp_path / "ck")[1]


def test_a_manifest_that_does_not_follow(tmp_path: Path, crash_at: Callable[..., None]) -> None:
    crash_at(tmp_path, "after-manifest", 3)  # so that the marker knows the one before only
    assert content_of(newest(tmp_path)).previous
    before = newest(tmp_path).with_name("00000002.json")
    forge(before, lambda content: content.update(dead=1))
    with pytest.raises(ms.CheckpointError, match=r"00000003\.json does not follow .* batch 2"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert not examine(tmp_path / "ck")[1]


def test_a_checkpoint_older_than_its_results_is_refused(
    tmp_path: Path, crash_at: Callable[..., None]
) -> None:
    crash_at(tmp_path, "batch-planned", 4)
    newest(tmp_path).unlink()
    (tmp_path / "ck" / "published").unlink()
    with pytest.raises(ms.ConfigError, match="remove the part files after batch 2"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    for part in (tmp_path / "out").glob("part-00000003-*"):
        part.unlink()
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))


def test_a_checkpoint_of_the_version_before_goes_on(
    tmp_path: Path, crash_at: Callable[..., None]
) -> None:
    """Format 1: whole paths, no chain, no lease; here with a batch still to be published."""
    crash_at(tmp_path, "after-manifest", 2)

    def older(content: dict[str, Any]) -> None:
        content["format"] = 1
        del content["previous"]
        for output in content["outputs"]:
            output["staged"] = str(tmp_path / "out" / ".millstream" / output["staged"])
            output["final"] = str(tmp_path / "out" / output["final"])

    for path in manifests_in(tmp_path / "ck" / "manifests"):
        forge(path, older)
    (tmp_path / "ck" / "published").write_text(f"1 {checksum('1')}")
    place = Checkpoint(tmp_path / "ck")
    program = place.read_program()
    assert program is not None
    for name in ("epoch", "lease", "sinks"):
        del program[name]
    place.write_program(program)
    owner = tmp_path / "out" / ".millstream" / "owner"
    owner.write_text(f"hostile {program['id']}")
    assert examine(tmp_path / "ck")[1]
    run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))


# -- one owner ------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from tests.security.hostile import OPTIONS, flow_to
from millstream.run.batches.engine import Engine
from millstream.run.tasks.executors import InProcess
from millstream.run.planning import plan_flow
from millstream.settings import Settings
from millstream.state.checkpoint import Checkpoint
from tests.stored import content_of, manifests_in
tmp = Path(sys.argv[1])
plan = plan_flow(flow_to(tmp), tmp / "ck")
place = Checkpoint(tmp / "ck"); place.lock()
engine = Engine(plan, place, Settings(parallelism=1, **OPTIONS)); engine.open(1)
engine.step(InProcess(plan, 1))
print("stepped", flush=True)
sys.stdin.readline()
try:
    engine.step(InProcess(plan, 1))
except Exception as error:
    print(type(error).__name__, error, flush=True)
else:
    print("committed", flush=True)
"""


@pytest.fixture
def running(tmp_path: Path) -> Any:
    """Another process that has committed one batch and waits for a line to commit the next."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stepped\n"
        yield process
        process.kill()


def test_removing_the_lock_does_not_make_two_owners(tmp_path: Path, running: Any) -> None:
    (tmp_path / "ck" / "lock").unlink()
    with pytest.raises(ms.CheckpointError, match="is owned by"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    said, _ = running.communicate("go\n")
    assert "lock was removed or replaced" in said


def test_a_copy_does_not_write_beside_the_original(tmp_path: Path, running: Any) -> None:
    shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    with pytest.raises(ms.ConfigError, match=f"is being written by flow hostile.*{running.pid}"):
        run_in_process(flow_to(tmp_path), tmp_path / "copy", **OPTIONS)
    said, _ = running.communicate("go\n")
    assert said == "committed\n"


def test_the_older_run_is_fenced_where_locks_do_not_reach(tmp_path: Path, running: Any) -> None:
    """As on two machines: the lock on the directory is not seen, the marker is."""
    shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    staging = tmp_path / "out" / ".millstream"
    staging.rename(tmp_path / "held")  # the lock stays with the old inode
    shutil.copytree(tmp_path / "held", staging)
    run_in_process(flow_to(tmp_path), tmp_path / "copy", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))
    said, _ = running.communicate("go\n")
    assert "no longer belongs to this run" in said
    assert rows_in(tmp_path / "out") == list(range(ROWS))
    with pytest.raises(ms.ConfigError, match="was taken by run 2 of another copy"):
        run_in_process(flow_to(tmp_path), tmp_path / "ck", **OPTIONS)
    assert rows_in(tmp_path / "out") == list(range(ROWS))
