"""Windows over rows or bytes: rows are numbered in order, and windows are stretches of numbers.

Numbers are given per key, or over the whole stream by the one task that has all of it; results are
per key either way. A landmark over rows or bytes adds each slide that is full to a total per key.
All functions are pure: stored rows come in, results and rows to be stored go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.aggregates.grid import find_runs
from millstream.ops.chunks import Int64, begins, concat, flat, numbers
from millstream.ops.codec import python_values
from millstream.ops.keys.hashing import group_by, key_names
from millstream.ops.mixed import is_mixed, mixed
from millstream.ops.windows.answering import Answers, completed
from millstream.ops.windows.changes import lift_rows, states_of
from millstream.ops.windows.closing import Outcome, held_outputs, slide
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.kinds import grow, nothing_found
from millstream.ops.windows.preparing import codes_of, of_keys
from millstream.ops.windows.results import LeavingWindows, results

_BEGIN = -(2**61)
_ALL_BEGUN = 2**61  # a window end no number reaches


@dataclass(frozen=True)
class Numbered:
    """What is stored of numbered windows: rows of open ones, and totals of landmarks."""

    held: pa.Table | None  # one row per counter: how far it is, and as lists the rows it holds
    totals: pa.Table | None = None  # one row per key, of landmarks


def close_numbered(
    family: Family, ready: pa.Table | None, known: Numbered, ended: int | None, src: int
) -> tuple[Outcome, Numbered]:
    """Windows over rows or bytes that are full, or all that have begun if the input has ended.

    `ready` are rows whose order is settled, `known` what is stored of those who count them. Gives
    the results and what is to be stored. `ended` is the time at which the input ended: that of
    windows which are not full, so that it does not matter how much came in the last batch.
    """
    job = family.jobs[0]
    parts = [t for t in (_unpacked(known.held), ready) if t is not None and len(t)]
    if not parts:
        chunk, dead = results(job, src, nothing_found(job), completed(job, Answers()))
        return Outcome(chunk, 0, dead, 0), known
    counted = _count(job, parts, ready, known.held)
    leaving = _leaving(job, counted, ended)
    totals = None
    if job.growing:
        outcome, totals = _grown(family, counted.rows, counted.codes, leaving, known.totals, src)
    else:
        outcome = _close_rows(family, counted.rows, counted.codes, leaving, src)
    if ended is not None:  # every window has left: what may come later is counted anew
        return outcome, Numbered(None)
    return outcome, Numbered(_open_still(job, counted, leaving), totals)


@dataclass(frozen=True)
class _Counted:
    """All rows that are not done with, in the order of their counter and their number."""

    rows: pa.Table
    codes: Int64  # whose each row is
    owners: pa.Table  # of each counter its shard and key
    before: Int64  # of each counter how far it was
    after: Int64  # and how far it is


def _count(
    job: WindowJob, parts: list[pa.Table], ready: pa.Table | None, held: pa.Table | None
) -> _Counted:
    """Give numbers to new rows, which are the last of `parts`, and put all in order."""
    names = ["shard", *key_names(job.counted_by)]
    everyone = concat([t.select(names) for t in (*parts, held) if t is not None])
    codes, _ = codes_of(job.counted_by, everyone)
    counters = int(codes.max()) + 1
    some = np.zeros(counters, np.int64)
    some[codes] = np.arange(len(codes))
    before = np.zeros(counters, np.int64)
    if held is not None:
        before[codes[len(codes) - len(held) :]] = numbers(held, "count")
    after = before.copy()
    if ready is not None and len(ready):
        stored = sum(map(len, parts[:-1]))
        mine = slice(stored, stored + len(ready))
        numbered, codes[mine], after = _give_numbers(job, ready, codes[mine], before)
        parts = [*parts[:-1], numbered]
    rows = concat(parts)
    order = np.lexsort((numbers(rows, "number"), codes[: len(rows)]))
    owners = everyone.take(pa.array(some))
    return _Counted(rows.take(pa.array(order)), codes[: len(rows)][order], owners, before, after)


def _leaving(job: WindowJob, counted: _Counted, ended: int | None) -> _Leaving:
    """The windows of each counter that leave now."""
    span = job.logical
    assert span is not None
    none_yet = span.panes - span.step  # the first window begins with the first row
    closed = np.maximum(span.align_down(counted.before // span.pane), none_yet)
    closing = full = np.maximum(span.align_down(counted.after // span.pane), none_yet)
    if ended is not None:
        closing = np.full(len(closed), _ALL_BEGUN)
    return _Leaving(closed, closing, full, ended)


def _open_still(job: WindowJob, counted: _Counted, leaving: _Leaving) -> pa.Table:
    """What is to be stored: how far each counter is, and the rows that windows still need."""
    span = job.logical
    assert span is not None
    rows, codes = counted.rows, counted.codes
    pane = numbers(rows, "number") // span.pane
    needed = span.last_end(pane) > leaving.closing[codes]
    if job.growing and job.lists:
        needed[:] = True  # all values so far are needed at every slide
    owners = counted.owners.append_column("count", pa.array(counted.after))
    return _packed(job, owners, rows.filter(pa.array(needed)), codes[needed])


def touched(family: Family, ready: pa.Table | None, held: pa.Table | None) -> pa.Table | None:
    """The keys of rows that are numbered now or wait for their slide to be full."""
    names = ["shard", *key_names(family.keys)]
    parts = [t.select(names) for t in (_unpacked(held), ready) if t is not None and len(t)]
    return concat(parts) if parts else None


def times_held(held: pa.Table | None) -> Int64:
    """The times of rows that are numbered and kept."""
    if held is None:
        return np.zeros(0, np.int64)
    return np.asarray(pc.list_flatten(flat(held.column("held.ts"))))


def _give_numbers(
    job: WindowJob, ready: pa.Table, codes: Int64, before: Int64
) -> tuple[pa.Table, Int64, Int64]:
    """Rows in order, each with its number: the rows (or bytes) that were counted before it."""
    place = [numbers(ready, name) for name in ("pos", "src", "ts")]
    order = np.lexsort([*place, codes])
    ready, codes = ready.take(pa.array(order)), codes[order]
    weight = np.ones(len(codes), np.int64)
    if job.kind == "bytes":
        weight = numbers(ready, "size")
        ready = ready.drop_columns(["size"])
    running = np.cumsum(weight) - weight
    first = begins(codes)
    start = running[first][np.cumsum(first) - 1]
    after = before.copy()
    np.add.at(after, codes, weight)
    numbered = ready.append_column("number", pa.array(before[codes] + running - start))
    return numbered, codes, after


def _unpacked(known: pa.Table | None) -> pa.Table | None:
    """Rows that are held as lists, one by one."""
    if known is None or not len(known):
        return None
    lists = [n for n in known.column_names if n.startswith("held.")]
    parent = pc.list_parent_indices(flat(known.column("held.number")))
    heads = known.select([n for n in known.column_names if n == "shard" or n.startswith("key.")])
    rows = heads.take(parent)
    for name in lists:
        rows = rows.append_column(name.removeprefix("held."), _items(flat(known.column(name))))
    return rows


def _items(lists: pa.Array) -> pa.Array:
    """The items of all lists; those of lists of different types have no one type of Arrow's."""
    if not is_mixed(lists.type):
        return pc.list_flatten(lists)
    return mixed(list(chain.from_iterable(python_values(lists))))


