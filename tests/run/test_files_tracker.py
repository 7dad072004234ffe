"""Files in the driver: what is new, how far it was read, and what a restart makes of it."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.api.sources import Files
from millstream.errors import CheckpointError, RunError
from millstream.io.formats import Format, parse_schema
from millstream.io.readers import Split, read_split
from millstream.run.sources.files import tracker as files
from millstream.run.sources.files.tracker import FilesTracker
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage

SCHEMA = parse_schema("n bigint")
MUCH = 10**9


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: files that come and go may have the same inode."""
    return disk_path


class Kept:
    """A tracker, what it has read so far, and its checkpoint."""

    def __init__(self, tmp: Path, where: Path | str, fmt: str = "json", **options: Any) -> None:
        self.spec = Files(where, fmt, **options)
        self.fmt = Format(fmt, SCHEMA)
        self.registry = tmp / "registry.jsonl"
        self.state = SourceState()
        self.read: list[int] = []
        self.restart()

    def restart(self) -> None:
        """As after a crash: only what was committed is known."""
        sources = open_storage(self.registry.parent)
        self.tracker = FilesTracker(0, self.spec, self.fmt, sources, "registry", self.state)

    def take(self, rows: int = MUCH, size: int = MUCH, parts: int = 1) -> list[Split]:
        """One batch, not committed."""
        self.tracker._next_look = 0.0  # looks are spaced by what they cost
        self.tracker.poll()
        return list(self.tracker.take(rows, size, parts))  # type: ignore[arg-type]

    def step(self, rows: int = MUCH, size: int = MUCH, parts: int = 1) -> list[int]:
        """One committed batch; gives its records."""
        got = self.records(self.take(rows, size, parts))
        self.commit()
        self.read += got
        return got

    def commit(self) -> None:
        self.state = SourceState()
        self.tracker.save(self.state)
        self.tracker.committed()

    def records(self, splits: list[Split]) -> list[int]:
        return [
            n
            for split in splits
            for parsed in read_split(self.fmt, split)
            for n in parsed.table["n"].to_pylist()
        ]


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in numbers)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


# -- growing input --------------------------------------------------------------------------------


