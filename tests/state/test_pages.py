"""Pages have what their base has, each shard in one of them; what is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.state import pages
from millstream.state.bases import Base, Segments
from millstream.state.pages import pages_of, read_page, write_pages
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import Storage, open_storage

DIGEST = "d" * 32
FILES = {f"f{n}": SegmentFile(f"f{n}", 1000, n) for n in range(5)}
SEGMENTS: Segments = {
    "u": {
        "slates": {
            str(shard): [Segment(f"f{shard % 5}", 0, shard, -shard, shard)] for shard in range(700)
        }
    }
}


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    directory = open_storage(tmp_path)
    write_pages(directory, Base(3, SEGMENTS, FILES), DIGEST)
    return directory


@pytest.mark.parametrize("parts", [1, 2, 3, 12, 48, 256, 512, 1000])
def test_every_partition_finds_its_shards(place: Storage, parts: int) -> None:
    for part in range(parts):
        found: dict[str, list[Segment]] = {}
        for number in pages_of(part, parts):
            page = read_page(place, 3, DIGEST, number)
            shards = page.segments.get("u", {}).get("slates", {})
            found |= {shard: one for shard, one in shards.items() if int(shard) % parts == part}
            assert all(page.files[s.file] == FILES[s.file] for one in shards.values() for s in one)
        wanted = SEGMENTS["u"]["slates"].items()
        assert found == {shard: one for shard, one in wanted if int(shard) % parts == part}


def test_what_is_not_whole_is_refused(tmp_path: Path, place: Storage) -> None:
    with pytest.raises(ms.CheckpointError, match="is not what belongs to its base"):
        read_page(place, 3, "e" * 32, 0)
    with pytest.raises(ms.CheckpointError, match="is missing"):
        read_page(place, 4, DIGEST, 0)
    file = tmp_path / pages.pages_name(3)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    read_page(place, 3, DIGEST, 7)
    with pytest.raises(ms.CheckpointError, match="is damaged"):
        read_page(place, 3, DIGEST, 255)


@pytest.mark.parametrize("how", ["zeros", "swapped", "far"])
def test_places_that_are_not_what_was_written_are_refused(
    place: Storage, tmp_path: Path, how: str
) -> None:
    """Pages in each other's places are whole: their shards would be without what is stored."""
    file = tmp_path / pages.pages_name(3)
    data = bytearray(file.read_bytes())
    size = 16
    first, second = data[32 : 32 + size], data[32 + size : 32 + 2 * size]
    data[32 : 32 + 2 * size] = {
        "zeros": bytes(2 * size),
        "swapped": second + first,
        "far": b"\xff" * 8 + first[8:] + second,
    }[how]
    file.write_bytes(data)
    with pytest.raises(ms.CheckpointError, match="is damaged"):
        pages._Pages().get(place, 3, DIGEST, 0)


def test_few_pages_are_kept(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_KEPT", 10)
    kept = pages._Pages()
    for number in range(256):
        kept.get(place, 3, DIGEST, number)
    assert len(kept._read) <= 10
    assert kept._size <= 10
