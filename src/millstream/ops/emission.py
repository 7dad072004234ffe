"""When and how results leave: once and final, early and refined, or as a stream of changes.

What has been emitted of windows that are still open is remembered per (key, window): so a window
is emitted again only when it changed, an early result knows its revision, and a change carries what
it replaces, so that aggregates further down can take the old value away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Chunk, Int64, concat, flat
from millstream.ops.firing import Emission
from millstream.ops.mixed import exact_columns, exactly

Name = tuple[int, int]  # key, and which of its windows: by time, a session by its start, or number
REMOVED, REPLACED = -1, -2  # signs of rows that take away: without, or with a new row instead
_OPS = {"+", "-", "u"}
_DIGITS = 12  # results that agree in so many digits count as the same


@dataclass(frozen=True)
class Looked:
    """Results of windows that leave, and of open ones that were looked at, with their bounds."""

    final: Chunk
    final_end: int  # windows that end by here have left
    open_now: Chunk | None = None  # None: open windows were not looked at
    open_end: int = 0  # those that end by here were
    kind: str = "time"
    too: bool = False  # windows that leave are given early too, if they have changed

    @property
    def opened(self) -> Chunk:
        """Results of open windows, none if they were not looked at."""
        nothing = np.zeros(0, np.int64)
        return self.final.take(nothing) if self.open_now is None else self.open_now

    @property
    def numbered(self) -> bool:
        """Over rows or bytes: a window is known by its number, its bounds move with its records."""
        return self.kind in ("rows", "bytes")


def refine(
    how: Emission, looked: Looked, known: pa.Table | None, shards: int, batch: int
) -> tuple[Chunk, pa.Table | None]:
    """What of these results is new or changed, marked; and what is remembered of open windows."""
    before = _Memory(known)
    if how.mode == "early":
        return _early(looked, before, shards)
    return _changes(looked, before, shards, batch)


# -- what was emitted of windows that are still open ----------------------------------------------


@dataclass(frozen=True)
class _Result:
    """What was emitted last of a window: several rows if a reduce function gave several."""

    revision: int
    ts: int
    rows: list[int]  # where they stand in what is remembered


class _Memory:
    """What is remembered, by (key, window)."""

    def __init__(self, known: pa.Table | None) -> None:
        self.known = known
        self.results: dict[Name, _Result] = {}
        self.rows: list[dict[str, Any]] = []
        if known is None:
            return
        self.rows = self.emitted(known).to_pylist()
        columns = (known.column(name).to_pylist() for name in ("name", "window", "revision", "ts"))
        for index, (key, window, revision, ts) in enumerate(zip(*columns, strict=True)):
            found = self.results.setdefault((key, window), _Result(revision, ts, []))
            found.rows.append(index)

    @staticmethod
    def emitted(known: pa.Table) -> pa.Table:
        """Rows as they were emitted, without the marks."""
        names = [name for name in known.column_names if name.startswith("row.")]
        return known.select(names).rename_columns([name.removeprefix("row.") for name in names])

    def same(self, result: _Result, rows: list[dict[str, Any]]) -> bool:
        """Whether these rows say what was said last."""
        known = [self.rows[index] for index in result.rows]
        return known == rows or bool(_rounded(known) == _rounded(rows))

    def known_as(self, name: Name, rows: list[dict[str, Any]], indices: list[int]) -> bool:
        """Whether these of some rows are what was said last of a window."""
        known = self.results.get(name)
        return known is not None and self.same(known, [rows[index] for index in indices])

    def taken_back(self, which: list[tuple[_Result, int]], src: int) -> Chunk | None:
        """Rows that were emitted and are so no more: they take away further down."""
        if not which or self.known is None:
            return None
        at = pa.array([index for result, _ in which for index in result.rows], pa.int64())
        known = self.known.take(at)
        table = self.emitted(known)
        table = table.append_column("op", pa.array(["-"] * len(table), pa.string()))
        ts, pos, revision = (np.asarray(flat(known.column(n))) for n in ("ts", "name", "revision"))
        sign = np.repeat([sign for _, sign in which], [len(one.rows) for one, _ in which])
        return Chunk(table, ts, pos, src, sign, revision)

    def after(self, kept: Iterable[Name], fresh: _Fresh, shards: int) -> pa.Table | None:
        """What is remembered from now on: some of what was, and results just emitted."""
        tables = []
        indices = [index for name in kept for index in self.results[name].rows]
        if indices and self.known is not None:
            tables.append(self.known.take(pa.array(indices, pa.int64())))
        if fresh.indices:
            tables.append(fresh.remembered(shards))
        return concat(tables) if tables else None


@dataclass
class _Fresh:
    """Results of one chunk that are emitted now, with a mark and a revision each."""

    chunk: Chunk
    indices: list[int] = field(default_factory=list)
    marks: list[Any] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)

    def add(self, indices: list[int], mark: Any, revision: int) -> None:
        self.indices.extend(indices)
        self.marks.extend([mark] * len(indices))
        self.revisions.extend([revision] * len(indices))

    def taken(self) -> Chunk:
        return self.chunk.take(np.array(self.indices, np.int64))

    def remembered(self, shards: int) -> pa.Table:
        """Their rows, to be stored in the shard of their key."""
        taken = self.taken()
        bookkeeping = {
            "shard": pa.array(taken.pos % shards, pa.int32()),
            "pane": pa.array(taken.ts, pa.int64()),
            "name": pa.array(taken.pos, pa.int64()),
            "window": pa.array(_windows(taken), pa.int64()),
            "ts": pa.array(taken.ts, pa.int64()),
            "revision": pa.array(self.revisions, pa.int64()),
        }
        rows = {f"row.{name}": taken.column(name) for name in taken.table.column_names}
        return exactly(bookkeeping | rows, (f"row.{name}" for name in exact_columns(taken.table)))


def _windows(chunk: Chunk) -> Int64:
    return chunk.ts if chunk.window is None else chunk.window


def _grouped(chunk: Chunk | None) -> dict[Name, list[int]]:
    """The rows of every (key, window); several rows of one reduce share it."""
    groups: dict[Name, list[int]] = {}
    if chunk is not None:
        names = zip(chunk.pos.tolist(), _windows(chunk).tolist(), strict=True)
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
    return groups


def _rounded(value: Any) -> Any:
    """A form in which results that agree in enough digits are equal, and NaN is itself."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value == value else "NaN"
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items() if v is not None}
    return value


