"""State of a long window under many small batches: few segments, bounded work, nothing left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.operators import stores
from millstream.state.segments import Segment
from millstream.testing import Driver

KEYS = 40
BATCHES = 100


class Counts:
    """Rows of state read and written, per batch."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read = self.written = 0
        read, write = stores.read_segments, stores.write_segment

        def counting_read(root: Path, segments: Iterable[Segment], *rest: Any) -> Any:
            segments = list(segments)
            self.read += sum(segment.rows for segment in segments)
            return read(root, segments, *rest)

        def counting_write(root: Path, name: str, table: Any, *rest: Any, **options: Any) -> Any:
            self.written += len(table)
            return write(root, name, table, *rest, **options)

        patch.setattr(stores, "read_segments", counting_read)
        patch.setattr(stores, "write_segment", counting_write)

    def take(self) -> tuple[int, int]:
        taken = (self.read, self.written)
        self.read = self.written = 0
        return taken


def build(kind: str) -> ms.Flow:
    flow = ms.Flow("long window")
    rows = flow.source(ms.Files("x", schema="ts bigint, k bigint, v bigint", time="ts"), name="in")
    windowed = rows.key_by("k").window(ms.tumbling("1d"))
    if kind == "panes":
        windowed.agg(n=ms.count(), total=ms.sum("v")).named("agg").sink(ms.Memory())
    elif kind == "values":
        windowed.agg(all=ms.collect("v")).named("agg").sink(ms.Memory())
    else:
        sliding = rows.key_by("k").window(ms.sliding("1d", "10m"))
        sliding.agg(n=ms.count()).named("agg").sink(ms.Memory())
    return flow


def segments_per_shard(driver: Driver) -> int:
    tables = driver.engine.manifest.segments.get("in by k", {})
    return max((len(s) for shards in tables.values() for s in shards.values()), default=0)


def stored_rows(driver: Driver) -> int:
    tables = driver.engine.manifest.segments.get("in by k", {})
    return sum(s.rows for shards in tables.values() for found in shards.values() for s in found)


@pytest.mark.parametrize("kind", ["panes", "values", "sliding"])
def test_many_tiny_batches_into_one_long_window(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts = Counts(monkeypatch)
    most = 0
    read: list[int] = []
    written: list[int] = []
    with Driver(build(kind), shards=4, retain=2, checkpoint=tmp_path / "ck") as driver:
        for batch in range(BATCHES):
            rows = [{"ts": batch * 500 + k, "k": k, "v": batch} for k in range(KEYS)]
            driver.push("in", rows).step()
            most = max(most, segments_per_shard(driver))
            r, w = counts.take()
            read.append(r)
            written.append(w)
        assert most <= 12
        # A row is written again only as often as segments double, not with every batch.
        fed = BATCHES * KEYS
        assert sum(written) <= fed * 6
        assert sum(read) <= fed * 6
        if kind != "panes":  # there stored rows grow with the input, and the work does not
            assert stored_rows(driver) >= fed // 2
            half = BATCHES // 2
            assert sorted(written[half:])[half // 2] <= 3 * sorted(written[:half])[half // 2]
        on_disk = list((tmp_path / "ck" / "state").rglob("*.arrow"))
        assert len(on_disk) <= 12 * 4 * 4
        driver.end()
        total = driver.output()
        if kind == "panes":
            assert sum(row["n"] for row in total) == fed
        elif kind == "values":
            assert sum(len(row["all"]) for row in total) == fed
        assert stored_rows(driver) == 0


def test_expired_segments_leave_the_disk(tmp_path: Path) -> None:
    flow = ms.Flow("short windows")
    rows = flow.source(
        ms.Files("x", schema="ts bigint, k bigint", time="ts", lateness="7s"), name="in"
    )
    rows.key_by("k").window(ms.tumbling("10s")).agg(n=ms.count()).named("agg").sink(ms.Memory())
    with Driver(flow, shards=4, retain=3, checkpoint=tmp_path / "ck") as driver:
        for batch in range(61):
            driver.push("in", [{"ts": batch * 7 + k % 7, "k": k} for k in range(30)]).step()
            referred = set(driver.engine.manifest.files)
            on_disk = {
                str(p.relative_to(tmp_path / "ck" / "state"))
                for p in (tmp_path / "ck" / "state").rglob("*.arrow")
            }
            assert referred <= on_disk
            assert len(on_disk) < 30
        assert len(list((tmp_path / "ck" / "manifests").iterdir())) <= 13
        driver.end()
        assert sum(row["n"] for row in driver.output()) == 61 * 30
        assert not driver.engine.manifest.files
        # What is left belongs to the batches one may go back to.
        kept = list((tmp_path / "ck" / "manifests").iterdir())
        assert len(kept) == 3


def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    plain: list[Any] = []
    for restart in (False, True):
        with Driver(build("sliding"), shards=4, checkpoint=tmp_path / str(restart)) as driver:
            for batch in range(40):
                driver.push("in", [{"ts": batch * 300 + k, "k": k, "v": 1} for k in range(9)])
                driver.step()
                if restart and batch % 7 == 3:
                    driver.restart()
            driver.end()
            rows = sorted(map(str, driver.output()))
        if restart:
            assert rows == plain
        plain = rows
    assert plain
