"""The other kinds of windows: sessions, landmarks, and windows over rows or bytes.

They use the same states, grids and slices as plain windows; what differs is which rows form a
window. All functions are pure: stored rows come in, results and rows to be stored go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.changes import lift_rows
from millstream.ops.chunks import Int64, concat, flat
from millstream.ops.closing import (
    Answers,
    Found,
    Outcome,
    add_answers,
    completed,
    held_outputs,
    in_order,
    results,
    slide,
)
from millstream.ops.codec import encode
from millstream.ops.grid import Grid, find_runs
from millstream.ops.jobs import Family, WindowJob
from millstream.ops.keys import group_by
from millstream.ops.preparing import codes_of, state_of
from millstream.ops.sessions import find_sessions


def close_sessions(
    job: WindowJob, panes: pa.Table | None, values: pa.Table | None, watermark: int, src: int
) -> tuple[Outcome, pa.Table | None, pa.Table | None]:
    """Sessions that no record can extend any more; and the rows of those that are still open.

    `panes` are joined sessions; `values` kept rows in any order.
    """
    gap = job.span.size
    answers = Answers()
    found: Found | None = None
    if panes is not None and len(panes):
        codes, uniques = codes_of(job.keys, panes)
        until = np.asarray(flat(panes.column("until")))
        over = until + gap <= watermark
        gone = panes.filter(pa.array(over))
        found = _sessions_found(codes[over], uniques, gone.column("pane"), until[over], gap)
        for measure in job.measures:
            state = state_of(gone, measure)
            if measure.kernel is not None:
                answers.columns[measure.name] = measure.kernel.result(state)
            elif measure.objects is not None:
                add_answers(job, measure, measure.objects.decoded(state["state"]), answers)
        panes = panes.filter(pa.array(~over))
    if values is not None and len(values):
        codes, uniques, values = in_order(job.keys, values)
        ts = np.asarray(flat(values.column("ts")))
        sessions = find_sessions(codes, ts, ts, gap)
        over = sessions.until + gap <= watermark
        low = np.searchsorted(sessions.groups, np.flatnonzero(over), "left")
        high = np.searchsorted(sessions.groups, np.flatnonzero(over), "right")
        start = pa.array(sessions.start[over])
        found = _sessions_found(sessions.key[over], uniques, start, sessions.until[over], gap)
        held_outputs(job, values, low, high, answers)
        values = values.filter(pa.array(~over[sessions.groups]))
    if found is None:
        found = nothing_found(job)
    last = int(found.end.max()) if found.end is not None and len(found.end) else watermark
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, last, dead, len(found.key)), panes, values


def _sessions_found(
    key: Int64, uniques: list[pa.Array], start: Any, until: Int64, gap: int
) -> Found:
    begin, end = np.asarray(flat(start)), until + gap
    return Found(key, uniques, begin, end, end - 1, begin)


def nothing_found(job: WindowJob) -> Found:
    """No window leaves."""
    nothing = np.zeros(0, np.int64)
    return Found(nothing, [pa.nulls(0) for _ in job.keys], nothing, nothing, nothing, nothing)


def close_landmarks(
    family: Family,
    panes: pa.Table | None,
    values: pa.Table | None,
    totals: pa.Table | None,
    closed: int,
    closing: int,
    src: int,
) -> tuple[Outcome, pa.Table | None]:
    """Everything so far at every slide in which a key got records; and the new totals of keys.

    `panes` are merged rows not yet in `totals`; `values` all rows ever kept. Results are those of
    slides that end in (closed, closing].
    """
    job = family.jobs[0]
    answers = Answers()
    found: Found | None = None
    grown: pa.Table | None = None
    last = closed
    if panes is not None:
        leaving = np.asarray(flat(panes.column("pane"))) < closing
        panes = panes.filter(pa.array(leaving))
    if panes is not None and len(panes):
        found, answers, grown = _grow(family, panes, totals, closed)
    if values is not None and len(values):
        codes, uniques, values = in_order(job.keys, values)
        pane = np.asarray(flat(values.column("pane")))
        groups, window_key, window_pane = group_by(codes, pane)
        high = np.searchsorted(groups, np.arange(len(window_key)), "right")
        due = (window_pane >= closed) & (window_pane < closing)
        window_key, window_pane, high = window_key[due], window_pane[due], high[due]
        low = np.searchsorted(codes, window_key, "left")
        end = (window_pane + 1) * job.span.pane
        found = Found(window_key, uniques, None, end, end - 1)
        held_outputs(job, values, low, high, answers)
    if found is None:
        found = nothing_found(job)
    if found.end is not None and len(found.end):
        last = int(found.end.max()) // job.span.pane
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, last, dead, len(found.key)), grown


def _grow(
    family: Family, panes: pa.Table, totals: pa.Table | None, closed: int
) -> tuple[Found, Answers, pa.Table]:
    """Running totals of every key over its panes, beginning with what is stored."""
    job = family.jobs[0]
    rows = panes
    if totals is not None and len(totals):
        before = totals.select([n for n in panes.column_names if n in totals.column_names])
        rows = concat(
            [
                before.set_column(
                    before.schema.get_field_index("pane"),
                    "pane",
                    pa.array(np.full(len(before), np.iinfo(np.int64).min)),
                ),
                panes,
            ]
        )
    codes, uniques = codes_of(family.keys, rows)
    pane = np.asarray(flat(rows.column("pane")))
    order = np.lexsort((pane, codes))
    codes, pane, rows = codes[order], pane[order], rows.take(pa.array(order))
    first = np.searchsorted(codes, np.arange(len(uniques[0]) if uniques else 1))
    rank = np.arange(len(codes)) - first[codes]
    fresh = pane != np.iinfo(np.int64).min
    depth, keys = int(rank.max()) + 1, len(first)
    grid = Grid(
        0,
        len(codes),
        rank * keys + codes,
        keys,
        depth,
        codes[fresh],
        pane[fresh] + 1,
        np.full(int(fresh.sum()), depth * keys),
        (rank * keys + codes)[fresh],
    )
    at = np.flatnonzero(fresh)
    answers = Answers()
    states: dict[str, pa.Array] = {}
    final = np.append(np.flatnonzero(np.diff(codes[fresh])), len(at) - 1)  # last row of each key
    for measure in job.measures:
        state = state_of(rows, measure)
        if measure.kernel is not None:
            grown = measure.kernel.slide(state, grid)
            answers.columns[measure.name] = measure.kernel.result(grown)
            kept = {f: grown[f].take(pa.array(final)) for f in grown}
        elif measure.objects is not None:
            objects = measure.objects.slide(state["state"], first[codes[at]], at + 1)
            kept = {"state": pa.array([encode(objects[i]) for i in final], pa.binary())}
            add_answers(job, measure, objects, answers)
        else:
            continue
        states.update({f"state.{measure.state}.{field}": kept[field] for field in kept})
    keep = pa.array(at[final])
    heads = rows.select([n for n in rows.column_names if not n.startswith("state.")]).take(keep)
    total = heads
    for name, column in states.items():
        total = total.append_column(name, column)
    due = pane[fresh] >= closed
    if not due.all():
        answers = answers.where(due)
    end = (pane[fresh][due] + 1) * job.span.pane
    return Found(codes[fresh][due], uniques, None, end, end - 1), answers, total


def close_numbered(
    family: Family, ready: pa.Table | None, known: pa.Table | None, ended: int | None, src: int
) -> tuple[Outcome, pa.Table | None]:
    """Windows over rows or bytes that are full, or all that have begun if the input has ended.

    `ready` are rows whose order is settled, `known` one row per key: how far it has been counted,
    and as lists the rows its open windows hold. Gives the results and the new rows per key.
    `ended` is the time at which the input ended: that of windows which are not full, so that it
    does not matter how much of the input came in the last batch.
    """
    job = family.jobs[0]
    span = job.logical
    assert span is not None
    parts = [t for t in (_unpacked(known), ready) if t is not None and len(t)]
    if not parts:
        chunk, dead = results(job, src, nothing_found(job), completed(job, Answers()))
        return Outcome(chunk, 0, dead, 0), known
    names = ["shard", *(f"key.{i}" for i in range(len(family.keys)))]
    heads = [t.select(names) for t in (*parts, known) if t is not None]
    everyone = concat(heads)
    codes, uniques = codes_of(family.keys, everyone)
    keys = int(codes.max()) + 1
    some = np.zeros(keys, np.int64)
    some[codes] = np.arange(len(codes))
    owners = everyone.take(pa.array(some))
    before = np.zeros(keys, np.int64)
    if known is not None:
        before[codes[len(codes) - len(known) :]] = np.asarray(flat(known.column("count")))
    fresh = 0 if ready is None else len(ready)
    stored = sum(map(len, parts)) - fresh
    after = before.copy()
    if ready is not None and fresh:
        mine = slice(stored, stored + fresh)
        parts[-1], codes[mine], after = _give_numbers(job, ready, codes[mine], before)
    rows = concat(parts)
    order = np.lexsort((np.asarray(flat(rows.column("number"))), codes[: len(rows)]))
    rows, row_codes = rows.take(pa.array(order)), codes[: len(rows)][order]
    none_yet = span.panes - span.step  # the first window begins with the first row
    closed = np.maximum(span.align_down(before // span.pane), none_yet)
    closing = np.maximum(span.align_down(after // span.pane), none_yet)
    full = closing
    if ended is not None:
        closing = np.full(keys, _ALL_BEGUN)
    slices = _Slices(uniques, closed, closing, full, ended)
    outcome = _close_rows(family, rows, row_codes, slices, src)
    if ended is not None:  # every window has left: what may come later is counted anew
        return outcome, None
    owners = owners.append_column("count", pa.array(after))
    number = np.asarray(flat(rows.column("number")))
    open_still = span.last_end(number // span.pane) > closing[row_codes]
    return outcome, _packed(owners, rows.filter(pa.array(open_still)), row_codes[open_still])


_ALL_BEGUN = 2**61  # a window end no number reaches


def _give_numbers(
    job: WindowJob, ready: pa.Table, codes: Int64, before: Int64
) -> tuple[pa.Table, Int64, Int64]:
    """Rows in order, each with its number in its key: the rows (or bytes) that came before it."""
    place = [np.asarray(flat(ready.column(name))) for name in ("pos", "src", "ts")]
    order = np.lexsort([*place, codes])
    ready, codes = ready.take(pa.array(order)), codes[order]
    weight = np.ones(len(codes), np.int64)
    if job.kind == "bytes":
        weight = np.asarray(flat(ready.column("size")))
        ready = ready.drop_columns(["size"])
    running = np.cumsum(weight) - weight
    first = np.ones(len(codes), np.bool_)
    first[1:] = np.diff(codes) != 0
    start = running[first][np.cumsum(first) - 1]
    after = before.copy()
    np.add.at(after, codes, weight)
    numbered = ready.append_column("number", pa.array(before[codes] + running - start))
    return numbered, codes, after


def _unpacked(known: pa.Table | None) -> pa.Table | None:
    """Rows that keys hold as lists, one by one."""
    if known is None or not len(known):
        return None
    lists = [n for n in known.column_names if n.startswith("held.")]
    parent = pc.list_parent_indices(flat(known.column("held.number")))
    heads = known.select([n for n in known.column_names if n == "shard" or n.startswith("key.")])
    rows = heads.take(parent)
    for name in lists:
        rows = rows.append_column(
            name.removeprefix("held."), pc.list_flatten(flat(known.column(name)))
        )
    return rows


def _packed(owners: pa.Table, rows: pa.Table, codes: Int64) -> pa.Table:
    """One row per key with the rows it holds as lists; `rows` are in order of keys."""
    sizes = np.bincount(codes, minlength=len(owners))
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    for name in rows.column_names:
        if name not in ("shard", "pane") and not name.startswith("key."):
            held = pa.ListArray.from_arrays(offsets, flat(rows.column(name)))
            owners = owners.append_column(f"held.{name}", held)
    return owners


@dataclass(frozen=True)
class _Slices:
    """Which windows of numbered rows leave: those that end in (closed, closing], per key."""

    uniques: list[pa.Array]
    closed: Int64
    closing: Int64
    full: Int64  # windows that end by here are full
    ended: int | None  # the time of those that are not


def _close_rows(
    family: Family, rows: pa.Table, codes: Int64, leaving: _Slices, src: int
) -> Outcome:
    """The results of windows over numbered rows."""
    job = family.jobs[0]
    span = job.logical
    assert span is not None
    pane = np.asarray(flat(rows.column("number"))) // span.pane
    bounds = leaving.closed, leaving.closing
    key, last, low, high = find_runs(span, codes, pane, *bounds).slices(pane)
    answers = Answers()
    if any(not m.held for m in job.measures):
        states, state_pane, state_codes = lift_rows(family, rows, codes, pane)
        runs = find_runs(span, state_codes, state_pane, *bounds)
        _, _, state_low, state_high = runs.slices(state_pane)
        slide(job, states, runs, state_pane, state_low, state_high, answers)
    if not job.measures or any(m.held for m in job.measures):
        held_outputs(job, rows, low, high, answers)
    ts = np.asarray(flat(rows.column("ts")))
    start, end = ts[low], ts[high - 1] + 1
    time = end - 1
    if leaving.ended is not None:
        time = np.where(last > leaving.full[key], np.maximum(time, leaving.ended), time)
    found = Found(key, leaving.uniques, start, end, time, last)
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, 0, dead, len(key))
