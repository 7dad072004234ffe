"""Kept stacks: windows without an inverse, slid from batch to batch at the cost of what changes.

A window is two stacks. The *front* holds its older panes, up to its *base*: with every pane goes
the state of all that come after it in the front. So when a pane leaves, what is left is known
already, and nothing has to be taken away. The *back* holds the newer panes as one state per key.
When the front is used up, the panes of the window become the new front (`flip`). That is one
combine per pane, once per window length.

What is stored of the front is written by a flip and then only read, a range of panes at a time. The
*tops*, at most two rows per key (what is left of the front, and the back), are written by every
batch in which windows leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.grid import Grid
from millstream.ops.aggregates.holding import ObjectKernel
from millstream.ops.aggregates.kernels import Kernel, State
from millstream.ops.chunks import Int64, concat, flat, numbers, with_column
from millstream.ops.codec import decode, encode, fresh
from millstream.ops.keys.hashing import key_names
from millstream.ops.times.spans import Span
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.closing import outputs_of
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import codes_of, merge_panes, naming_key, state_of
from millstream.ops.windows.results import LeavingWindows
from millstream.ops.windows.running import LEAST_PANES, can_run

_FRONT, _BACK = 0, 1
_OLDEST = np.iinfo(np.int64).min
_CELLS = 4_000_000  # of a grid at once, so that memory stays bounded


@dataclass(frozen=True)
class Advanced:
    """Windows that left, their answers, and the tops after the last of them."""

    found: LeavingWindows
    answers: Answers
    tops: pa.Table | None


def can_stack(job: WindowJob) -> bool:
    """Whether windows overlap enough to gain, all measures combine, and some have no inverse."""
    if job.kind != "time" or job.span.whole or not job.measures or job.emission.mode != "final":
        return False
    if job.changes or any(m.held for m in job.measures):
        return False
    if job.reducer is not None and not job.packed:
        return False
    return job.span.step < job.span.panes >= LEAST_PANES and not can_run(job)


def used_up(tops: pa.Table | None, first: int) -> bool:
    """Whether a window that begins with a pane has nothing left of the front of some key."""
    if tops is None or not len(tops):
        return False
    return bool(numbers(tops, "base").min() < first)


def in_back(tops: pa.Table | None, late: pa.Table) -> bool:
    """Whether rows that came late belong to the backs of their shards, all of them."""
    base = _base_of(late, tops, np.iinfo(np.int64).max)
    return bool((numbers(late, "pane") >= base).all())


def flip(job: WindowJob, panes: pa.Table | None, end: int) -> tuple[pa.Table, pa.Table] | None:
    """Make all panes (merged) of the window that ends at `end` the front; gives it and the tops."""
    if panes is None or not len(panes):
        return None
    pane = numbers(panes, "pane")
    inside = panes.filter(pa.array((pane >= end - job.span.panes) & (pane < end)))
    if not len(inside):
        return None
    codes, _ = codes_of(job.keys, inside)
    more = np.append(codes[1:] == codes[:-1], False)  # a row of the same key follows
    front = inside.select(["shard", "pane", *key_names(job.keys)])
    front = front.append_column("rest", pa.array(more))
    # Rows of `left` stand for those that have some after them; the others keep their own state.
    place = np.where(more, np.cumsum(more) - 1, int(more.sum()) + np.arange(len(inside)))
    for measure in _only(job).measures:
        own = state_of(inside, measure)
        if measure.kernel is not None:
            left = _left(measure.kernel, own, codes)
        else:
            assert measure.objects is not None
            with naming_key([job], inside):
                left = {"state": _left_objects(measure.objects, own["state"], codes)}
        for field, column in own.items():
            both = concat([pa.table({"s": left[field]}), pa.table({"s": column})]).column("s")
            name = f"state.{measure.state}.{field}"
            front = front.append_column(name, flat(both).take(pa.array(place)))
    tops = merge_panes(_only(job), _at(inside, _FRONT))
    return front, _placed(tops, end, np.full(len(tops), end, np.int64))


def advance(
    job: WindowJob,
    tops: pa.Table | None,
    gone: pa.Table | None,
    panes: pa.Table | None,
    closed: int,
    closing: int,
) -> Advanced:
    """Move every key from the window that ends at `closed` to the one that ends at `closing`.

    `gone` are the rows of the front whose panes leave on the way; `panes` are merged rows of all
    panes that enter, and of those that leave but are in some window on the way.

    All windows on the way have the same middle: what neither enters nor leaves. It becomes one
    pane, so that what is left is a short window over few panes, closed like any other.
    """
    width, count = job.span.panes, closing - closed
    lower, upper = _split(job, tops, gone)
    old, new = _cut(panes, closed)
    early = [_at(part, count) for part in (lower, upper) if part is not None]
    if old is not None:
        early.append(_at(old, numbers(old, "pane") - (closed - width)))
    if new is not None:
        early.append(_at(new, numbers(new, "pane") - closed + count + 1))
    short = replace(job, span=Span(count + 1, job.span.step, 1))
    rows = merge_panes(_only(job), concat(early)) if early else None
    key, end, uniques, answers = outputs_of(short, rows, None, count + 1, 2 * count + 1)
    end = (end - (count + 1) + closed) * job.span.pane
    found = LeavingWindows(key, uniques, end - job.span.size, end, end - 1)
    stacks = ((lower, _FRONT), (upper, _BACK), (new, _BACK))
    after = [_at(part, half) for part, half in stacks if part is not None]
    if not after:
        return Advanced(found, answers, None)
    merged = merge_panes(_only(job), concat(after))
    return Advanced(found, answers, _placed(merged, closing, _base_of(merged, tops, closed)))


def absorb(job: WindowJob, tops: pa.Table | None, late: pa.Table, closed: int) -> pa.Table:
    """The tops with rows that came late for panes of the back."""
    lower, upper = _split(job, tops, None)
    parts = [(lower, _FRONT), (upper, _BACK), (late, _BACK)]
    rows = concat([_at(part, half) for part, half in parts if part is not None])
    merged = merge_panes(_only(job), rows)
    return _placed(merged, closed, _base_of(merged, tops, closed))


def _only(job: WindowJob) -> Family:
    return Family(job.name, (job,))


def _at(rows: pa.Table, pane: int | Int64) -> pa.Table:
    """The same rows in another pane."""
    panes = np.full(len(rows), pane, np.int64) if isinstance(pane, int) else pane
    return with_column(rows, "pane", panes)


def _placed(merged: pa.Table, end: int, base: Int64) -> pa.Table:
    """Merged rows, with their stack as pane, as tops of the window that ends at `end`."""
    tops = merged.append_column("half", flat(merged.column("pane")))
    return _at(tops, end).append_column("base", pa.array(base))


def _base_of(rows: pa.Table, tops: pa.Table | None, other: int) -> Int64:
    """The base of every row's shard; or what it is for a shard without rows."""
    shard = numbers(rows, "shard")
    known = np.full(int(shard.max(initial=0)) + 1, other, np.int64)
    if tops is not None and len(tops):
        owner, base = (numbers(tops, name) for name in ("shard", "base"))
        here = owner < len(known)
        known[owner[here]] = base[here]
    found: Int64 = known[shard]
    return found


