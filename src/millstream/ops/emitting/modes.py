"""When and how results leave: once and final, early and refined, or as a stream of changes.

What has been emitted of windows that are still open is remembered (`ops/emitting/emitted.py`): so a
window is emitted again only when it changed, and what it said before is taken back. Early results
and changes leave as the same thing, rows with a weight: what is said now, and what was said and is
so no more. They differ in when they leave and in what readers see of them
(`ops/emitting/edges.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Chunk, Int64, Mask, concat
from millstream.ops.emitting.emitted import Fresh, Memory, Results, windows_of
from millstream.ops.emitting.firing import Emission

EMISSIONS = 2**20  # that one batch may have of one operator


@dataclass(frozen=True)
class ResultsSoFar:
    """Results of windows that leave, and of open ones that were looked at, with their bounds."""

    final: Chunk
    final_end: int  # windows that end by here have left
    open_now: Chunk | None = None  # None: open windows were not looked at
    open_end: int = 0  # those that end by here were
    kind: str = "time"
    too: bool = False  # windows that leave are given early too, if they have changed

    @property
    def numbered(self) -> bool:
        """Over rows or bytes: a window is known by its number, its bounds move with its records."""
        return self.kind in ("rows", "bytes")

    def results(self) -> Results:
        """All of them, those of windows that leave first."""
        parts = [self.final, *([] if self.open_now is None else [self.open_now])]
        return Results(joined([replace(one, window=windows_of(one)) for one in parts]))


def refine(
    how: Emission, looked: ResultsSoFar, known: pa.Table | None, shards: int, stamp: int
) -> tuple[Chunk, pa.Table | None]:
    """What of these results is new or changed, and what is remembered of open windows.

    `stamp` is the number of this emission; early results may need the one after it too.
    """
    if known is None and not len(looked.final) and not len(looked.open_now or ()):
        return looked.final, None
    change = _Change(looked, Memory(known), shards, stamp)
    return change.early() if how.mode == "early" else change.delta()


class _Change:
    """Results of one look beside what was emitted before."""

    def __init__(self, looked: ResultsSoFar, memory: Memory, shards: int, stamp: int) -> None:
        self.looked, self.memory, self.shards, self.stamp = looked, memory, shards, stamp
        self.results = looked.results()
        self.leaves: Mask = self.results.first < len(looked.final)  # per result
        self.found = memory.find(self.results)
        self.same = memory.same(self.results, self.found)

    def delta(self) -> tuple[Chunk, pa.Table | None]:
        """What is new or different now, and what it replaces."""
        looked, memory = self.looked, self.memory
        fresh = ~self.same
        left = looked.final_end if looked.open_now is None else looked.open_end
        back = self._known(fresh)
        back |= ~self._known(fresh | self.same) & (memory.ts < left)  # it gives nothing any more
        given = self.results.rows(fresh)
        parts = [self._taken_back(back), self._given(given, self.stamp)]
        kept = ~back & ~self._known(self.leaves)
        return joined(parts), self._after(kept, np.zeros_like(kept), fresh & ~self.leaves)

    def early(self) -> tuple[Chunk, pa.Table | None]:
        """What is new or different now, with revisions; what leaves is given in any case."""
        looked, memory, results = self.looked, self.memory, self.results
        fresh = self.leaves | ~self.same
        mine, theirs = self._replaced()
        revision = np.zeros(len(results.first), np.int64)
        np.maximum.at(revision, mine, memory.revision[theirs] + 1)
        replaced = np.zeros(len(memory), np.bool_)
        replaced[theirs[fresh[mine]]] = True
        vanished, emptied = self._vanished(replaced | self._known(self.same))
        last = self.leaves & ~self.same & looked.too
        now, later = self.stamp, self.stamp + 1
        final = np.where(last, revision + 1, revision)
        back = (replaced | vanished) & memory.shown
        parts = [
            self._revised(self._taken_back(back), memory.revision[memory.group][memory.rows(back)]),
            self._marked(last, revision, now, now),
            self._marked(last, revision, now, later, back=True),
            self._marked(self.leaves & ~last, final, now, now, final=True),
            self._marked(last, final, later, later, final=True),
            self._marked(fresh & ~self.leaves, revision, now, now),
        ]
        kept = ~replaced & ~(vanished & ~emptied) & ~self._gone()
        return joined(parts), self._after(kept, emptied, fresh & ~self.leaves, revision)

    # -- which of the remembered results are concerned --------------------------------------------

    def _known(self, groups: Mask) -> Mask:
        """The remembered results some results are of."""
        known = np.zeros(len(self.memory), np.bool_)
        at = self.found[groups]
        known[at[at >= 0]] = True
        return known

    def _replaced(self) -> tuple[Int64, Int64]:
        """Results and what each takes the place of; a session stands for all it has grown from."""
        if self.looked.kind == "session":
            return self.memory.overlapping(self.results)
        mine = np.flatnonzero(self.found >= 0)
        return mine, self.found[mine]

    def _vanished(self, there: Mask) -> tuple[Mask, Mask]:
        """Results that give nothing any more; and those of them that still may again."""
        looked, memory = self.looked, self.memory
        seen = looked.open_now is not None
        emptied = np.full(len(memory), seen and not self._by_records()) & ~there
        if self._by_records():  # a look finds all of them
            return np.full(len(memory), seen) & ~there, emptied
        left = memory.ts < looked.final_end
        return ~there & (left | seen), emptied & ~left

    def _gone(self) -> Mask:
        """Remembered results whose windows have left."""
        if self._by_records():
            return self._known(self.leaves)
        return self.memory.ts < self.looked.final_end

    def _by_records(self) -> bool:
        """Whether windows end where their records do, so that an open one may still grow."""
        return self.looked.numbered or self.looked.kind == "session"

    # -- rows -------------------------------------------------------------------------------------

    def _taken_back(self, which: Mask) -> Chunk:
        """Rows that were emitted and are so no more."""
        memory = self.memory
        rows = memory.rows(which)
        group = memory.group[rows] if len(memory) else rows
        return self._chunk(
            memory.emitted(rows),
            memory.ts[group],
            memory.name[group],
            memory.window[group],
            np.full(len(rows), -1),
            memory.stamp[group],
            self.stamp,
        )

    def _given(self, rows: Int64, stamp: int, change: int | None = None, weight: int = 1) -> Chunk:
        """Rows of results that are emitted."""
        results = self.results
        taken = results.chunk.take(rows)
        return self._chunk(
            taken.table,
            taken.ts,
            taken.pos,
            results.window[rows],
            np.full(len(rows), weight),
            np.full(len(rows), stamp),
            stamp if change is None else change,
        )

    def _chunk(
        self,
        table: pa.Table,
        ts: Int64,
        pos: Int64,
        window: Int64,
        weight: Int64,
        revision: Int64,
        change: int,
    ) -> Chunk:
        if self.looked.kind == "session":  # another end is another session
            window = _mixed(window, ts)
        return Chunk(
            table,
            ts,
            pos,
            self.looked.final.src,
            weight.astype(np.int64),
            revision.astype(np.int64),
            np.full(len(ts), change, np.int64),
            window,
            moves=self.looked.numbered,
        )

    def _marked(
        self,
        groups: Mask,
        revision: Int64,
        stamp: int,
        change: int,
        *,
        final: bool = False,
        back: bool = False,
    ) -> Chunk:
        """Early results of some windows, with the marks readers see."""
        rows = self.results.rows(groups)
        given = self._given(rows, stamp, change, -1 if back else 1)
        return self._revised(given, revision[self.results.group[rows]], final)

    @staticmethod
    def _revised(chunk: Chunk, revision: Int64, final: bool = False) -> Chunk:
        table = chunk.table.append_column("revision", pa.array(revision, pa.int64()))
        marks = pa.array(np.full(len(chunk), final), pa.bool_())
        return chunk.with_table(table.append_column("final", marks))

    def _after(
        self, kept: Mask, emptied: Mask, fresh: Mask, revision: Int64 | None = None
    ) -> pa.Table | None:
        """What is remembered from now on."""
        rows = self.results.rows(fresh)
        revisions = np.zeros(len(rows), np.int64)
        if revision is not None:
            revisions = revision[self.results.group[rows]]
        table = Fresh(self.results, rows, revisions, self.stamp).remembered(self.shards)
        return self.memory.after(kept, emptied, table if len(rows) else None)


def _mixed(start: Int64, end: Int64) -> Int64:
    """One number for the two bounds of a session."""
    with np.errstate(over="ignore"):
        found = start.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ end.astype(np.uint64)
        found = (found ^ (found >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return found.view(np.int64)


def joined(chunks: list[Chunk]) -> Chunk:
    """Results of one operator, one after the other."""
    chunks = [chunk for chunk in chunks if len(chunk)] or chunks[:1]
    if len(chunks) == 1:
        return chunks[0]
    names = ("ts", "pos", "weight", "revision", "change", "window")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in chunks])
        for name in names
        if getattr(chunks[0], name) is not None
    }
    return replace(chunks[0], table=concat([one.table for one in chunks]), order=None, **arrays)
