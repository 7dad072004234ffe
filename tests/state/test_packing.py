"""Segments are compressed where a sample says that it pays, and read as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import millstream as ms
from millstream.errors import ConfigError
from millstream.operators import stores
from millstream.serve.following import Follower
from millstream.serve.status import Served
from millstream.settings import Settings
from millstream.state import packing, segments
from millstream.state.directory import Directory
from millstream.state.doctor import examine
from millstream.state.manifests import Manifest
from millstream.state.packing import pays
from millstream.state.segments import SegmentFile, read_segments, write_segment
from millstream.testing import Driver


def rows(values: list[bytes]) -> pa.Table:
    count = len(values)
    shard = pa.array(np.arange(count) * 2 // max(1, count), pa.int32())
    return pa.table({"shard": shard, "pane": np.arange(count), "value": pa.array(values)})


ALIKE = rows([f"/page/{n % 50}".encode() * 5 for n in range(5_000)])
RANDOM = rows([np.random.default_rng(n).bytes(100) for n in range(5_000)])


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compressed here must not depend on how busy the machine is."""
    monkeypatch.setattr(packing, "_SPEED", 0.0)


def test_it_pays_for_what_is_alike_and_not_for_what_is_not() -> None:
    assert pays(ALIKE)
    assert not pays(RANDOM)
    assert not pays(ALIKE.slice(0, 10))  # too little
    assert not pays(ALIKE.slice(0, 0))


def test_time_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_SPEED", 1e15)
    assert not pays(ALIKE)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("table", [ALIKE, RANDOM], ids=["alike", "random"])
def test_what_is_written_is_read(tmp_path: Path, table: pa.Table, cold: bool) -> None:
    root = Directory(str(tmp_path))
    file, found = write_segment(root, "a/b/1.arrow", table, cold=cold)
    assert bool(file.plain) == (cold and table is ALIKE)
    assert file.size == (tmp_path / "a/b/1.arrow").stat().st_size
    if file.plain:
        assert file.plain == table.nbytes and file.size < 0.7 * file.plain
    segments._open.cache_clear()
    (back,) = read_segments(root, list(found.values()), {file.file: file})
    assert back.equals(table)
    assert [one.rows for one in found.values()] == [2_500, 2_500]


def test_a_file_of_an_older_version_says_nothing_of_compression() -> None:
    found = msgspec.json.decode(b'{"batch": 1, "files": {"f": ["f", 10, 7]}}', type=Manifest)
    assert found.files["f"] == SegmentFile("f", 10, 7, 0)


# -- in flows -------------------------------------------------------------------------------------


def remember(event: Any, slate: dict[str, Any], ctx: Any) -> None:
    slate["seen"] = [*slate.get("seen", []), event.value["page"]][-20:]


def flow(flush: str) -> ms.Flow:
    flow = ms.Flow("packed")
    source = ms.Generator(tuple, time="ts", time_unit="s", lateness="0s")
    keyed = flow.source(source, name="in").key_by("k")
    keyed.update(remember, name="u", order="arrival", flush=flush)
    return flow


def visits(second: int) -> list[dict[str, Any]]:
    return [{"ts": float(second), "k": n % 200, "page": f"/page/{n % 9}"} for n in range(1_000)]


def fill(path: Path, compression: str, flush: str) -> tuple[dict[Any, Any], set[str]]:
    """Slates after some batches and a restart, and which tables have compressed segments."""
    packed: set[str] = set()
    with Driver(flow(flush), checkpoint=path, now=0.0, shards=2, compression=compression) as driver:
        for second in range(4):
            driver.advance("1s").push("in", visits(second)).step()
            files = driver.engine.manifest.files.values()
            packed |= {one.file.split("/")[1] for one in files if one.plain}
            if second == 2:
                driver.restart()
        return driver.slates("u"), packed


def test_logs_are_compressed_and_applied_again(tmp_path: Path) -> None:
    plain, none = fill(tmp_path / "none", "none", "1h")
    auto, packed = fill(tmp_path / "auto", "auto", "1h")
    assert (none, packed) == (set(), {"log"})
    assert auto == plain and len(auto) == 200


def test_large_merged_segments_are_compressed_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LARGE", 50)
    monkeypatch.setattr(packing, "_LEAST", 1_000)
    auto, few = fill(tmp_path / "auto", "auto", "batch")
    large, packed = fill(tmp_path / "large", "large", "batch")
    assert (few, packed) == (set(), {"slates"})
    assert large == auto
    follower = Follower(tmp_path / "large")
    assert follower.current.get("u", 7).slate == large[7]  # type: ignore[union-attr]
    (told,) = Served(follower).status()["operators"]
    assert 0 < told["stored_bytes"] < told["plain_bytes"]
    lines, sound = examine(tmp_path / "large")
    assert sound and any(line.startswith("compressed  ") for line in lines), lines


def test_the_setting_says_what_it_expects() -> None:
    with pytest.raises(ConfigError, match='use "auto", "large" or "none"'):
        Settings(compression="gzip")
