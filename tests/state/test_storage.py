"""What every storage promises; the local directory is the one there is."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import CheckpointError
from millstream.state.storage import Held, Storage, open_storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path)


def test_what_was_put_is_read_whole_by_range_and_mapped(storage: Storage) -> None:
    storage.put("a/b/c", b"0123456789")
    assert storage.read("a/b/c") == b"0123456789"
    assert storage.read_range("a/b/c", 3, 4) == b"3456"
    assert storage.read_range("a/b/c", 8, 10) == b"89"
    assert storage.map("a/b/c").to_pybytes() == b"0123456789"
    assert storage.size("a/b/c") == 10
    assert storage.within("a").within("b").read("c") == b"0123456789"
    storage.put("empty", b"")
    assert len(storage.map("empty")) == 0


def test_another_object_of_a_name_is_another(storage: Storage) -> None:
    assert storage.stamp("a") is None
    storage.put("a", b"1")
    first = storage.stamp("a")
    assert storage.stamp("a") == first
    storage.put("a", b"2", durable=False)
    assert (storage.stamp("a") != first, storage.read("a")) == (True, b"2")


def test_what_is_mapped_stays_readable(storage: Storage) -> None:
    storage.put("a", b"x" * 100_000)
    mapped = storage.map("a")
    storage.delete("a")
    storage.delete("a")
    assert not storage.exists("a")
    assert mapped.to_pybytes() == b"x" * 100_000


@pytest.mark.parametrize("method", ["read", "map", "size"])
def test_what_is_not_there(storage: Storage, method: str) -> None:
    assert not storage.exists("a")
    with pytest.raises(FileNotFoundError):
        getattr(storage, method)("a")


def test_objects_are_listed_in_order(storage: Storage, tmp_path: Path) -> None:
    for name in ("b", "a", "deep/er/c", "deep/d"):
        storage.put(name, b"")
    assert storage.names() == ["a", "b"]
    assert storage.walk() == ["a", "b", "deep/d", "deep/er/c"]
    assert storage.within("deep").names() == ["d"]
    assert storage.within("none").names() == storage.within("none").walk() == []
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    assert storage.walk() == ["a", "b", "deep/d", "deep/er/c", "link"]  # it is not gone into
    assert storage.within("link").names() == storage.within("link").within("er").walk() == []


def test_a_name_is_given_once(storage: Storage) -> None:
    storage.put_new("a", b"first")
    with pytest.raises(FileExistsError):
        storage.put_new("a", b"second")
    storage.put("staged", b"third")
    with pytest.raises(FileExistsError):
        storage.publish("staged", "a")
    assert (storage.read("a"), storage.read("staged")) == (b"first", b"third")
    storage.publish("staged", "b")
    assert storage.names() == ["a", "b"]
    storage.rename("b", "a")
    assert (storage.names(), storage.read("a")) == (["a"], b"third")


def test_publishing_goes_on_where_a_crash_left_it(storage: Storage, tmp_path: Path) -> None:
    storage.put("staged", b"x")
    os.link(tmp_path / "staged", tmp_path / "final")
    storage.publish("staged", "final")
    assert (storage.names(), storage.read("final")) == (["final"], b"x")


def test_what_is_appended_replaces_what_comes_after(storage: Storage) -> None:
    storage.append("log", 0, b"one\n")
    storage.append("log", 4, b"two\nhal")
    storage.append("log", 8, b"three\n")
    assert storage.read("log") == b"one\ntwo\nthree\n"
    storage.append("log", 4, b"")
    assert storage.read("log") == b"one\n"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_writing_is_all_or_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    storage.put("x", b"old")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            storage.put("x", b"new")
    assert (storage.names(), storage.read("x")) == (["x"], b"old")
    storage.put("x", b"new")
    assert storage.read("x") == b"new"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", ".."])
def test_no_name_leads_out(storage: Storage, name: str) -> None:
    for use in (storage.read, storage.map, storage.delete, storage.within, storage.stamp):
        with pytest.raises(CheckpointError, match="is no name of an object"):
            use(name)
    with pytest.raises(CheckpointError, match="is no name of an object"):
        storage.put(name, b"")


def test_no_link_is_followed(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"precious")
    for name in ("link", ".put.tmp", "put", "log"):
        (tmp_path / name).symlink_to(tmp_path / "outside")
    for read in (storage.read, storage.map):
        with pytest.raises(CheckpointError, match="link is a link; only regular files"):
            read("link")
    storage.put("put", b"mine")  # in place of the link
    with pytest.raises(OSError, match="symbolic link"):
        storage.append("log", 0, b"mine")
    storage.delete("link")
    assert (tmp_path / "outside").read_bytes() == b"precious"
    assert (storage.read("put"), storage.exists("link")) == (b"mine", False)


def test_nothing_waits_for_a_pipe(storage: Storage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (storage.read, storage.map):
        with pytest.raises(CheckpointError, match="is not a regular file"):
            read("pipe")


def test_one_process_holds_it(storage: Storage, tmp_path: Path) -> None:
    code = (
        "import sys, time; from millstream.state.storage import open_storage\n"
        "held = open_storage(sys.argv[1]).hold('lock', 'the other'); print(flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert storage.held("lock")
        with pytest.raises(Held, match="the other"):
            storage.hold("lock", "me")
        (tmp_path / "lock").unlink()
        with pytest.raises(Held):
            storage.hold("lock", "me")  # the folder is held, too
        other.kill()
    hold = storage.hold("lock", "me")
    assert (hold.valid(), storage.held("lock")) == (True, True)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    (tmp_path / "lock").unlink()
    assert not hold.valid()
    hold.release()
    hold.release()
    assert not storage.held("lock")
