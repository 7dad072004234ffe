"""Splits to chunks: the first thing a task of level 0 does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millstream.errors import CheckpointError, RunError
from millstream.io.columns import event_time
from millstream.io.formats import DEBEZIUM, Format
from millstream.io.kafka.consuming import Stretch, begin_stretches
from millstream.io.kafka.decoding import read_records
from millstream.io.readers import Dead, Parsed, parse_lines, scan_lines
from millstream.ops.chunks import OFFSET_BITS, Chunk, Int64, all_but, flat
from millstream.ops.records import as_json
from millstream.ops.zones import timestamp
from millstream.run.tasks.once import read_shared
from millstream.run.tasks.splits import ERROR, RAW, AnySplit, RateSplit, Readable, SpoolSplit
from millstream.state.storage import Storage, open_storage

_STAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Piece:
    """Records that were read, those that could not be, and how many there were in all."""

    chunk: Chunk
    dead: list[Dead]
    offered: int
    size: int = 0  # bytes, where only tasks know them


def read(
    fmt: Format, split: Readable, now: int, times: tuple[int, int] | None = None
) -> Iterator[Piece]:
    """The records of a split with their time and place; those outside of `times` are dead."""
    for piece in _read(fmt, split, now):
        yield piece if times is None else _between(piece, fmt, times)


def begin_reading(formats: Sequence[Format | None], splits: Sequence[AnySplit]) -> None:
    """Have fetched what a task reads soon, before it reads the first of it."""
    for number, fmt in enumerate(formats):
        if fmt is not None and fmt.topics is not None:
            some = (s for s in splits if isinstance(s, Stretch) and s.source == number)
            begin_stretches(fmt.topics.cluster, some)


def _between(piece: Piece, fmt: Format, times: tuple[int, int]) -> Piece:
    """Set aside what lies outside of the range of times: windows would leave the calendar."""
    chunk = piece.chunk
    outside = (chunk.ts < times[0]) | (chunk.ts >= times[1])
    if not outside.any():
        return piece
    earliest, latest = (timestamp(at).isoformat() for at in times)
    which = fmt.time or "of arrival"
    dead = [
        Dead(
            int(chunk.pos[row]),
            as_json(chunk.table.slice(row, 1).to_pylist()[0]),
            f"its time ({which}) is {timestamp(int(chunk.ts[row])).isoformat()}, "
            f"outside of the settings earliest={earliest} and latest={latest}",
        )
        for row in np.flatnonzero(outside).tolist()
    ]
    kept = chunk.take(np.flatnonzero(~outside))
    return replace(piece, chunk=kept, dead=[*piece.dead, *dead])


def _read(fmt: Format, split: Readable, now: int) -> Iterator[Piece]:
    if isinstance(split, RateSplit):
        yield _rate(split)
    elif isinstance(split, SpoolSplit):
        yield from _spooled(fmt, split)
    elif isinstance(split, Stretch):
        for parsed, size in read_records(fmt, split):
            piece = _placed(parsed, split.source, split.file << OFFSET_BITS, now)
            yield replace(piece, size=size)
    else:
        for parsed in read_shared(fmt, split):
            arrival = split.arrival or now
            yield _placed(parsed, split.source, split.file << OFFSET_BITS, arrival)


def _placed(parsed: Parsed, source: int, base: int, arrival: int) -> Piece:
    ts: Int64 = (
        parsed.ts if parsed.ts is not None else np.full(len(parsed.table), arrival, np.int64)
    )
    dead = [replace(one, position=base + one.position) for one in parsed.dead]
    return Piece(Chunk(parsed.table, ts, base + parsed.positions, source), dead, parsed.offered)


def _spooled(fmt: Format, split: SpoolSplit) -> Iterator[Piece]:
    pieces = [split, *split.more]
    spool = open_storage(split.spool)
    if not split.name.endswith(".arrow"):
        texts = [_lines(spool, piece.name) for piece in pieces]
        parsed = parse_lines(fmt, b"".join(texts), 0, first_line_is_header=False)
        yield _several(parsed, pieces, [len(text) for text in texts])
        return
    tables = [_table(spool, piece.name) for piece in pieces]
    for _, same in itertools.groupby(range(len(pieces)), lambda i: tables[i].schema):
        some = list(same)
        parsed = _timed(fmt, pa.concat_tables([tables[i] for i in some]))
        yield _several(parsed, [pieces[i] for i in some], [len(tables[i]) for i in some])


def count_spooled(fmt: Format, split: SpoolSplit) -> int:
    """How many records pieces of a spool have, as `read` would find them."""
    if split.name.endswith(".arrow"):
        return split.rows
    if fmt.kind == DEBEZIUM or fmt.multiline:
        return sum(piece.offered for piece in _spooled(fmt, split))
    spool = open_storage(split.spool)
    texts = [_lines(spool, piece.name) for piece in (split, *split.more)]
    return len(scan_lines(fmt, b"".join(texts), 0))


def spool_extent(split: SpoolSplit) -> tuple[int, int]:
    """The positions where pieces of a spool begin and end."""
    last = (split, *split.more)[-1]
    read = _table if last.name.endswith(".arrow") else _lines
    return _base(split), _base(last) + len(read(open_storage(split.spool), last.name))


def _base(piece: SpoolSplit) -> int:
    return piece.file << OFFSET_BITS if piece.base is None else piece.base


def _several(parsed: Parsed, pieces: list[SpoolSplit], lengths: list[int]) -> Piece:
    """Records of pieces that were read as one, each with the time and place of its piece."""
    starts = np.cumsum([0, *lengths[:-1]])
    shift = np.array([_base(piece) for piece in pieces], np.int64) - starts
    of = np.searchsorted(starts, parsed.positions, side="right") - 1
    arrivals = np.array([piece.arrival for piece in pieces], np.int64)
    ts: Int64 = arrivals[of] if parsed.ts is None else parsed.ts
    where = np.searchsorted(starts, [d.position for d in parsed.dead], side="right") - 1
    dead = [
        Dead(d.position + int(shift[i]), d.raw, d.error)
        for d, i in zip(parsed.dead, where, strict=True)
    ]
    positions = parsed.positions + shift[of]
    return Piece(Chunk(parsed.table, ts, positions, pieces[0].source), dead, parsed.offered)


def _lines(spool: Storage, name: str) -> bytes:
    data = spool.read(name)
    if name.endswith(".posts"):
        # The keys of requests: run/sources/received/posts.py.
        data = data[data.index(b"\n") + 1 :]
    return data if data.endswith(b"\n") or not data else data + b"\n"


def _table(spool: Storage, name: str) -> pa.Table:
    try:
        return pa.ipc.open_file(spool.map(name)).read_all()
    except (OSError, CheckpointError, pa.ArrowInvalid) as error:
        raise RunError(f"spool file {spool.where(name)} cannot be read: {error}") from error


def _timed(fmt: Format, table: pa.Table) -> Parsed:
    """Records of a generator: their time is a column, or the time of arrival."""
    positions = np.arange(len(table), dtype=np.int64)
    why: dict[int, str] = {}
    raws: list[str | None] = [None] * len(table)
    if ERROR in table.column_names:  # set aside when it was received
        errors, raws = table.column(ERROR).to_pylist(), table.column(RAW).to_pylist()
        why = {index: error for index, error in enumerate(errors) if error is not None}
        table = table.drop_columns([ERROR, RAW])
    ts = None
    if fmt.time is not None:
        known = fmt.time in table.column_names
        column = flat(table.column(fmt.time)) if known else pa.nulls(len(table), _STAMP)
        ts, untimed = event_time(fmt, column)
        why = untimed | why
    dead = [
        Dead(index, raws[index] or as_json(table.slice(index, 1).to_pylist()[0]), error)
        for index, error in sorted(why.items())
    ]
    if why:
        keep = all_but(len(table), why)
        table, positions = table.filter(pa.array(keep)), positions[keep]
        ts = ts[keep] if ts is not None else None
    return Parsed(table, ts, positions, dead, len(table) + len(dead))


def _rate(split: RateSplit) -> Piece:
    value = np.arange(split.start, split.end, dtype=np.int64)
    ts = split.origin + (value * split.interval).astype(np.int64)
    table = pa.table({"ts": pa.array(ts).cast(pa.timestamp("us", "UTC")), "value": value})
    return Piece(Chunk(table, ts, value, split.source), [], len(value))
