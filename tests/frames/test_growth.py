"""A stream of Spark's without end: what was read is forgotten, and nothing is read twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.io.readers import read_split
from millstream.run.sources import frames
from millstream.run.sources.frames import FrameStreamTracker
from millstream.run.sources.resolving import resolve_format
from millstream.state.manifests import SourceState
from millstream.state.storage import open_storage


class Rows:
    """A DataFrame with one partition for every table."""

    columns = ("n",)

    def __init__(self, *tables: pa.Table, streaming: bool = False) -> None:
        self.tables, self.isStreaming = tables, streaming
        self.names = pa.table({"name": pa.array([], pa.string())})

    def mapInArrow(self, write: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Rows:
        written = [batch for table in self.tables for batch in write(iter(table.to_batches()))]
        self.names = pa.Table.from_batches(written)
        return self

    def toArrow(self) -> pa.Table:
        return self.names

    # A stream of it is driven by the test, and ends when that says so.
    isActive = True

    def exception(self) -> None:
        """It ended well."""

    @property
    def writeStream(self) -> Rows:
        return self

    def foreachBatch(self, take: Any) -> Rows:
        return self

    def option(self, name: str, value: str) -> Rows:
        return self

    def start(self) -> Rows:
        return self

    def stop(self) -> None:
        """Nothing runs."""


class Begun:
    """A tracker on its checkpoint, and what was read of it."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frames, "schema_of", lambda spec: pa.schema([("n", pa.int64())]))
        self.spec = ms.FrameStream(Rows(streaming=True))
        self.fmt = resolve_format("in", self.spec)
        self.checkpoint, self.state = open_storage(place), SourceState()
        self.checkpoint.within("sources").create()
        self.read: list[int] = []
        self.restart()

    def restart(self) -> None:
        self.tracker = FrameStreamTracker(0, self.spec, self.fmt, self.checkpoint, "in", self.state)

    def micro_batch(self, number: int) -> None:
        parts = (pa.table({"n": [number * 10 + part]}) for part in range(2))
        self.tracker._take(Rows(*parts), number)

    def step(self, rows: int = 10**6) -> None:
        self.tracker._next_look = 0.0
        self.tracker.poll()
        for split in self.tracker.take(rows, 10**9, 1):
            for parsed in read_split(self.fmt, split):
                self.read += parsed.table.column("n").to_pylist()
        self.state = SourceState()
        self.tracker.save(self.state)
        self.tracker.committed()

    def files(self) -> list[str]:
        return [name for name in self.tracker._place.names() if name.endswith(".parquet")]


def test_every_row_is_read_once_and_no_file_is_looked_at_for_ever(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun(disk_path, monkeypatch)
    looked: list[str] = []
    look = frames.look
    monkeypatch.setattr(frames, "look", lambda path: looked.append(path) or look(path))
    for number in range(24):
        begun.micro_batch(number)
        if number % 7 == 6:
            begun.micro_batch(number)  # Spark repeats its last batch
            begun.restart()
        looked.clear()
        begun.step()
        assert len(looked) <= 10, number  # of two micro-batches, and a second time if unsure
    begun.step()
    assert begun.files() == []
    assert begun.tracker._place.names() == ["batch-000000000023.json"]
    assert sorted(begun.read) == sorted(n * 10 + part for n in range(24) for part in range(2))


def test_what_waits_is_kept_over_a_restart(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun(disk_path, monkeypatch)
    for number in range(4):
        begun.micro_batch(number)
    begun.step(rows=1)
    assert 0 < len(begun.read) < 8
    begun.restart()
    for _ in range(8):
        begun.step()
    assert sorted(begun.read) == sorted(n * 10 + part for n in range(4) for part in range(2))


def test_what_comes_between_a_look_and_the_end_of_a_stream_is_read(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun(disk_path, monkeypatch)
    tracker, query = begun.tracker, begun.spec.df
    begun.micro_batch(0)
    tracker.poll()
    begun.micro_batch(1)
    query.isActive = False
    tracker.take(10**6, 10**9, 1)
    assert not tracker.ended
    tracker.committed()
    tracker._next_look = float("inf")  # a look that took long is not repeated for a while
    tracker.poll()
    assert not tracker.ended and tracker.pending()
    tracker.take(10**6, 10**9, 1)
    assert tracker.ended