# -- early results --------------------------------------------------------------------------------


def _early(looked: Looked, before: _Memory, shards: int) -> tuple[Chunk, pa.Table | None]:
    final, now, last = _Fresh(looked.final), _Fresh(looked.opened), _Fresh(looked.final)
    older = _Older(looked.kind, before)
    rows = looked.final.table.to_pylist() if looked.too else []
    for name, indices in _grouped(looked.final).items():
        revision = older.next_revision(name, int(looked.final.ts[indices[0]]))
        if looked.too and not before.known_as(name, rows, indices):
            last.add(indices, False, revision)
            revision += 1
        final.add(indices, True, revision)
    groups = _grouped(looked.open_now)
    rows = [] if looked.open_now is None else looked.open_now.table.to_pylist()
    unchanged = set()
    for name, indices in groups.items():
        if before.known_as(name, rows, indices):
            unchanged.add(name)
            continue
        now.add(indices, False, older.next_revision(name, int(now.chunk.ts[indices[0]])))
    kept = [
        name
        for name, result in before.results.items()
        if name in unchanged
        or (name not in older.replaced and _open_still(looked, name, result, groups))
    ]
    chunk = joined([_revised(last), _revised(final), _revised(now)])
    return chunk, before.after(kept, now, shards)


def _open_still(looked: Looked, name: Name, result: _Result, groups: dict[Name, Any]) -> bool:
    """Whether a window that has not been emitted again may be so later."""
    if looked.numbered or looked.kind == "session":  # it may have grown; a look finds them all
        return looked.open_now is None or name in groups
    return result.ts >= looked.final_end


