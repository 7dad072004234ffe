"""Manifests: a batch exists once its manifest does, whole and unchanged."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import pytest

from millstream.errors import CheckpointError
from millstream.state.manifests import (
    FORMAT,
    Manifest,
    Output,
    SourceState,
    check_registry,
    list_manifests,
    name_of,
    read_manifest,
    write_manifest,
)
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import open_storage


def full(batch: int = 3) -> Manifest:
    return Manifest(
        batch,
        at=1.5,
        sources={
            "in": SourceState(
                *(10, 20, 2),
                open={"1": 7},
                reached={"1": 6},
                prints={"1": [7, 3, 4]},
                latest={"": 5},
                seen_at={"": 1.0},
                ended=True,
                extra={"next": 4},
            )
        },
        closed={"agg": -5},
        segments={"agg": {"panes": {"0": [Segment("f", 0, 1, -1, 1)]}}},
        files={"f": SegmentFile("f", 100, 2**32 - 1)},
        ledger={"in": {"offered": 3}},
        outputs=[Output("sink", "/a b/ü", "/c", 3, 10, 11), Output("call", "/x", None, 1)],
        dead=1,
        windows=2,
        complete=True,
    )


def test_round_trip(tmp_path: Path) -> None:
    write_manifest(open_storage(tmp_path), full())
    assert read_manifest(open_storage(tmp_path), 3) == full()


def test_every_byte_is_covered(tmp_path: Path) -> None:
    write_manifest(open_storage(tmp_path), full())
    path, storage = tmp_path / name_of(3), open_storage(tmp_path)
    data = path.read_bytes()
    for at in range(len(data) - 1):  # the last is the newline at the end
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CheckpointError, match=r"00000003\.json is damaged"):
            read_manifest(storage, 3)
        path.write_bytes(data[:at])
        with pytest.raises(CheckpointError, match=r"00000003\.json is damaged"):
            read_manifest(storage, 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            msgspec.json.encode({"batch": 1, "format": FORMAT + 1}),
            f"has format {FORMAT + 1}, this version",
        ),
        (b'{"batch": "three"}', "cannot be read"),
    ],
)
def test_what_this_version_cannot_read(tmp_path: Path, body: bytes, message: str) -> None:
    path = tmp_path / "00000001.json"
    path.write_bytes(body + f"\n{zlib.crc32(body):08x}\n".encode())
    with pytest.raises(CheckpointError, match=message):
        read_manifest(open_storage(tmp_path), 1)


def test_a_manifest_is_never_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process is doing when it ends: the old list of batches, or the new one."""
    write_manifest(open_storage(tmp_path), full(1))

    def end(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    for step in ("fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, end)
            with pytest.raises(KeyboardInterrupt):
                write_manifest(open_storage(tmp_path), full(2))
        assert list_manifests(open_storage(tmp_path)) == [1]
    write_manifest(open_storage(tmp_path), full(2))
    assert list_manifests(open_storage(tmp_path)) == [1, 2]


def test_manifests_are_listed_by_number(tmp_path: Path) -> None:
    for name in ("00000010.json", "00000002.json", ".00000011.json.tmp", "1x.json", "7.json"):
        (tmp_path / name).write_text("")
    assert list_manifests(open_storage(tmp_path)) == [2, 10]


def test_the_registry_is_checked_up_to_where_the_manifest_stands(tmp_path: Path) -> None:
    path, storage = tmp_path / "in.jsonl", open_storage(tmp_path)
    path.write_bytes(b'"/a"\n"/b"\n"/not committed')
    state = SourceState(registry=10, registry_sum=zlib.crc32(b'"/a"\n"/b"\n'))
    assert check_registry(storage, "in.jsonl", state) == b'"/a"\n"/b"\n'
    assert check_registry(storage, "none", SourceState()) == b""
    for data in (b'"/a"\n"/c"\n', b'"/a"\n', b""):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"in\.jsonl is damaged"):
            check_registry(storage, "in.jsonl", state)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"in\.jsonl is damaged"):
        check_registry(storage, "in.jsonl", state)
