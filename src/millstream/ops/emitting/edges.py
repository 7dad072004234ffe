"""Where results leave the flow: changes as readers see them.

Inside, a change is a row that is added or one that is taken back. At a sink, and for the events of
an updater, the two sides of a change of one result become one: `u`, or `-` if nothing takes the
place of a row that was given, or `+` for a row where there was none. It is done here, behind all
steps, because these may have kept only one of the sides; what comes out the same is not given.

A result is known by the operator it is from, its key and its window. All rows of a result come from
one task, so one task sees both sides of every change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Chunk, Int64, Mask, begins, concat, flat
from millstream.ops.codec import python_values
from millstream.ops.keys.hashing import dense, factorize, group_by, places_of
from millstream.ops.pairs import packed

MARK = "op"
MARKS = (MARK, "revision")  # columns of rows that left as changes
_OPS = np.array(["-", "+", "u"], object)
_BACK, _NEW, _CHANGED = range(3)

Names = tuple[frozenset[str], ...]


def leaving(
    chunks: Iterable[Chunk],
    early: frozenset[int],
    marked: bool,
    names: Names | None = None,
    pairs: bool = False,
) -> list[Chunk]:
    """The rows of one batch that reached one edge, as they leave there.

    `marked`: they get a column `op`. Else they are early results whose `revision` says as much,
    and what is taken back is left out. `early` has the numbers of operators whose results have one.
    `names`, if functions made the rows: the columns that named them before, of each set one.
    `pairs`: they are of a MapReduce job, whose key is the first of these columns.
    """
    chunks = list(chunks)
    if not marked:
        return [given(chunk) for chunk in chunks]
    by_origin: dict[tuple[int, bool], list[Chunk]] = {}
    for chunk in chunks:
        by_origin.setdefault((chunk.src, chunk.weight is None), []).append(chunk)
    out: list[Chunk] = []
    for (src, plain), several in by_origin.items():
        if plain:
            out.extend(_marked(one, np.full(len(one), _NEW)) for one in several)
        else:
            out.append(consolidate(several, src in early, names, pairs))
    return out


def given(chunk: Chunk) -> Chunk:
    """The rows that are added."""
    return chunk if chunk.weight is None else chunk.take(chunk.weight > 0)


def consolidate(
    chunks: list[Chunk], early: bool = False, names: Names | None = None, pairs: bool = False
) -> Chunk:
    """Changes of one operator, marked, with both sides of each as one; removals first."""
    whole = _together(chunks)
    adds = whole.weights() > 0
    group = _identities(whole)
    count = int(group.max()) + 1 if len(group) else 0
    new, old = (np.bincount(group[side], minlength=count) > 0 for side in (adds, ~adds))
    both = (new & old)[group]
    kept = np.ones(len(whole), np.bool_)
    if both.any():
        kept[both] = _differing(whole, group, both)
    replaced = np.zeros(len(whole), np.bool_) if whole.moves else both
    if names is not None and replaced.any():
        replaced = _found_again(whole, names, pairs, group, replaced)
    mark = np.where(adds, np.where(replaced, _CHANGED, _NEW), _BACK)
    kept &= ~(replaced & ~adds)
    order = np.flatnonzero(kept)
    order = order[np.lexsort((adds[order], whole.mark("change")[order]))]
    out, mark = whole.take(order), mark[order]
    if early:
        out = _next_revision(out, mark == _BACK)
    return _marked(out, mark)


def _together(chunks: list[Chunk]) -> Chunk:
    first = chunks[0]
    if len(chunks) == 1:
        return first
    table = concat([one.table for one in chunks])
    marks = [
        (one.ts, one.pos, one.weights(), one.mark("change"), one.mark("window")) for one in chunks
    ]
    ts, pos, weight, change, window = map(np.concatenate, zip(*marks, strict=True))
    return Chunk(table, ts, pos, first.src, weight, change=change, window=window, moves=first.moves)


def _identities(chunk: Chunk) -> Int64:
    """Dense codes of results in one emission each."""
    _, key = np.unique(chunk.pos, return_inverse=True)
    _, of_key = np.unique(chunk.mark("window"), return_inverse=True)
    group, _, _ = group_by(key, of_key)
    _, emission = np.unique(chunk.mark("change"), return_inverse=True)
    group, _, _ = group_by(group, emission)
    return group


def _found_again(chunk: Chunk, names: Names, pairs: bool, group: Int64, both: Mask) -> Mask:
    """Of results with two sides: those whose rows all have one name, by which they are found."""
    table = chunk.table
    has = [sorted(several.intersection(table.column_names)) for several in names]
    if not all(has):
        return np.zeros(len(both), np.bool_)
    at = np.flatnonzero(both)
    columns = [flat(table.column(several[0]).take(pa.array(at))) for several in has]
    if not columns:
        return both
    code = factorize(columns)[0].astype(np.int64)
    mine, _ = dense(group[at])
    count = int(mine.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(low, mine, code)
    np.maximum.at(high, mine, code)
    found = both.copy()
    found[at] = (low == high)[mine]
    if pairs:  # a key that `reduce` made up may be that of any number of results
        found[at] &= places_of([packed(python_values(columns[0]))]) == chunk.pos[at]
    return found


def _differing(chunk: Chunk, group: Int64, both: Mask) -> Mask:
    """Of results with two sides: the rows that are to be given, where these differ.

    If a result has several rows, those of a change take the place of all before them; where windows
    move, every row stands for itself, and those that are on both sides cancel out.
    """
    at = np.flatnonzero(both)
    table, weight, mine = chunk.table.take(pa.array(at)), chunk.weights()[at], group[at]
    columns = [flat(column) for column in table.columns]
    content = factorize(columns)[0] if columns else np.zeros(len(at), np.int64)
    mine, _ = dense(mine)
    same, of_group, _ = group_by(mine, content)
    net = np.bincount(same, weights=weight).astype(np.int64)
    if not chunk.moves:
        changed = np.bincount(of_group, weights=net != 0)
        differs: Mask = changed[mine] > 0
        return differs
    order = np.lexsort((np.arange(len(at)), weight, same))  # the first of each side cancel out
    side, _, _ = group_by(same, weight)
    start = begins(side[order])
    begin = np.maximum.accumulate(np.where(start, np.arange(len(at)), 0))
    nth = np.empty(len(at), np.int64)
    nth[order] = np.arange(len(at)) - begin
    sizes = np.stack([np.bincount(same[weight == w], minlength=len(net)) for w in (-1, 1)])
    stays: Mask = nth >= sizes.min(axis=0)[same]
    return stays


def _next_revision(chunk: Chunk, back: Mask) -> Chunk:
    """Early results that are taken back have the revision that took their place."""
    at = chunk.table.schema.get_field_index("revision")
    if at < 0 or not pa.types.is_integer(chunk.table.schema.field(at).type) or not back.any():
        return chunk
    column = pc.add(chunk.table.column(at), pa.array(back.astype(np.int64)))
    return chunk.with_table(chunk.table.set_column(at, "revision", column))


def _marked(chunk: Chunk, mark: Int64) -> Chunk:
    return chunk.with_table(chunk.table.append_column(MARK, pa.array(_OPS[mark], pa.string())))


def last_of_each(table: pa.Table, names: Iterable[Any], changes: bool) -> dict[Any, int]:
    """Where the last row stands of everything that rows are known by, in rows that have left.

    One that takes back another than the last does not count: what it takes back was replaced.
    """
    ops = table.column(MARK).to_pylist() if changes else []
    plain = table.drop_columns([name for name in MARKS if name in table.column_names])
    last: dict[Any, int] = {}
    for at, name in enumerate(names):
        before = last.get(name)
        takes_back = changes and ops[at] == "-"
        if not takes_back or before is None or ops[before] == "-" or _same(plain, before, at):
            last[name] = at
    return last


def _same(table: pa.Table, one: int, other: int) -> bool:
    return bool(table.slice(one, 1).equals(table.slice(other, 1)))
