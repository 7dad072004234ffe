"""Segments: immutable Arrow files that hold what one task attempt added to some shards.

A segment has one record batch per shard, so that a reader takes the shards it owns and no others.
The name is unique to the attempt; only a manifest makes it part of the state. Every segment carries
its checksum in the manifest, and is checked once per process before it is used.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import ASK_DOCTOR, CheckpointError, RunError
from millstream.state import warm
from millstream.state.packing import PLAIN, ZSTD, pays
from millstream.state.storage import Storage
from millstream.state.values import Count, Int64

_LONGEST_NAME = 120
_OPEN = 512  # segments a process keeps open
_OPEN_WARM = 2**26  # bytes of those in memory
_BEFORE = "pane"  # what every column was called that segments are known by

T = TypeVar("T", pa.Table, pa.RecordBatch)


class Missing(CheckpointError):
    """A segment file is gone: perhaps a newer manifest does without it."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Where the rows of one shard lie: a record batch of a file, and what they span.

    That is a column of their own: panes, times they wait for, or times at which they expire.
    """

    file: str
    index: Count
    rows: Count
    low: Int64  # the smallest and largest value of that column
    high: Int64


class SegmentFile(msgspec.Struct, frozen=True, array_like=True):
    """A whole file, for checking and for deleting it once nothing refers to it."""

    file: str
    size: Count
    checksum: Count
    plain: Count = 0  # bytes its rows have, if it is compressed


def write_segment(
    root: Storage, name: str, table: pa.Table, by: str = "pane", *, cold: bool = False
) -> tuple[SegmentFile, dict[int, Segment]]:
    """Write rows (with a column `shard`) as one file, a record batch per shard.

    by: the column whose smallest and largest value each segment is known by.
    cold: it will hardly be read, so it is compressed if that pays.
    """
    packs = cold and pays(table)
    data, segments = _packed(name, table, by, ZSTD if packs else PLAIN)
    root.put(name, data)
    warm.keep(root, name, data)
    plain = table.nbytes if packs else 0
    return SegmentFile(name, len(data), zlib.crc32(data), plain), segments


def keep_segment(
    root: Storage, name: str, table: pa.Table, by: str
) -> tuple[SegmentFile, dict[int, Segment]] | None:
    """The same in memory alone; None if there is no room for it."""
    name = warm.ALONE + name
    data, segments = _packed(name, table, by)
    if not warm.keep(root, name, data):
        return None
    return SegmentFile(name, len(data), zlib.crc32(data)), segments


def _packed(
    name: str, table: pa.Table, by: str, how: pa.ipc.IpcWriteOptions = PLAIN
) -> tuple[pa.Buffer, dict[int, Segment]]:
    shard = np.asarray(table.column("shard").combine_chunks())
    if (np.diff(shard) < 0).any():
        order = np.argsort(shard, kind="stable")
        table = table.take(pa.array(order))
        shard = shard[order]
    table = table.combine_chunks()
    bounds = np.flatnonzero(np.diff(shard)) + 1
    starts = [0, *bounds.tolist()]
    stops = [*bounds.tolist(), len(shard)]
    sink = pa.BufferOutputStream()
    segments = {}
    spans = np.asarray(table.column(by).combine_chunks())
    with pa.ipc.new_file(sink, table.schema, options=how) as writer:
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            batches = table.slice(start, stop - start).combine_chunks().to_batches()
            if len(batches) != 1:  # Arrow parts columns of more than 2 GiB
                raise RunError(
                    f"shard {shard[start]} of {name} has more than 2 GiB; stop the flow and let "
                    "`millstream reshard` make more shards"
                )
            writer.write_batch(batches[0])
            low, high = int(spans[start:stop].min()), int(spans[start:stop].max())
            segments[int(shard[start])] = Segment(name, index, stop - start, low, high)
    return sink.getvalue(), segments


def rows_between(segments: list[Segment], since: int, until: int) -> int:
    """About how many rows there are from `since` on and before `until`.

    Rows are taken to be evenly spread over the times of their segment.
    """
    found = 0.0
    for one in segments:
        low, high = max(one.low, since), min(one.high + 1, until)
        if high > low:
            found += one.rows * (high - low) / (one.high + 1 - one.low)
    return round(found)


def time_of(segments: list[Segment], since: int, rows: int) -> int | None:
    """The time before which there are about so many rows from `since` on; None if all are fewer.

    Rows are taken to be evenly spread over the times of their segment.
    """
    low = np.array([max(one.low, since) for one in segments], np.float64)
    high = np.array([one.high + 1 for one in segments], np.float64)
    width = np.maximum(high - np.array([one.low for one in segments], np.float64), 1.0)
    counts = np.array([one.rows for one in segments], np.float64)

    def before(at: float) -> float:
        return float((counts * np.clip((np.minimum(at, high) - low) / width, 0.0, 1.0)).sum())

    if not segments or before(float(high.max())) <= rows:
        return None
    early, late = int(max(low.min(), since)), int(high.max())
    while late - early > 1:
        middle = (early + late) // 2
        if before(middle) < rows:
            early = middle
        else:
            late = middle
    return late


def read_segments(
    root: Storage, segments: Iterable[Segment], files: dict[str, SegmentFile], by: str = "pane"
) -> list[pa.Table]:
    """The rows of these segments, memory-mapped; a damaged file is refused by name.

    by: what `write_segment` knew them by; the version before called it `pane` whatever it was.
    """
    by_file: dict[str, list[Segment]] = {}
    for segment in segments:
        by_file.setdefault(segment.file, []).append(segment)
    tables = []
    for name, several in by_file.items():
        reader = _open(root, files[name])
        several.sort(key=lambda segment: segment.index)
        rows = pa.Table.from_batches([_rows_of(reader, one, root) for one in several])
        tables.append(renamed(rows, by))
    return tables


def renamed(rows: T, by: str) -> T:
    """Rows of the version before with the name their column has by now."""
    names = rows.schema.names
    if by in names or _BEFORE not in names:
        return rows
    return rows.rename_columns([by if name == _BEFORE else name for name in names])


def _rows_of(
    reader: pa.ipc.RecordBatchFileReader, segment: Segment, root: Storage
) -> pa.RecordBatch:
    if segment.index < reader.num_record_batches:
        batch = reader.get_batch(segment.index)
        if batch.num_rows == segment.rows:
            return batch
    raise CheckpointError(
        f"state segment {root.where(segment.file)} does not have the {segment.rows} rows in part "
        f"{segment.index} that its manifest says it has; `millstream doctor` names the last good "
        "batch"
    )


class _Readers:
    """Segments this process has open: the last ones, as few as their bounds say.

    A warm one that is open takes memory also when it has been let go of.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[Storage, SegmentFile], tuple[Any, int]] = OrderedDict()
        self._warm = 0  # bytes

    def __call__(self, root: Storage, file: SegmentFile) -> pa.ipc.RecordBatchFileReader:
        key = (root, file)
        if key not in self._open:
            data = warm.find(root, file.file, file.size)
            held = 0 if data is None else file.size
            reader = pa.ipc.open_file(map_segment(root, file) if data is None else data)
            self._open[key] = (reader, held)
            self._warm += held
        self._open.move_to_end(key)
        while len(self._open) > _OPEN or (self._warm > _OPEN_WARM and len(self._open) > 1):
            self._warm -= self._open.popitem(last=False)[1][1]
        return self._open[key][0]

    def cache_clear(self) -> None:
        """Have none open."""
        self._open.clear()
        self._warm = 0


