"""Segments in memory: kept under their names, bounded, let go of, and never needed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import CheckpointError
from millstream.state import memory, segments, warm
from millstream.state.directory import Directory
from millstream.state.memory import memory_folder
from millstream.state.segments import Segment, SegmentFile, read_segments, write_segment
from millstream.state.traffic import moved_so_far
from millstream.state.warm import Warm


def rows(*values: int) -> pa.Table:
    return pa.table({"shard": pa.array([0] * len(values), pa.int32()), "pane": list(values)})


class Place:
    """A state with a place in memory beside it."""

    def __init__(self, path: Path, limit: int = 2**20) -> None:
        (path / "memory").mkdir(parents=True)
        self.state = Directory(str(path / "state"))
        self.warm = Warm(str(path / "memory"), limit)
        warm.use(self.state, self.warm)

    def write(self, name: str, *values: int) -> tuple[SegmentFile, Segment]:
        file, found = write_segment(self.state, name, rows(*values))
        return file, found[0]

    def read(self, file: SegmentFile, segment: Segment) -> list[int]:
        segments._open.cache_clear()
        (table,) = read_segments(self.state, [segment], {file.file: file})
        found: list[int] = table.column("pane").to_pylist()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_was_written_is_read_from_memory(place: Place) -> None:
    written = place.write("a/t/00000001-0000-x.arrow", 1, 2)
    before = moved_so_far()
    assert place.read(*written) == [1, 2]
    moved = moved_so_far() - before
    assert (moved.read, moved.warm) == (0, written[0].size)


def test_without_memory_the_checkpoint_is_read(place: Place) -> None:
    written = place.write("a/t/00000001-0000-x.arrow", 1, 2)
    place.warm.prune(())
    before = moved_so_far()
    assert place.read(*written) == [1, 2]
    moved = moved_so_far() - before
    assert (moved.read, moved.warm) == (written[0].size, 0)


def test_a_segment_of_another_size_under_the_name_is_not_taken(place: Place) -> None:
    written = place.write("a/t/00000001-0000-x.arrow", 1, 2)
    Path(place.warm.place, written[0].file).write_bytes(b"half")
    assert place.read(*written) == [1, 2]


def test_a_damaged_checkpoint_is_found_once_memory_is_given_back(place: Place) -> None:
    written = place.write("a/t/00000001-0000-x.arrow", 1, 2)
    path = Path(place.state.where(written[0].file))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert place.read(*written) == [1, 2]
    warm.use(place.state, None)
    with pytest.raises(CheckpointError, match="damaged"):
        place.read(*written)


def test_it_is_bounded_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    place = Place(tmp_path, limit=5_000)
    first = place.write("a/t/00000000-0000-x.arrow", 0)
    size = first[0].size
    for number in range(1, 9):
        place.write(f"a/t/{number:08d}-0000-x.arrow", number)
        place.read(*first)  # in use
        os.utime(f"{place.warm.place}/{first[0].file}", ns=(2**62, 2**62))
        assert place.warm.held() <= 5_000
    assert place.warm.find(first[0].file, size) is not None
    assert place.warm.find("a/t/00000001-0000-x.arrow", size) is None
    large = place.write("a/t/00000009-0000-x.arrow", *range(2_000))
    assert place.warm.find(large[0].file, large[0].size) is None
    assert place.read(*large) == list(range(2_000))


def test_open_segments_pin_a_bounded_amount_of_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_OPEN_WARM", 1_000)
    segments._open.cache_clear()
    for number in range(5):
        file, segment = place.write(f"a/t/{number:08d}-0000-x.arrow", number)
        read_segments(place.state, [segment], {file.file: file})
        assert segments._open._warm <= max(1_000, file.size)


def test_a_manifest_lets_go_of_what_it_does_not_name(place: Place) -> None:
    old, new = place.write("a/t/1-x.arrow", 1), place.write("a/t/2-x.arrow", 2)
    place.warm.prune({new[0].file: new[0]})
    assert place.warm.find(old[0].file, old[0].size) is None
    assert place.warm.find(new[0].file, new[0].size) is not None
    assert place.warm.held() == new[0].size


def test_memory_that_is_gone_or_full_is_no_error(place: Place) -> None:
    os.rmdir(place.warm.place)
    assert place.read(*place.write("a/t/1-x.arrow", 1)) == [1]
    assert not os.path.exists(place.warm.place)  # nobody would remove it


# -- whose the memory is --------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_MEMORY", str(tmp_path))
    return tmp_path / f"millstream-{os.getuid()}"


def test_a_run_has_a_folder_until_it_gives_it_back(root: Path) -> None:
    folder = memory_folder("/a")
    assert folder is not None and folder.path.parent == root
    assert root.stat().st_mode & 0o777 == 0o700
    assert memory_folder("/a") is None  # it is taken
    folder.within("warm").joinpath("x").write_bytes(b"x")
    folder.release()
    assert list(root.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next(root: Path) -> None:
    left = memory_folder("/killed")
    running = memory_folder("/running")
    assert left is not None and running is not None
    left.within("warm").joinpath("x").write_bytes(b"x")
    left._lock.release()  # as the kernel does for a process that is killed
    other = memory_folder("/other")
    assert other is not None
    assert set(root.iterdir()) == {running.path, other.path}
    running.release()
    other.release()


def test_a_folder_of_others_is_not_used(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    assert memory_folder("/a") is None


def test_no_memory_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_MEMORY", "")
    assert memory_folder("/a") is None
    monkeypatch.delenv("MILLSTREAM_MEMORY")
    monkeypatch.setattr(memory, "_LEAST", 2**62)  # as the 64 MB of a container
    assert memory_folder("/a") is None
