"""Segments: what was written per shard is what is read, and nothing else is accepted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import CheckpointError, RunError
from millstream.state import segments
from millstream.state.segments import (
    Segment,
    map_segment,
    read_segments,
    safe_name,
    verify_named,
    write_segment,
)
from millstream.state.storage import open_storage


def rows(count: int = 1000, shards: int = 7) -> pa.Table:
    random = np.random.default_rng(4)
    return pa.table(
        {
            "shard": pa.array(random.integers(0, shards, count), pa.int32()),
            "pane": pa.array(random.integers(-50, 50, count)),
            "key.0": pa.array([None if i % 11 == 0 else f"k{i % 13}" for i in range(count)]),
            "state.0.n": pa.array(random.integers(0, 9, count)),
        }
    )


def test_each_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    table = rows()
    file, written = write_segment(open_storage(tmp_path), "op/panes/1.arrow", table)
    assert sorted(written) == sorted(set(table["shard"].to_pylist()))
    for shard, segment in written.items():
        mine = table.filter(pa.compute.equal(table["shard"], shard))
        (back,) = read_segments(open_storage(tmp_path), [segment], {file.file: file})
        assert back.equals(mine)  # the order of rows too
        assert segment.rows == len(mine)
        panes = mine["pane"].to_pylist()
        assert (segment.low, segment.high) == (min(panes), max(panes))


def test_several_shards_of_several_files_at_once(tmp_path: Path) -> None:
    one, first = write_segment(open_storage(tmp_path), "a.arrow", rows(100))
    two, second = write_segment(open_storage(tmp_path), "b.arrow", rows(200))
    wanted = [first[0], second[3], first[2]]
    tables = read_segments(open_storage(tmp_path), wanted, {f.file: f for f in (one, two)})
    assert sum(map(len, tables)) == sum(s.rows for s in wanted)
    assert {s for t in tables for s in t["shard"].to_pylist()} == {0, 2, 3}
    assert read_segments(open_storage(tmp_path), [], {}) == []


def test_one_row_and_one_shard(tmp_path: Path) -> None:
    file, written = write_segment(open_storage(tmp_path), "a.arrow", rows(1, 1))
    assert list(written) == [0]
    (back,) = read_segments(open_storage(tmp_path), written.values(), {file.file: file})
    assert back.num_rows == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    file, written = write_segment(open_storage(tmp_path), "a.arrow", rows())
    path = tmp_path / "a.arrow"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 16
    elif damage == "cut":
        data = data[:-10]
    elif damage == "longer":
        data += b"x"
    else:
        data = bytearray()
    path.write_bytes(bytes(data))
    segments._open.cache_clear()
    with pytest.raises(CheckpointError, match=r"a\.arrow is damaged: expected \d+ bytes"):
        read_segments(open_storage(tmp_path), written.values(), {file.file: file})


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    file, _ = write_segment(open_storage(tmp_path), "a.arrow", rows())
    (tmp_path / "a.arrow").unlink()
    with pytest.raises(CheckpointError, match=r"a\.arrow is missing"):
        map_segment(open_storage(tmp_path), file)


def test_a_segment_is_small_at_rest() -> None:
    import msgspec

    assert msgspec.json.encode(Segment("f", 1, 2, 3, 4)) == b'["f",1,2,3,4]'


def test_a_file_named_by_its_checksum(tmp_path: Path) -> None:
    good = tmp_path / "0-1-2-352441c2.lines"
    good.write_bytes(b"abc")
    verify_named(open_storage(tmp_path), good.name)
    good.write_bytes(b"abd")
    with pytest.raises(CheckpointError, match=r"0-1-2-352441c2\.lines is damaged"):
        verify_named(open_storage(tmp_path), good.name)


def test_no_two_names_share_a_path() -> None:
    assert len({safe_name(name) for name in ("a b", "a_b", "a-b", "a.b", "a  b")}) == 5


@pytest.mark.long
def test_a_shard_that_arrow_parts_is_refused(tmp_path: Path) -> None:
    """More than 2 GiB of text in a shard: a part of it would be lost."""
    text = "x" * (1 << 26)
    rows = pa.table(
        {
            "shard": pa.array([0] * 40, pa.int32()),
            "pane": pa.array([0] * 40, pa.int64()),
            "text": pa.chunked_array([pa.array([text] * 20), pa.array([text] * 20)]),
        }
    )
    with pytest.raises((RunError, pa.ArrowInvalid)):
        write_segment(open_storage(tmp_path), "big.arrow", rows)
