"""The other kinds of windows over time: sessions and landmarks; `numbered.py` has rows and bytes.

They use the same states, grids and slices as plain windows; what differs is which rows form a
window. All functions are pure: stored rows come in, results and rows to be stored go out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.grid import Grid
from millstream.ops.chunks import Int64, concat, flat, numbers
from millstream.ops.codec import encode
from millstream.ops.keys.hashing import group_by
from millstream.ops.times.sessions import find_sessions
from millstream.ops.windows.answering import Answers, add_answers, add_results, completed
from millstream.ops.windows.closing import Outcome, held_outputs, in_order, order_of
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import codes_of, naming_key, state_of
from millstream.ops.windows.results import LeavingWindows, results


def close_sessions(
    job: WindowJob, panes: pa.Table | None, values: pa.Table | None, watermark: int, src: int
) -> tuple[Outcome, pa.Table | None, pa.Table | None]:
    """Sessions that no record can extend any more; and the rows of those that are still open.

    `panes` are joined sessions; `values` kept rows in any order.
    """
    gap = job.span.size
    answers = Answers()
    found: LeavingWindows | None = None
    if panes is not None and len(panes):
        codes, uniques = codes_of(job.keys, panes)
        until = numbers(panes, "until")
        over = until + gap <= watermark
        gone = panes.filter(pa.array(over))
        found = _sessions_found(codes[over], uniques, gone.column("pane"), until[over], gap)
        for measure in job.measures:
            state = state_of(gone, measure)
            if measure.kernel is not None:
                add_results(measure, [state], answers)
            elif measure.objects is not None:
                add_answers(job, measure, measure.objects.decoded(state["state"]), answers)
        panes = panes.filter(pa.array(~over))
    if values is not None and len(values):
        codes, uniques, values = in_order(job.keys, values)
        ts = numbers(values, "ts")
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
) -> LeavingWindows:
    begin, end = np.asarray(flat(start)), until + gap
    return LeavingWindows(key, uniques, begin, end, end - 1, begin)


def nothing_found(job: WindowJob) -> LeavingWindows:
    """No window leaves."""
    nothing = np.zeros(0, np.int64)
    return LeavingWindows(
        nothing, [pa.nulls(0) for _ in job.keys], nothing, nothing, nothing, nothing
    )


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
    found: LeavingWindows | None = None
    grown: pa.Table | None = None
    last = closed
    if panes is not None:
        leaving = numbers(panes, "pane") < closing
        panes = panes.filter(pa.array(leaving))
    if panes is not None and len(panes):
        found, answers, grown = grow(family, panes, totals, closed)
    if values is not None and len(values):
        codes, uniques, order = order_of(job.keys, values)
        codes, pane = codes[order], numbers(values, "pane")[order]
        groups, window_key, window_pane = group_by(codes, pane)
        high = np.searchsorted(groups, np.arange(len(window_key)), "right")
        due = (window_pane >= closed) & (window_pane < closing)
        window_key, window_pane, high = window_key[due], window_pane[due], high[due]
        low = np.searchsorted(codes, window_key, "left")
        end = (window_pane + 1) * job.span.pane
        found = LeavingWindows(window_key, uniques, None, end, end - 1)
        held_outputs(job, values, low, high, answers, order)
    if found is None:
        found = nothing_found(job)
    if found.end is not None and len(found.end):
        last = int(found.end.max()) // job.span.pane
    chunk, dead = results(job, src, found, completed(job, answers))
    return Outcome(chunk, last, dead, len(found.key)), grown


def grow(
    family: Family, panes: pa.Table, totals: pa.Table | None, closed: int
) -> tuple[LeavingWindows, Answers, pa.Table]:
    """Running totals of every key over its panes, beginning with what is stored."""
    job = family.jobs[0]
    rows = panes
    if totals is not None and len(totals):
        first = pa.array(np.full(len(totals), np.iinfo(np.int64).min))
        before = totals.append_column("pane", first)
        rows = concat(
            [before.select([n for n in panes.column_names if n in before.column_names]), panes]
        )
    codes, uniques = codes_of(family.keys, rows)
    pane = numbers(rows, "pane")
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
            add_results(measure, [grown], answers)
            kept = {f: grown[f].take(pa.array(final)) for f in grown}
        elif measure.objects is not None:
            with naming_key([job], rows):
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
    return LeavingWindows(codes[fresh][due], uniques, None, end, end - 1), answers, total
