"""The checkpoint directory: who may read it, who owns it, what is kept and what is not."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import CheckpointError
from millstream.state.checkpoint import Checkpoint, Published
from millstream.state.doctor import examine
from millstream.state.manifests import Manifest, list_manifests
from millstream.state.segments import SegmentFile


def test_only_its_owner_may_look(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path / "deep" / "ck")
    for path in (place.path, *place.path.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert not list(place.path.glob(".probe*"))


def test_a_second_driver_is_told_who_has_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from millstream.state.checkpoint import Checkpoint\n"
        "place = Checkpoint(sys.argv[1]); place.lock(); print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "ck")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "locked\n"
            place = Checkpoint(tmp_path / "ck")
            with pytest.raises(CheckpointError) as caught:
                place.lock()
            message = str(caught.value)
            assert f"is owned by pid {owner.pid} on host {socket.gethostname()} since" in message
            assert "stop that run first" in message
        finally:
            owner.kill()
    place.lock()  # killed, so the lock is free at once
    assert f"pid {os.getpid()} on" in (tmp_path / "ck" / "lock").read_text()
    place.close()


def test_the_lock_goes_with_close(tmp_path: Path) -> None:
    first, second = Checkpoint(tmp_path / "ck"), Checkpoint(tmp_path / "ck")
    first.lock()
    with pytest.raises(CheckpointError, match="is owned by pid"):
        second.lock()
    first.close()
    second.lock()
    second.close()
    second.close()


def test_places_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file, not a directory"):
        Checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoint(tmp_path / "file" / "ck")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        Checkpoint(tmp_path / "none", create=False)
    with pytest.raises(CheckpointError, match=r"cannot be written \(.*choose another place"):
        Checkpoint("/proc/ck")


def segment(place: Checkpoint, name: str) -> SegmentFile:
    path = place.path / "state" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"abc")
    return SegmentFile(name, 3, 0x352441C2)


def commit(place: Checkpoint, batch: int, *files: SegmentFile) -> Manifest:
    manifest = Manifest(batch, files={f.file: f for f in files})
    place.commit(manifest)
    return manifest


def test_garbage_is_what_nothing_kept_refers_to(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    old, shared, new = (segment(place, f"op/panes/0000000{n}-0-a.arrow") for n in (0, 1, 2))
    stray = segment(place, "op/panes/00000001-0-failed.arrow")
    commit(place, 0, old)
    commit(place, 1, old, shared)
    newest = commit(place, 2, shared, new)
    place.collect_garbage(newest, retain=2)
    assert list_manifests(place.manifests) == [1, 2]
    left = set(place.state.walk())
    assert left == {old.file, shared.file, new.file}
    assert stray.file not in left
    place.collect_garbage(newest, retain=1)
    left = set(place.state.walk())
    assert left == {shared.file, new.file}
    assert place.latest() == newest


def test_a_damaged_old_manifest_does_not_stop_garbage_collection(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    commit(place, 0)
    newest = commit(place, 1, segment(place, "op/panes/00000001-0-a.arrow"))
    (place.path / "manifests" / "00000000.json").write_text("nonsense")
    place.collect_garbage(newest, retain=5)
    assert (place.path / "state" / "op/panes/00000001-0-a.arrow").exists()


def test_what_was_never_committed_is_discarded(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    kept = segment(place, "op/panes/00000001-0-a.arrow")
    gone = segment(place, "op/panes/00000002-0-b.arrow")
    half = place.path / "state" / "op" / "panes" / ".00000002-0-c.arrow.tmp"
    half.write_bytes(b"a")
    for name in ("00000001", "00000002", "rejected-00000002", "rejected-00000001"):
        (place.path / "dead" / f"{name}.jsonl").write_text("{}\n")
    (place.path / "manifests" / ".00000002.json.tmp").write_text("{")
    commit(place, 1, kept)
    place.discard_uncommitted(1)
    assert (place.path / "state" / kept.file).exists()
    assert not (place.path / "state" / gone.file).exists()
    assert not half.exists()
    assert sorted(p.name for p in (place.path / "dead").iterdir()) == [
        "00000001.jsonl",
        "rejected-00000001.jsonl",
    ]
    assert [p.name for p in (place.path / "manifests").iterdir()] == ["00000001.json"]


def test_the_marker_is_believed_only_if_it_is_whole(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    assert place.published() is None
    place.mark_published(12)
    assert place.published() == Published(12, "")
    commit(place, 13)
    place.mark_published(13)
    marked = place.published()
    assert marked is not None
    assert (marked.batch, len(marked.digest)) == (13, 32)
    marker = place.path / "published"
    data = marker.read_bytes()
    for at in range(len(data)):
        marker.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert place.published() is None
    for wrong in (b"", b"12", b"\xff\xfe", b"12 " + data.split(b" ", 1)[1]):
        marker.write_bytes(wrong)
        assert place.published() is None


def test_a_published_batch_without_its_manifest_is_refused(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    commit(place, 4)
    place.mark_published(5)
    with pytest.raises(CheckpointError, match=r"00000005\.json is missing"):
        place.latest()
    (place.path / "manifests" / "00000004.json").unlink()
    with pytest.raises(CheckpointError, match=r"00000005\.json is missing"):
        place.latest()
    assert not examine(tmp_path)[1]


def test_the_program_is_kept_with_its_checksum(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    assert place.read_program() is None
    program = {"flow": "ü", "shards": 8, "sources": {"a": {"path": "/x"}}}
    place.write_program(program)
    assert place.read_program() == program
    path = place.path / "flow.json"
    text = path.read_text()
    path.write_text(text.replace('"shards": 8', '"shards": 9'))
    with pytest.raises(CheckpointError, match=r"flow\.json is damaged.*doctor"):
        place.read_program()
    path.unlink()
    assert place.read_program() is None
    commit(place, 0)
    with pytest.raises(CheckpointError, match=r"flow\.json is missing although"):
        place.read_program()


def test_doctor_on_a_fresh_and_a_sound_checkpoint(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    assert examine(tmp_path) == (
        [
            "flow.json      absent",
            "manifests      none: no batch was committed yet",
            "result         sound",
        ],
        True,
    )
    place.write_program({"flow": "x"})
    commit(place, 0, segment(place, "op/panes/00000000-0-a.arrow"))
    place.mark_published(0)
    lines, sound = examine(tmp_path)
    assert sound
    assert lines[1] == "last good      batch 0, 0 dead letters, 1 segments"


def test_doctor_names_a_damaged_segment_and_the_last_good_batch(tmp_path: Path) -> None:
    place = Checkpoint(tmp_path)
    place.write_program({"flow": "x"})
    good, bad = (segment(place, f"op/panes/0000000{n}-0-a.arrow") for n in (0, 1))
    commit(place, 0, good)
    commit(place, 1, good, bad)
    place.mark_published(1)
    (place.path / "state" / bad.file).write_bytes(b"abd")
    lines, sound = examine(tmp_path)
    assert not sound
    assert any(line.startswith("00000001.json  BAD: ") and bad.file in line for line in lines)
    assert not any("`millstream doctor`" in line for line in lines)  # that is what speaks
    assert any(line.startswith("last good      batch 0,") for line in lines)
    assert any("remove the manifests after 00000000.json" in line for line in lines)
    (place.path / "state" / good.file).unlink()
    lines, _ = examine(tmp_path)
    assert "manifests      no good batch is left; start with a new checkpoint" in lines


def test_what_a_killed_start_tried_to_write_is_removed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "ck")
    checkpoint.lock()
    for name in (".probe-1", "..probe-2.tmp"):
        (tmp_path / "ck" / name).write_text("x")
    checkpoint.discard_uncommitted(0)
    assert not [path for path in (tmp_path / "ck").iterdir() if "probe" in path.name]