def test_growing_files_and_half_lines(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    assert kept.step() == []
    (inbox / "a.jsonl").write_bytes(lines(1, 2) + b'{"n"')
    assert kept.step() == [1, 2]
    assert kept.step() == []
    with open(inbox / "a.jsonl", "ab") as out:
        out.write(b": 3}")
    assert kept.step() == []  # no newline, not a line
    with open(inbox / "a.jsonl", "ab") as out:
        out.write(b"\n" + lines(4))
    kept.restart()
    assert kept.step() == [3, 4]
    assert not kept.tracker.ended


def test_new_files_come_in_the_order_they_were_written(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    for place, name in enumerate(("z", "m", "a")):
        (inbox / name).write_bytes(lines(place))
        os.utime(inbox / name, (1000 + place, 1000 + place))
    assert kept.step() == [0, 1, 2]
    (inbox / "b").write_bytes(lines(3))
    (inbox / ".hidden").write_bytes(lines(99))
    (inbox / "_SUCCESS").write_bytes(b"")
    assert kept.step() == [3]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_truncated_after_all_of_it_was_read_begins_anew(
    tmp_path: Path, inbox: Path, restart: bool
) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a").write_bytes(lines(1, 2, 3))
    kept.step()
    (inbox / "a").write_bytes(lines(7))
    if restart:
        kept.restart()
    assert kept.step() == [7]
    assert kept.step() == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_truncated_before_all_of_it_was_read_stops_the_run(
    tmp_path: Path, inbox: Path, restart: bool
) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a").write_bytes(lines(1, 2, 3))
    assert kept.step(size=9) == [1]
    (inbox / "a").write_bytes(lines(7))
    if restart:
        kept.restart()
    with pytest.raises(RunError, match=r"a was read to byte 9, had more, and is not there any"):
        kept.step()


def test_a_followed_file_may_be_removed_once_it_was_read(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a").write_bytes(lines(1, 2))
    (inbox / "b").write_bytes(lines(3))
    kept.step()
    (inbox / "a").unlink()
    assert kept.step() == []
    assert 0 not in kept.tracker.open
    kept.restart()
    (inbox / "c").write_bytes(lines(4))
    assert kept.step() == [4]


def test_a_file_removed_before_it_was_read_is_an_error(tmp_path: Path, inbox: Path) -> None:
    for follow in (True, False):
        kept = Kept(tmp_path, inbox, follow=follow)
        (inbox / "a").write_bytes(lines(*range(100)))
        assert len(kept.step(size=300)) < 100
        (inbox / "a").unlink()
        if not follow:
            (inbox / "b").write_bytes(lines(1))
            kept.restart()
        with pytest.raises(RunError, match=r"a was read to byte 300, had more, and is not there"):
            kept.step()
        kept.registry.unlink()


def test_settled_files_leave_and_come_back_when_they_grow(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    for n in range(50):
        (inbox / f"{n:03d}").write_bytes(lines(n))
        os.utime(inbox / f"{n:03d}", (1000 + n, 1000 + n))
    assert kept.step() == list(range(50))
    assert kept.state.open == {}  # all unchanged for long
    kept.restart()
    assert kept.step() == []
    with open(inbox / "007", "ab") as out:
        out.write(lines(107))
    assert kept.step() == [107]
    assert kept.state.open == {"7": 20}
    kept.restart()
    assert kept.step() == []


# -- bounded input --------------------------------------------------------------------------------


def test_many_files_keep_the_open_ones_few(tmp_path: Path, inbox: Path) -> None:
    for n in range(500):
        (inbox / f"{n:04d}").write_bytes(lines(n))
    kept = Kept(tmp_path, inbox, max_files_per_batch=20)
    batches = 0
    while not kept.tracker.ended:
        assert len(kept.step()) == 20
        batches += 1
        assert kept.state.open == {}  # neither those that are finished nor those that wait
        kept.restart()
        kept.tracker.poll()
    assert batches == 25
    assert kept.read == list(range(500))
    assert kept.state.open == {}


def test_a_restart_at_any_offset_reads_each_line_once(tmp_path: Path, inbox: Path) -> None:
    random_ = random.Random(8)
    wanted = list(range(300))
    for part in range(3):
        (inbox / f"{part}").write_bytes(lines(*wanted[part * 100 : part * 100 + 100]))
    for size in (1, 7, 10, 11, 100, 999, 1100, 5000):
        kept = Kept(tmp_path, inbox)
        while not kept.tracker.ended:
            if random_.random() < 0.5:
                kept.take(size=size)  # a batch that is never committed
                kept.restart()
            kept.step(size=size, parts=random_.randrange(1, 5))
            if random_.random() < 0.3:
                kept.restart()
                kept.tracker.poll()
        assert kept.read == wanted, size
        kept.registry.unlink()


def test_a_file_is_finished_before_the_next_is_begun(tmp_path: Path, inbox: Path) -> None:
    """The rest of a budget must not be spent on the head of a later file."""
    for part in range(3):
        (inbox / f"{part}").write_bytes(lines(*range(part * 100, part * 100 + 100)))
    kept = Kept(tmp_path, inbox)
    while not kept.tracker.ended:
        kept.step(size=505)
        assert kept.read == list(range(len(kept.read)))


def test_budgets(tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (inbox / "a").write_bytes(lines(*range(10, 90)) * 10)  # 800 lines of 10 bytes
    kept = Kept(tmp_path, inbox)
    assert kept.tracker.pending() == 0
    first = kept.step(rows=10)  # a row is taken for 64 bytes until some were read
    assert len(first) == 64
    kept.tracker.learn(len(first))
    assert kept.tracker.row_bytes == 10
    assert len(kept.step(rows=10)) == 10
    assert len(kept.step(rows=MUCH, size=50)) == 5
    assert kept.tracker.pending() == (800 - 79) * 10
    assert len(kept.take(rows=10, parts=4)) == 1  # too little for tasks of their own
    monkeypatch.setattr(files, "_LEAST_ROWS", 5)
    splits = kept.take(rows=100, parts=4)
    assert len(splits) == 4
    assert sum(s.end - s.start for s in splits) == 1000


def test_a_last_line_without_newline_counts_in_bounded_input(tmp_path: Path, inbox: Path) -> None:
    (inbox / "a").write_bytes(lines(1) + b'{"n": 2}')
    kept = Kept(tmp_path, inbox)
    assert kept.step() == [1, 2]
    assert kept.tracker.ended


def test_empty_files_and_blank_lines(tmp_path: Path, inbox: Path) -> None:
    (inbox / "a").write_bytes(b"")
    (inbox / "b").write_bytes(b"\n\n" + lines(1) + b"\n")
    kept = Kept(tmp_path, inbox)
    assert kept.step() == [1]
    assert kept.tracker.ended


# -- gzip and parquet -----------------------------------------------------------------------------


def test_gzip_is_read_whole_once_it_is_whole(tmp_path: Path, inbox: Path) -> None:
    whole = gzip.compress(lines(*range(1000)))
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a.gz").write_bytes(whole[: len(whole) // 2])
    assert kept.step() == []
    (inbox / "a.gz").write_bytes(whole)
    assert kept.step(size=10) == list(range(1000))
    kept.restart()
    assert kept.step() == []


def test_gzip_that_grew_after_it_was_read_is_not_read_twice(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a.gz").write_bytes(gzip.compress(lines(1, 2)))
    assert kept.step() == [1, 2]
    with open(inbox / "a.gz", "ab") as out:
        out.write(gzip.compress(lines(3)))
    for _ in range(2):
        with pytest.raises(RunError, match=r"a\.gz has changed since it was read; give new data"):
            kept.step()
        kept.restart()


def test_parquet_by_rows(tmp_path: Path, inbox: Path) -> None:
    for part in range(2):
        rows = list(range(part * 100, part * 100 + 100))
        pq.write_table(pa.table({"n": rows}), inbox / f"{part}.parquet", row_group_size=30)
    kept = Kept(tmp_path, inbox, "parquet")
    while not kept.tracker.ended:
        assert len(kept.step(rows=33, parts=2)) <= 33
        kept.restart()
        kept.tracker.poll()
    assert kept.read == list(range(200))


def test_parquet_with_fewer_rows_than_were_read(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, "parquet", follow=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), inbox / "a.parquet")
    assert kept.step() == [1, 2, 3]
    pq.write_table(pa.table({"n": [9]}), inbox / "a.parquet")
    for _ in range(2):
        with pytest.raises(RunError, match=r"a\.parquet has changed since it was read; give new"):
            kept.step()
        kept.restart()


# -- the registry ---------------------------------------------------------------------------------


def test_a_damaged_registry_is_refused(tmp_path: Path, inbox: Path) -> None:
    (inbox / "a").write_bytes(lines(1))
    kept = Kept(tmp_path, inbox)
    kept.step()
    data = kept.registry.read_bytes()
    for wrong in (data[:-3], data.replace(b"/a", b"/b"), b"", bytes(len(data))):
        kept.registry.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"registry\.jsonl is damaged"):
            kept.restart()
    kept.registry.write_bytes(data + b'"/never committed"\n[0, 99')
    kept.restart()
    assert kept.registry.read_bytes() == data
    assert kept.step() == []


def test_a_full_disk_leaves_the_registry_usable(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line was written when there was no more room; the next attempt begins cleanly."""
    (inbox / "a").write_bytes(lines(1))
    os.utime(inbox / "a", (1000, 1000))  # it is settled at once
    kept = Kept(tmp_path, inbox, follow=True)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    kept.take()
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("millstream.state.directory.os.fsync", full)
            with pytest.raises(OSError, match="No space"):
                kept.commit()
            with open(kept.registry, "ab") as out:
                out.write(b'"/half')
    kept.commit()
    assert kept.state.open == {}
    kept.restart()
    assert kept.step() == []


# -- what was seen --------------------------------------------------------------------------------


def test_damage_to_the_list_of_files_seen_is_refused(tmp_path: Path, inbox: Path) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a").write_bytes(lines(1, 2))
    (inbox / "b").write_bytes(lines(3, 4))
    kept.step(size=9)
    path = kept.registry.with_suffix(".seen")
    data = path.read_bytes()
    for wrong in (data[:-3], data.replace(b"/a", b"/b"), b"", bytes(len(data))):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"registry\.seen is damaged.*still to be read"):
            kept.restart()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"registry\.seen is damaged"):
        kept.restart()
    for torn in (b'{"seen":2,"pa', b'{"seen":2}\n', b"\0\0\0", b"\n"):
        path.write_bytes(data + torn)
        kept.restart()
    (inbox / "c").write_bytes(lines(5))
    kept.step()
    kept.restart()
    assert kept.step() == []
    assert sorted(kept.read) == [1, 2, 3, 4, 5]


def test_a_full_disk_forgets_no_file_that_was_seen(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, inbox, follow=True)
    (inbox / "a").write_bytes(lines(1, 2))
    (inbox / "b").write_bytes(lines(3, 4))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("millstream.state.directory.os.fsync", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                kept.take(size=9)
    assert kept.step(size=9) == [1]
    kept.restart()
    assert {Path(file.path).name for file in kept.tracker.unread.files} == {"b"}
    (inbox / "b").unlink()
    with pytest.raises(RunError, match="b was seen, nothing of it was read yet"):
        kept.step()


def test_a_parquet_file_that_was_half_read_and_is_gone_stops_the_run(
    tmp_path: Path, inbox: Path
) -> None:
    for gone in ("a", "b"):  # begun, and waiting
        kept = Kept(tmp_path, inbox, "parquet", follow=True)
        for n, name in enumerate("ab"):
            pq.write_table(pa.table({"n": [n] * 10}), inbox / f"{name}.parquet")
            os.utime(inbox / f"{name}.parquet", (1000 + n, 1000 + n))
        assert len(kept.step(rows=5)) == 5
        (inbox / f"{gone}.parquet").unlink()
        kept.restart()
        with pytest.raises(RunError, match=rf"{gone}\.parquet was .* is not there any more"):
            kept.step()
        kept.registry.unlink()
        kept.registry.with_suffix(".seen").unlink()
