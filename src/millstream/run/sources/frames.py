"""DataFrames as sources: Spark's tasks write their rows into the checkpoint, to be read as files.

A batch DataFrame is written once. Of a streaming one every micro-batch is written, and a marker
with its number names its files: Spark repeats the last batch after a crash, and one that has a
marker is not taken twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.api.sources import Frame, FrameStream
from millstream.errors import ConfigError, RunError
from millstream.io.formats import Format
from millstream.run.sources.files.listing import Seen, as_files, look
from millstream.run.sources.files.tracker import FilesTracker
from millstream.state.locations import is_url
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage, open_storage

_FILE = 32 * 1024 * 1024  # bytes of rows that go into one file
_WHOLE = "whole.json"


def schema_of(spec: Frame) -> pa.Schema:
    """The columns of a DataFrame."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(spec.df.schema, timezone="UTC")
    except Exception as error:  # a type that Arrow does not have
        raise ConfigError(f"a column of the DataFrame cannot be read: {error}") from None


def write_frame(df: Any, place: Storage) -> list[str]:
    """Have Spark's tasks write the rows; gives the names of the files of those that succeeded."""
    where = place.where()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"name": pa.array(_write(where, batches), pa.string())})

    written = df.mapInArrow(write, "name string").toArrow()
    return sorted(written.column("name").to_pylist())


def _write(where: str, batches: Iterator[pa.RecordBatch]) -> list[str]:
    """One task: files of bounded size, under names of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    place = open_storage(where)
    names: list[str] = []
    held: list[pa.RecordBatch] = []

    def flush() -> None:
        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(held), out, compression="zstd", compression_level=1)
        names.append(f"{part:05d}-{len(names):04d}-{uuid.uuid4().hex[:12]}.parquet")
        place.put(names[-1], out.getvalue())
        held.clear()

    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(one.nbytes for one in held) >= _FILE:
            flush()
    if held:
        flush()
    return names


def written(spec: Frame, place: Storage) -> Callable[[], list[Seen]]:
    """The listing of a batch DataFrame, which is written when it is first asked for."""
    place.create()
    if not place.exists(_WHOLE):
        if spec.df is None:
            raise RunError("the DataFrame of a source is gone before it was read")
        place.put(_WHOLE, msgspec.json.encode(write_frame(spec.df, place)))
    names = msgspec.json.decode(place.read(_WHOLE), type=list[str])
    return lambda: _seen(place.where(), names)


class FrameStreamTracker(FilesTracker):
    """A streaming DataFrame: a query of Spark's writes, and this reads what it has finished."""

    def __init__(
        self,
        number: int,
        spec: FrameStream,
        fmt: Format,
        checkpoint: Storage,
        stem: str,
        state: SourceState,
    ) -> None:
        self._place = checkpoint.within("frames").within(stem)
        self._place.create()
        self._names: dict[str, list[str]] = {}  # marker -> its files
        self._over = False  # the query had ended before its files were listed last
        where, sources = self._place.where(), checkpoint.within("sources")
        files = as_files(spec, where, follow=True)
        super().__init__(number, files, fmt, sources, stem, state, self._listing)
        self._kept = set(range(len(self.files)))  # files that were begun and may be there
        if spec.checkpoint is None and is_url(where):
            raise ConfigError(
                "FrameStream(checkpoint=): the flow's checkpoint is in an object store; say where "
                "Spark can keep its own, like s3a://bucket/folder"
            )
        writer = spec.df.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", spec.checkpoint or f"{where}/spark")
        if spec.available_now:
            writer = writer.trigger(availableNow=True)
        self._query = writer.start()

    def _take(self, df: Any, batch: int) -> None:
        """One micro-batch of Spark's; called by it, also again after a crash."""
        marker = f"batch-{batch:012d}.json"
        if not self._place.exists(marker):
            names = write_frame(df, self._place)
            self._place.put(marker, msgspec.json.encode(names))

    def _listing(self) -> list[Seen]:
        """The files that are there; what was read to its end is forgotten, but the last marker."""
        markers = sorted(name for name in self._place.names() if name.startswith("batch-"))
        where, found = self._place.where(), []
        for marker in markers:
            if marker not in self._names:
                names = msgspec.json.decode(self._place.read(marker), type=list[str])
                self._names[marker] = names
            seen = _seen(where, self._names[marker])
            self._names[marker] = [one.path.rpartition("/")[2] for one in seen]
            found += seen
            if not seen and marker != markers[-1]:  # Spark repeats its last batch only
                self._place.delete(marker)
                del self._names[marker]
        return found

    def poll(self, *args: Any) -> None:
        self._over = not self._query.isActive  # asked before looking: more may come meanwhile
        error = self._query.exception() if self._over else None
        if error is not None:
            raise RunError(f"the stream of Spark ended: {str(error).splitlines()[0][:300]}")
        if self._over:
            self._next_look = 0.0  # its last batches are looked for, whenever the last look was
        super().poll(*args)
        self.ended = self._over and self.pending() == 0

    def take(self, rows: int, size: int, parts: int) -> list[Any]:
        taken = super().take(rows, size, parts)
        self.ended = self._over and self.pending() == 0
        return taken

    def committed(self) -> None:
        """What was read and committed need not be kept."""
        self._kept |= self._taken.keys()
        super().committed()
        for number in sorted(self._kept):
            file = self.files[number]
            if file.done and file.offset >= file.end > 0:
                self._place.delete(file.path.rpartition("/")[2])
                self._kept.remove(number)

    def ask_to_stop(self, patience: float) -> None:
        with suppress(Exception):  # Spark may be gone
            self._query.stop()

    def close(self) -> None:
        with suppress(Exception):
            self._query.stop()


def _seen(where: str, names: list[str]) -> list[Seen]:
    found = (look(f"{where}/{name}") for name in names)
    return [seen for seen in found if seen is not None]