def _split(
    job: WindowJob, tops: pa.Table | None, gone: pa.Table | None
) -> tuple[pa.Table | None, pa.Table | None]:
    """What is left of the front once some of its rows are gone, and the back: a row per key."""
    if tops is None or not len(tops):
        return None, None
    half = numbers(tops, "half")
    plain = tops.drop_columns(["half", "base"])
    lower, upper = (plain.filter(pa.array(half == which)) for which in (_FRONT, _BACK))
    if len(lower) and gone is not None and len(gone):
        stays = _at(lower, _OLDEST).append_column("rest", pa.array(np.ones(len(lower), np.bool_)))
        rows = concat([stays, gone])
        codes, _ = codes_of(job.keys, rows)
        order = np.lexsort((numbers(rows, "pane"), codes))
        last = order[np.append(codes[order][1:] != codes[order][:-1], True)]
        rows = rows.take(pa.array(last))
        lower = rows.filter(rows.column("rest")).drop_columns(["rest"])
    return (lower if len(lower) else None), (upper if len(upper) else None)


def _cut(panes: pa.Table | None, closed: int) -> tuple[pa.Table | None, pa.Table | None]:
    """Panes that leave and panes that enter."""
    if panes is None or not len(panes):
        return None, None
    enters = numbers(panes, "pane") >= closed
    old, new = panes.filter(pa.array(~enters)), panes.filter(pa.array(enters))
    return (old if len(old) else None), (new if len(new) else None)


# -- what is left after each row -----------------------------------------------------------------


def _left(kernel: Kernel, state: State, codes: Int64) -> State:
    """For every row that is not the last of its key, all rows of the key after it."""
    parts: list[State] = []
    rows_of: list[Int64] = []
    for rows, grid in _grids(codes):
        parts.append(kernel.slide({n: c.take(pa.array(rows)) for n, c in state.items()}, grid))
        rows_of.append(rows[grid.window_key])
    if not parts:
        return {name: column.slice(0, 0) for name, column in state.items()}
    order = pa.array(np.argsort(np.concatenate(rows_of), kind="stable"))
    tables = concat([pa.table(part) for part in parts])
    return {name: flat(tables.column(name)).take(order) for name in state}


def _grids(codes: Int64) -> Iterator[tuple[Int64, Grid]]:
    """Rows by key as columns of grids, keys with about as many rows together, so that no grid is
    mostly empty; the windows of a grid begin one row after each row that is not the last."""
    size = np.bincount(codes)
    first = np.cumsum(size) - size
    depth = np.ceil(np.log2(size)).astype(np.int64)
    for level in range(1, int(depth.max(initial=0)) + 1):
        keys = np.flatnonzero(depth == level)
        some = max(1, _CELLS >> level)
        for start in range(0, len(keys), some):
            mine = keys[start : start + some]
            blocks, panes = len(mine), int(size[mine].max())
            key = np.repeat(np.arange(blocks), size[mine])
            rank = np.arange(len(key)) - np.repeat(np.cumsum(size[mine]) - size[mine], size[mine])
            cell = rank * blocks + key
            at = np.flatnonzero(rank < size[mine][key] - 1)
            nothing = np.full(len(at), panes * blocks)
            yield (
                first[mine][key] + rank,
                Grid(0, len(key), cell, blocks, panes, at, at, cell[at] + blocks, nothing),
            )


def _left_objects(objects: ObjectKernel, states: pa.Array, codes: Int64) -> pa.Array:
    packed, key = states.to_pylist(), codes.tolist()
    out: list[bytes] = []
    after: Any = None
    for at in range(len(key) - 1, 0, -1):
        row = decode(packed[at])
        follows = at + 1 < len(key) and key[at] == key[at + 1]
        after = objects.plus(row, fresh(after), at) if follows else row
        if key[at - 1] == key[at]:
            out.append(encode(after))
    return pa.array(out[::-1], pa.binary())
