"""Rotated logs: every record once, whatever a file is called by now, or the run stops."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.api.sources import Files
from millstream.errors import RunError
from millstream.io import prints
from millstream.run.sources.files.listing import by_age
from millstream.run.sources.files.recognising import Recogniser
from millstream.run.sources.files.tracker import FilesTracker
from millstream.run.sources.resolving import resolve_format
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage
from tests.run.test_files_tracker import Kept, lines

Where = Callable[[Path], str]


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: files that come and go may have the same inode."""
    return disk_path


@pytest.fixture(params=["directory", "glob", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """A followed log, whose rotated names are listed (directory) or not (glob, file)."""
    (tmp_path / "in").mkdir()
    where = {"directory": "in", "glob": "in/*.log", "file": "in/app.log"}[request.param]
    yield Kept(tmp_path, tmp_path / where, follow=True)


@pytest.fixture(params=["running", "restarted"])
def between(request: pytest.FixtureRequest) -> Callable[[Kept], None]:
    """Whether the flow runs while files are rotated, or is started again afterwards."""
    return Kept.restart if request.param == "restarted" else lambda kept: None


def log(kept: Kept, name: str = "app.log") -> Path:
    return kept.registry.parent / "in" / name


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as out:
        out.write(data)


def drain(kept: Kept) -> list[int]:
    """All that can be read now, by several looks."""
    for _ in range(4):
        kept.step()
    return sorted(kept.read)


def test_renamed_and_created_anew(kept: Kept, between: Callable[[Kept], None]) -> None:
    append(log(kept), lines(*range(100)))
    assert len(kept.step(size=300)) < 100  # not yet to its end
    append(log(kept), lines(*range(100, 150)))
    log(kept).rename(log(kept, "app.log.1"))
    append(log(kept), lines(*range(200, 400)))
    between(kept)
    kept.step()
    append(log(kept, "app.log.1"), lines(*range(150, 200)))  # the writer had it still open
    assert drain(kept) == list(range(400))
    between(kept)
    assert drain(kept) == list(range(400))


def test_renamed_again_and_again(kept: Kept, between: Callable[[Kept], None]) -> None:
    for day in range(5):
        for old in range(day, 0, -1):
            if (path := log(kept, f"app.log.{old}")).exists():
                path.rename(log(kept, f"app.log.{old + 1}"))
        if day:
            log(kept).rename(log(kept, "app.log.1"))
        append(log(kept), lines(*range(day * 50, day * 50 + 50)))
        kept.step()
        between(kept)
    assert drain(kept) == list(range(250))


def compress(path: Path) -> None:
    """As gzip does it: the original goes when the copy is complete."""
    with open(path, "rb") as source, gzip.open(f"{path}.gz", "wb") as out:
        shutil.copyfileobj(source, out)
    path.unlink()


def test_compressed_after_it_was_read(kept: Kept, between: Callable[[Kept], None]) -> None:
    append(log(kept), lines(*range(100)))
    kept.step()
    log(kept).rename(log(kept, "app.log.1"))
    append(log(kept), lines(*range(100, 110)))
    kept.step()
    compress(log(kept, "app.log.1"))
    between(kept)
    assert drain(kept) == list(range(110))
    log(kept, "app.log.1.gz").rename(log(kept, "app.log.2.gz"))
    between(kept)
    assert drain(kept) == list(range(110))


def test_renamed_and_compressed_before_the_rest_was_read(
    kept: Kept, between: Callable[[Kept], None]
) -> None:
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    append(log(kept), lines(*range(100, 200)) + b'{"n": 200}')  # the last line has no end
    log(kept).rename(log(kept, "app.log.1"))
    compress(log(kept, "app.log.1"))
    append(log(kept), lines(*range(201, 300)))
    between(kept)
    assert drain(kept) == list(range(300))
    between(kept)
    assert drain(kept) == list(range(300))


def test_compressed_while_the_original_is_still_there(kept: Kept) -> None:
    append(log(kept), lines(*range(100)))
    kept.step()
    log(kept).rename(log(kept, "app.log.1"))
    whole = gzip.compress(log(kept, "app.log.1").read_bytes())
    for part in (20, len(whole) // 2, len(whole)):
        log(kept, "app.log.1.gz").write_bytes(whole[:part])
        assert kept.step() == []
    assert kept.step() == []
    log(kept, "app.log.1").unlink()
    assert drain(kept) == list(range(100))
    kept.restart()
    assert drain(kept) == list(range(100))


@pytest.mark.parametrize("regrown", [0, 3, 500])
def test_copied_and_truncated(kept: Kept, between: Callable[[Kept], None], regrown: int) -> None:
    append(log(kept), lines(*range(100)))
    kept.step()
    append(log(kept), lines(*range(100, 150)))  # nobody has looked yet
    shutil.copy(log(kept), log(kept, "app.log.1"))
    os.truncate(log(kept), 0)
    append(log(kept), lines(*range(150, 150 + regrown)))
    between(kept)
    assert drain(kept) == list(range(150 + regrown))
    append(log(kept), lines(1000))
    between(kept)
    assert drain(kept) == [*range(150 + regrown), 1000]


@pytest.mark.parametrize("copy", ["app.log.1", "aaa.log"])
def test_a_copy_seen_in_the_first_look_at_its_original(
    kept: Kept, between: Callable[[Kept], None], copy: str
) -> None:
    append(log(kept), lines(*range(10)))
    shutil.copyfile(log(kept), log(kept, copy))
    kept.step(size=30)  # between the copy and the truncation
    os.truncate(log(kept), 0)
    between(kept)
    kept.step()
    append(log(kept), lines(*range(10, 20)))
    assert drain(kept) == list(range(20))


def test_copied_and_truncated_under_two_names(kept: Kept) -> None:
    append(log(kept), lines(*range(10)))
    os.link(log(kept), log(kept, "again.log"))
    kept.step(size=30)
    shutil.copyfile(log(kept), log(kept, "app.log.1"))
    os.truncate(log(kept), 0)
    kept.step()
    assert drain(kept) == list(range(10))


def test_a_copy_seen_before_its_original_is_truncated(kept: Kept) -> None:
    append(log(kept), lines(*range(100)))
    kept.step()
    whole = log(kept).read_bytes()
    for part in (50, 500, len(whole)):  # cp is at work
        log(kept, "app.log.1").write_bytes(whole[:part])
        assert kept.step() == []
    append(log(kept), lines(100))  # lost by copytruncate itself, but seen here
    kept.step()
    os.truncate(log(kept), 0)
    append(log(kept), lines(101))
    assert drain(kept) == list(range(102))


def test_a_copy_of_which_the_original_stays_is_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in", follow=True)
    append(log(kept), lines(1, 2))
    kept.step()
    shutil.copy(log(kept), log(kept, "other.log"))
    assert kept.step() == []  # it may be about to be truncated
    monkeypatch.setattr(Recogniser, "COPYING", 0.0)
    assert kept.step() == [1, 2]


def test_removed_and_a_longer_one_under_the_old_name(
    kept: Kept, between: Callable[[Kept], None]
) -> None:
    append(log(kept), lines(*range(100)))
    kept.step()
    log(kept).unlink()
    append(log(kept), lines(*range(100, 400)))  # may well have the same inode
    between(kept)
    assert drain(kept) == list(range(400))


def test_removed_before_all_of_it_was_read_stops_the_run(
    kept: Kept, between: Callable[[Kept], None]
) -> None:
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    log(kept).unlink()
    append(log(kept), lines(*range(100, 400)))
    between(kept)
    with pytest.raises(RunError, match="What the rest of it was cannot be known"):
        kept.step()


def test_put_back_from_a_backup(kept: Kept, between: Callable[[Kept], None]) -> None:
    """Another inode, the same name and the same bytes: it is the same file."""
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    shutil.copy(log(kept), log(kept, "backup"))
    log(kept).unlink()
    log(kept, "backup").rename(log(kept))
    append(log(kept), lines(*range(100, 150)))
    between(kept)
    assert drain(kept) == list(range(150))


def test_what_comes_after_a_file_was_removed_is_another_one(tmp_path: Path) -> None:
    """A directory things are dropped into: equal files, each removed once it was read."""
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in", follow=True)
    for name in ("a", "b", "c"):
        append(log(kept, name), lines(1))
        kept.step()
        log(kept, name).unlink()
        kept.step()
    append(log(kept, "d"), lines(1, 2))
    assert drain(kept) == [1, 1, 1, 1, 2]


def test_a_slow_look_for_first_times_does_not_delay_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr("millstream.run.sources.files.tracker.time", clock)
    (tmp_path / "in").mkdir()
    options = {"time": "ts", "schema": "ts bigint", "format": "json", "lateness": "0s"}
    spec = Files(tmp_path / "in", follow=True, **options)
    state = SourceState()
    fmt = resolve_format("in", spec)
    tracker = FilesTracker(0, spec, fmt, open_storage(tmp_path), "registry", state)
    (tmp_path / "in" / "a.json").write_text('{"ts": 1}\n')

    def slow(look: Any, paths: list[str]) -> list[Any]:
        nonlocal now
        now += 60
        return [1_000_000 for _ in paths]

    tracker.poll(slow)
    tracker.take(100, 1000, 1)
    with open(tmp_path / "in" / "a.json", "a") as out:
        out.write('{"ts": 2}\n')
    tracker.poll(slow)
    assert tracker.pending() > 0


def test_files_with_the_same_beginning_are_different_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in", "csv", follow=True)
    for name in "abc":
        append(tmp_path / "in" / f"{name}.csv", b"n\n")
    assert kept.step() == []
    for number, name in enumerate("abc"):
        append(tmp_path / "in" / f"{name}.csv", b"%d\n" % number)
    append(tmp_path / "in" / "d.csv", b"n\n3\n")
    kept.step()
    (tmp_path / "in" / "a.csv").rename(tmp_path / "in" / "a.csv.1")
    append(tmp_path / "in" / "a.csv", b"n\n4\n")
    kept.restart()
    assert drain(kept) == [0, 1, 2, 3, 4]


def test_a_file_that_waits_may_be_rotated(kept: Kept) -> None:
    append(log(kept), lines(*range(100)))
    kept.tracker.poll()  # listed, and nothing of it read
    log(kept).rename(log(kept, "app.log.1"))
    append(log(kept), lines(*range(100, 150)))
    kept.tracker._next_look = 0.0
    kept.tracker.poll()
    compress(log(kept, "app.log.1"))
    assert drain(kept) == list(range(150))


def test_renamed_between_the_plan_and_the_reading(kept: Kept) -> None:
    append(log(kept), lines(*range(100)))
    splits = kept.take()
    log(kept).rename(log(kept, "app.log.1"))
    append(log(kept), lines(*range(100, 300)))
    kept.read += kept.records(splits)
    kept.commit()
    assert drain(kept) == list(range(300))


def test_bounded_input_does_not_read_renamed_files_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in")
    append(log(kept), lines(*range(10)))
    append(log(kept, "b.log"), lines(*range(10, 20)))
    kept.step()
    log(kept).rename(log(kept, "app.log.1"))
    compress(log(kept, "b.log"))
    append(log(kept), lines(20))
    kept.restart()
    assert drain(kept) == list(range(21))


@pytest.mark.parametrize("how", ["compressed", "copied"])
def test_rotated_between_the_plan_and_the_reading(kept: Kept, how: str) -> None:
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    splits = kept.take(size=300)
    if how == "compressed":
        log(kept).rename(log(kept, "app.log.1"))
        compress(log(kept, "app.log.1"))
    else:
        shutil.copy(log(kept), log(kept, "app.log.1"))
        os.truncate(log(kept), 0)
    append(log(kept), lines(*range(100, 400)))
    kept.read += kept.records(splits)
    kept.commit()
    assert drain(kept) == list(range(400))


# -- files that were seen and not begun -----------------------------------------------------------


def rotate(kept: Kept, how: str) -> None:
    """What logrotate does; app.log.2 is free."""
    if log(kept, "app.log.1").exists():
        log(kept, "app.log.1").rename(log(kept, "app.log.2"))
    if how == "copied":
        shutil.copy(log(kept), log(kept, "app.log.1"))
        os.truncate(log(kept), 0)
        return
    log(kept).rename(log(kept, "app.log.1"))
    if how == "compressed":
        compress(log(kept, "app.log.1"))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("how", ["renamed", "compressed", "copied"])
def test_what_waited_when_the_flow_was_killed_is_found_again(
    kept: Kept, how: str, committed: bool
) -> None:
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    rotate(kept, "renamed")
    append(log(kept), lines(*range(100, 150)))
    kept.take(size=300)  # it is seen, and nothing of it is read
    assert [Path(file.path).name for file in kept.tracker.unread.files] == ["app.log"]
    if committed:
        kept.restart()
        kept.step(size=300)
        append(log(kept), lines(*range(150, 170)))
        kept.step(size=300)
    else:
        append(log(kept), lines(*range(150, 170)))
    rotate(kept, how)
    append(log(kept), lines(*range(170, 200)))
    kept.restart()
    assert drain(kept) == list(range(200))
    kept.restart()
    assert drain(kept) == list(range(200))


def test_what_waited_and_is_nowhere_to_be_found_stops_the_run(kept: Kept) -> None:
    append(log(kept), lines(*range(100)))
    kept.step(size=300)
    rotate(kept, "renamed")
    append(log(kept), lines(*range(100, 150)))
    kept.step(size=300)
    log(kept).unlink()
    append(log(kept), lines(*range(200, 250)))
    kept.restart()
    with pytest.raises(RunError, match=r"app\.log was seen.* nothing of it was read.*cannot be"):
        kept.step()


@pytest.mark.parametrize("how", ["renamed", "compressed", "copied"])
def test_a_kill_before_the_first_commit_forgets_nothing(kept: Kept, how: str) -> None:
    append(log(kept), lines(*range(100)))
    assert kept.take(size=300)
    rotate(kept, how)
    append(log(kept), lines(*range(100, 150)))
    kept.restart()
    assert drain(kept) == list(range(150))


def test_a_log_that_grows_while_it_waits_is_known_by_what_it_had_grown_to(kept: Kept) -> None:
    """Its first line alone is that of every log of its kind."""
    append(log(kept, "app.log.0"), lines(*range(100)))
    log(kept, "app.log.0").rename(log(kept))
    kept.step(size=300)
    rotate(kept, "renamed")
    append(log(kept), lines(100))
    kept.step(size=100)
    append(log(kept), lines(*range(101, 150)))
    kept.step(size=100)
    append(log(kept, "app.log.0"), lines(100))  # not ours
    append(log(kept, "app.log.0"), lines(999))
    compress(log(kept))
    kept.restart()
    wanted = [*range(150), 100, 999] if kept.spec.path == log(kept).parent else range(150)
    assert drain(kept) == sorted(wanted)


def test_what_is_seen_costs_a_line_and_few_more_as_it_grows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in", follow=True)
    append(log(kept, "a.log"), lines(*range(1000)))
    append(log(kept, "b.log"), lines(0))
    for n in range(1, 200):
        append(log(kept, "b.log"), lines(n))
        kept.step(size=10)
    assert len(kept.tracker.unread.files) == 1
    assert len((tmp_path / "registry.seen").read_bytes().splitlines()) < 12


@pytest.mark.parametrize("last", [True, False])
def test_renamed_while_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """What moved between the listing and a look at its bytes is not another file."""
    (tmp_path / "in").mkdir()
    kept = Kept(tmp_path, tmp_path / "in", follow=True)
    append(log(kept), lines(*range(10)))
    kept.step()
    compress(log(kept))
    moved: list[str] = []

    def lead_of(path: str) -> bytes:
        lead = b"" if last else prints.lead_of(path)
        if not moved:
            moved.append(path)
            log(kept, "app.log.gz").rename(log(kept, "app.log.2.gz"))
        return lead

    monkeypatch.setattr("millstream.run.sources.files.recognising.lead_of", lead_of)
    kept.step()
    monkeypatch.undo()
    assert moved
    assert drain(kept) == list(range(10))


def test_files_of_one_log_are_in_the_order_of_their_age() -> None:
    oldest_first = ["a.log.10.gz", "a.log.2", "a.log.1", "a.log"]
    by_date = ["b.log-20260101", "b.log-20260102", "b.log"]
    mixed = sorted([*oldest_first, *by_date])
    assert sorted(mixed, key=by_age) == [*oldest_first, *by_date]