class _Older:
    """Finds what a result takes the place of; a session stands for all it has grown from."""

    def __init__(self, kind: str, before: _Memory) -> None:
        self.sessions, self.results = kind == "session", before.results
        self.replaced: set[Name] = set()
        self.starts: dict[int, list[int]] = {}
        if self.sessions:
            for key, start in before.results:
                self.starts.setdefault(key, []).append(start)

    def next_revision(self, name: Name, ts: int) -> int:
        """The revision after those of what it replaces."""
        names = [name] if name in self.results else []
        if self.sessions:
            key, start = name
            names = [
                (key, at)
                for at in self.starts.get(key, ())
                if at <= ts and self.results[key, at].ts >= start
            ]
        self.replaced.update(names)
        return max((self.results[one].revision for one in names), default=-1) + 1


def _revised(fresh: _Fresh) -> Chunk:
    taken = fresh.taken()
    table = taken.table.append_column("revision", pa.array(fresh.revisions, pa.int64()))
    return taken.with_table(table.append_column("final", pa.array(fresh.marks, pa.bool_())))


# -- changes --------------------------------------------------------------------------------------


def _changes(
    looked: Looked, before: _Memory, shards: int, batch: int
) -> tuple[Chunk, pa.Table | None]:
    """Inserts, updates and removals; an update comes with the row it replaces."""
    back: list[tuple[_Result, int]] = []
    kept: list[Name] = []
    seen: set[Name] = set()
    final, now = _Fresh(looked.final), _Fresh(looked.opened)
    for chunk, fresh in ((looked.final, final), (looked.open_now, now)):
        rows = [] if chunk is None else chunk.table.to_pylist()
        for name, indices in _grouped(chunk).items():
            seen.add(name)
            known = before.results.get(name)
            if known is None:
                fresh.add(indices, "+", batch)
            elif before.same(known, [rows[index] for index in indices]):
                kept.append(name)
            elif looked.numbered or known.ts != fresh.chunk.ts[indices[0]]:  # other bounds
                back.append((known, REMOVED))
                fresh.add(indices, "+", batch)
            else:
                back.append((known, REPLACED))
                fresh.add(indices, "u", batch)
    left = looked.final_end if looked.open_now is None else looked.open_end
    for name, known in before.results.items():
        if name not in seen and known.ts < left:  # it is another window now, or gives nothing
            back.append((known, REMOVED))
        elif name not in seen:
            kept.append(name)
    gone = set(_grouped(looked.final))
    taken_back = before.taken_back(back, looked.final.src)
    parts = [*([] if taken_back is None else [taken_back]), _signed(final), _signed(now)]
    return joined(parts), before.after([name for name in kept if name not in gone], now, shards)


def _signed(fresh: _Fresh) -> Chunk:
    taken = fresh.taken()
    table = taken.table.append_column("op", pa.array(fresh.marks, pa.string()))
    revision = np.array(fresh.revisions, np.int64)
    return Chunk(table, taken.ts, taken.pos, taken.src, np.ones(len(taken), np.int64), revision)


def joined(chunks: list[Chunk]) -> Chunk:
    """Marked results one after the other."""
    chunks = [chunk for chunk in chunks if len(chunk)] or chunks[:1]
    if len(chunks) == 1:
        return replace(chunks[0], window=None)
    marks = (
        None if parts[0] is None else np.concatenate([part for part in parts if part is not None])
        for parts in ([c.sign for c in chunks], [c.revision for c in chunks])
    )
    return Chunk(
        concat([chunk.table for chunk in chunks]),
        np.concatenate([chunk.ts for chunk in chunks]),
        np.concatenate([chunk.pos for chunk in chunks]),
        chunks[0].src,
        *marks,
    )


def drop_replaced(chunk: Chunk) -> Chunk:
    """A chunk as sinks see it: without rows that only take away what an update replaces."""
    if chunk.sign is None:
        return chunk
    return chunk.take(chunk.sign != REPLACED)


def without_mark(chunk: Chunk) -> Chunk:
    """Changes as windows and jobs further down see them: `op` is for readers, not for them."""
    at = chunk.table.schema.get_field_index("op")
    if chunk.sign is None or at < 0 or not set(chunk.column("op").unique().to_pylist()) <= _OPS:
        return chunk
    return chunk.with_table(chunk.table.remove_column(at))
