"""When and how results leave: once and final, early and refined, or as a stream of changes.

What has been emitted of windows that are still open is remembered per (key, window): so a window
is emitted again only when it changed, an early result knows its revision, and a change carries what
it replaces, so that aggregates further down can take the old value away.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Chunk
from millstream.ops.codec import decode, encode
from millstream.ops.records import to_table

Memory = dict[tuple[int, int], tuple[int, bytes]]  # (key, time) -> revision, rows
REMOVED, REPLACED = -1, -2  # signs of rows that take away: without, or with a new row instead
_DIGITS = 12  # results that agree in so many digits count as the same


@dataclass(frozen=True)
class Emission:
    """The contract of a window's results; times in microseconds, 0 for "not by this"."""

    mode: str = "final"  # "final", "early" or "delta"
    every: int = 0  # early: by the wall clock
    every_rows: int = 0  # early: by the number of records taken in
    every_event: int = 0  # early: by event time


FINAL = Emission()


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """When an operator fired early last, and how many records it has taken in since."""

    at: int = 0
    event: int = -(2**62)
    rows: int = 0


def fires(how: Emission, last: Firing, now: int, event: int, rows: int) -> bool:
    """Whether early results are due after so many more records; periods begin with the first."""
    if how.mode != "early" or last.rows + rows == 0:
        return False
    if how.every_rows and last.rows + rows >= how.every_rows:
        return True
    if last.at == 0:
        return False
    return bool(
        (how.every and now - last.at >= how.every)
        or (how.every_event and event // how.every_event > last.event // how.every_event)
    )


@dataclass(frozen=True)
class Looked:
    """Results of windows that leave, and of open ones that were looked at, with their bounds."""

    final: Chunk
    final_end: int  # windows that end by here have left
    open_now: Chunk | None = None  # None: open windows were not looked at
    open_end: int = 0  # those that end by here were


def refine(
    how: Emission, looked: Looked, known: pa.Table | None, shards: int
) -> tuple[Chunk, pa.Table | None]:
    """What of these results is new or changed, marked; and what is remembered of open windows."""
    before = _remembered(known)
    emit = _early if how.mode == "early" else _changes
    chunk, memory = emit(looked, before)
    return chunk, _memory(memory, shards)


def _names(chunk: Chunk) -> list[tuple[int, int]]:
    """Which (key, window) each result is of; several rows of one reduce share it."""
    return list(zip(chunk.pos.tolist(), chunk.ts.tolist(), strict=True))


def _remembered(known: pa.Table | None) -> Memory:
    if known is None or not len(known):
        return {}
    columns = (known.column(name).to_pylist() for name in ("name", "ts", "revision", "rows"))
    return {(name, ts): (revision, rows) for name, ts, revision, rows in zip(*columns, strict=True)}


def _grouped(chunk: Chunk) -> dict[tuple[int, int], list[int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, name in enumerate(_names(chunk)):
        groups.setdefault(name, []).append(index)
    return groups


def _packed(rows: list[dict[str, Any]], indices: list[int]) -> bytes:
    return encode([rows[i] for i in indices])


def _same(left: bytes, right: bytes) -> bool:
    return left == right or _rounded(decode(left)) == _rounded(decode(right))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value


def _early(looked: Looked, before: Memory) -> tuple[Chunk, Memory]:
    final, open_now = looked.final, looked.open_now
    leaving = _names(final)
    revisions = [before[name][0] + 1 if name in before else 0 for name in leaving]
    out = [_marked(final, np.arange(len(final)), revisions, True)]
    memory = {name: kept for name, kept in before.items() if name[1] >= looked.final_end}
    if open_now is not None:
        rows = open_now.table.to_pylist()
        taken: list[int] = []
        numbers: list[int] = []
        for name, indices in _grouped(open_now).items():
            packed = _packed(rows, indices)
            if name in memory and _same(memory[name][1], packed):
                continue
            revision = memory[name][0] + 1 if name in memory else 0
            memory[name] = (revision, packed)
            taken.extend(indices)
            numbers.extend([revision] * len(indices))
        out.append(_marked(open_now, np.array(taken, np.int64), numbers, False))
    return _joined(out), memory


def _marked(chunk: Chunk, index: Any, revisions: list[int], final: bool) -> Chunk:
    taken = chunk.take(index)
    table = taken.table.append_column("revision", pa.array(revisions, pa.int64()))
    table = table.append_column("final", pa.array([final] * len(taken), pa.bool_()))
    return taken.with_table(table)


def _changes(looked: Looked, before: Memory) -> tuple[Chunk, Memory]:
    """Inserts, updates and removals; an update comes with the row it replaces."""
    memory = dict(before)
    parts = [_signed(looked.final, [], "+")]
    for chunk, stays in ((looked.final, False), (looked.open_now, True)):
        if chunk is None:
            continue
        rows = chunk.table.to_pylist()
        groups = _grouped(chunk)
        for name, indices in groups.items():
            packed = _packed(rows, indices)
            old = memory.get(name)
            if old is None:
                parts.append(_signed(chunk, indices, "+"))
            elif not _same(old[1], packed):
                parts.append(_old_rows(chunk, name, old[1], REPLACED))
                parts.append(_signed(chunk, indices, "u"))
            memory[name] = (0, packed)
        end = looked.open_end if stays else looked.final_end
        for name in [name for name in memory if name[1] < end and name not in groups]:
            _, packed = memory.pop(name)  # its reduce gives nothing any more, or it had left
            if name in before:
                parts.append(_old_rows(chunk, name, packed, REMOVED))
        if not stays:
            memory = {name: kept for name, kept in memory.items() if name[1] >= end}
    return _joined(parts), memory


def _signed(chunk: Chunk, indices: list[int], op: str) -> Chunk:
    taken = chunk.take(np.array(indices, np.int64))
    ops = pa.array([op] * len(taken), pa.string())
    return taken.with_table(taken.table.append_column("op", ops))


def _old_rows(chunk: Chunk, name: tuple[int, int], packed: bytes, sign: int) -> Chunk:
    """Rows that were emitted and are so no more: they take away further down."""
    table, _ = to_table([row | {"op": "-"} for row in _restored(decode(packed))], None)
    for number, field in enumerate(table.schema):  # some types come back from storage as text
        known = chunk.table.schema.get_field_index(field.name)
        if known >= 0 and chunk.table.schema.field(known).type != field.type:
            kind = chunk.table.schema.field(known).type
            table = table.set_column(number, field.name, table.column(number).cast(kind))
    count = len(table)
    place = np.full(count, name[0], np.int64), np.full(count, name[1], np.int64)
    return Chunk(table, place[1], place[0], chunk.src, np.full(count, sign, np.int8))


def _restored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times come back from storage as text; windows' bounds are times again."""
    for row in rows:
        for bound in ("window_start", "window_end"):
            if isinstance(row.get(bound), str):
                row[bound] = datetime.fromisoformat(row[bound])
    return rows


def _joined(chunks: list[Chunk]) -> Chunk:
    chunks = [chunk for chunk in chunks if len(chunk)] or chunks[:1]
    table = pa.concat_tables([c.table for c in chunks], promote_options="permissive")
    sign = None
    if any(chunk.sign is not None for chunk in chunks):
        sign = np.concatenate([c.signs() for c in chunks])
    return Chunk(
        table.combine_chunks(),
        np.concatenate([c.ts for c in chunks]),
        np.concatenate([c.pos for c in chunks]),
        chunks[0].src,
        sign,
    )


def _memory(memory: Memory, shards: int) -> pa.Table | None:
    """What is remembered, as rows to be stored in the shard of their key."""
    if not memory:
        return None
    names = list(memory)
    return pa.table(
        {
            "shard": pa.array([name % shards for name, _ in names], pa.int32()),
            "name": pa.array([name for name, _ in names], pa.int64()),
            "ts": pa.array([ts for _, ts in names], pa.int64()),
            "revision": pa.array([memory[n][0] for n in names], pa.int64()),
            "rows": pa.array([memory[n][1] for n in names], pa.binary()),
            "pane": pa.array([ts for _, ts in names], pa.int64()),
        }
    )


def drop_replaced(chunk: Chunk) -> Chunk:
    """A chunk as sinks see it: without rows that only take away what an update replaces."""
    if chunk.sign is None:
        return chunk
    return chunk.take(chunk.sign != REPLACED)