def _packed(job: WindowJob, owners: pa.Table, rows: pa.Table, codes: Int64) -> pa.Table:
    """One row per counter with the rows it holds as lists; `rows` are in order of counters."""
    known = {"shard", "pane", *key_names(job.counted_by)}
    sizes = np.bincount(codes, minlength=len(owners))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    for name in rows.column_names:
        if name not in known:
            held = pa.ListArray.from_arrays(offsets, flat(rows.column(name)))
            owners = owners.append_column(f"held.{name}", held)
    return owners


@dataclass(frozen=True)
class _Leaving:
    """Which windows of numbered rows leave: those that end in (closed, closing], per counter."""

    closed: Int64
    closing: Int64
    full: Int64  # windows that end by here are full
    ended: int | None  # the time of those that are not

    def time(self, end: Int64, last: Int64, counter: Int64) -> Int64:
        """The time of results: that of their last record, or where the input ended."""
        if self.ended is None:
            return end - 1
        return np.where(last > self.full[counter], np.maximum(end - 1, self.ended), end - 1)


def _close_rows(
    family: Family, rows: pa.Table, counters: Int64, leaving: _Leaving, src: int
) -> Outcome:
    """The results of windows over numbered rows, which are in the order of their counters."""
    job = family.jobs[0]
    span = job.logical
    assert span is not None
    codes, uniques = codes_of(family.keys, rows)
    order = np.lexsort((np.arange(len(rows)), codes))
    counter_of = np.zeros(int(codes.max()) + 1 if len(codes) else 0, np.int64)
    counter_of[codes] = counters
    pane = numbers(rows, "number") // span.pane
    whole, ts = _Places.of(counters, pane), numbers(rows, "ts")
    rows, codes, pane = rows.take(pa.array(order)), codes[order], pane[order]
    bounds = leaving.closed[counter_of], leaving.closing[counter_of]
    key, last, low, high = find_runs(span, codes, pane, *bounds).slices(pane)
    answers = Answers()
    if any(not m.held for m in job.measures):
        states, state_pane, state_codes = lift_rows(family, rows, codes, pane)
        runs = find_runs(span, state_codes, state_pane, *bounds)
        _, _, state_low, state_high = runs.slices(state_pane)
        slide(job, states, runs, state_pane, state_low, state_high, answers)
    if not job.measures or any(m.held for m in job.measures):
        held_outputs(job, rows, low, high, answers)
    counter = counter_of[key]
    start = ts[whole.first(counter, last - span.panes)]
    end = ts[whole.first(counter, last) - 1] + 1
    found = LeavingWindows(key, uniques, start, end, leaving.time(end, last, counter), last)
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, 0, dead, len(found.key))