_open = _Readers()


def map_segment(root: Storage, file: SegmentFile) -> pa.Buffer:
    """The content of a segment file; one that is not what was written is refused."""
    path = root.where(file.file)
    if file.file.startswith(warm.ALONE):
        if (held := warm.find(root, file.file, file.size)) is None:
            raise Missing(f"state segment {file.file} is not in the memory of this machine")
        return held
    try:
        data = root.map(file.file)
    except (OSError, CheckpointError) as error:
        missing = isinstance(error, FileNotFoundError)
        why = "is missing" if missing else f"is unreadable ({error})"
        raise (Missing if missing else CheckpointError)(f"state segment {path} {why}") from error
    found = (len(data), zlib.crc32(data))
    if found != (file.size, file.checksum):
        raise CheckpointError(
            f"state segment {path} is damaged: expected {file.size} bytes with checksum "
            f"{file.checksum:08x}, found {found[0]} with {found[1]:08x}"
            f"{ASK_DOCTOR}"
        )
    return data


def verify_named(spool: Storage, name: str) -> None:
    """Refuse a spooled file whose content does not have the checksum its name ends with."""
    stem = name.rpartition("/")[2].partition(".")[0]
    if f"{zlib.crc32(spool.read(name)):08x}" != stem.rpartition("-")[2]:
        raise CheckpointError(
            f"spool file {spool.where(name)} is damaged (its checksum does not match); what it "
            "held was received but not yet processed"
        )


def safe_name(name: str) -> str:
    """A name as one part of a path; no two names give the same, whatever characters they have."""
    quoted = quote(name, safe=" ").replace(" ", "+").replace(".", "%2E")
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[: _LONGEST_NAME - 20]}-{zlib.crc32(name.encode()):08x}"