@dataclass(frozen=True)
class _Places:
    """Where panes of counters (or keys) lie among rows in that order."""

    rows: Int64
    low: int
    stride: int

    @staticmethod
    def of(counters: Int64, pane: Int64) -> _Places:
        """The places of rows."""
        low, high = (int(pane.min()), int(pane.max())) if len(pane) else (0, 0)
        stride = high - low + 2
        return _Places(counters * stride + pane - low, low, stride)

    def first(self, counter: Int64, pane: Int64) -> Int64:
        """The first row of each counter that is not before a pane."""
        wanted = counter * self.stride + np.clip(pane - self.low, 0, self.stride - 1)
        found: Int64 = np.searchsorted(self.rows, wanted)
        return found


def _grown(
    family: Family,
    rows: pa.Table,
    counters: Int64,
    leaving: _Leaving,
    totals: pa.Table | None,
    src: int,
) -> tuple[Outcome, pa.Table | None]:
    """Landmarks: everything so far at every slide that is full, for keys with records in it."""
    job = family.jobs[0]
    span = job.logical
    assert span is not None
    slides = numbers(rows, "number") // span.slide
    whole, ts = _Places.of(counters, slides), numbers(rows, "ts")
    fresh = (slides >= leaving.closed[counters]) & (slides < leaving.closing[counters])
    if not fresh.any():
        chunk, dead = results(job, src, nothing_found(job), completed(job, Answers()))
        return Outcome(chunk, 0, dead, 0), None
    answers = Answers()
    grown: pa.Table | None = None
    codes, uniques = codes_of(family.keys, rows)
    counter_of = np.zeros(int(codes.max()) + 1, np.int64)
    counter_of[codes] = counters
    _, key, last = group_by(codes[fresh], slides[fresh])
    if job.lifts:
        added = _states(family, rows.filter(pa.array(fresh)), slides[fresh])
        known = totals is not None and len(totals)
        before = of_keys(family.keys, totals, [added]) if known else None
        _, answers, grown = grow(family, added, before, _BEGIN)
    if job.lists:
        order = np.lexsort((np.arange(len(rows)), codes))
        listed, place = rows.take(pa.array(order)), _Places.of(codes[order], slides[order])
        low, high = place.first(key, np.zeros_like(key)), place.first(key, last + 1)
        held_outputs(job, listed, low, high, answers)
    counter = counter_of[key]
    end = ts[whole.first(counter, last + 1) - 1] + 1
    time = leaving.time(end, last + 1, counter)
    found = LeavingWindows(key, uniques, None, end, time, last + 1)
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, 0, dead, len(key)), grown


def _states(family: Family, rows: pa.Table, slides: Int64) -> pa.Table:
    """Rows of slides that are full as one row per key and slide."""
    codes, uniques = codes_of(family.keys, rows)
    order = np.lexsort((np.arange(len(rows)), codes))
    rows, codes, slides = rows.take(pa.array(order)), codes[order], slides[order]
    return states_of(family, rows, codes, uniques, slides, {})
