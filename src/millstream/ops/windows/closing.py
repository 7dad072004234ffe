"""The keyed side of windows: panes to results, one row per window and key.

Built-in states slide through two-pass blocks, a user's states through two stacks, kept values are
handed over as slices of the rows in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.aggregates.grid import Runs, find_runs
from millstream.ops.aggregates.holding import gather_lists
from millstream.ops.aggregates.kernels import Kernel, State
from millstream.ops.chunks import Chunk, Int64, flat, numbers, own_columns
from millstream.ops.codec import python_rows
from millstream.ops.keys.joins import ranges
from millstream.ops.pairs import unpacked
from millstream.ops.records import DeadLetter
from millstream.ops.windows.answering import Answers, add_answers, add_results, call_each, completed
from millstream.ops.windows.blockwise import InTurn
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.preparing import codes_of, naming_key, state_of
from millstream.ops.windows.results import LeavingWindows, results

_ROWS = 4_000_000  # rows gathered at a time
Merge = Callable[[pa.Table], pa.Table]


class Outcome(NamedTuple):
    """Results of windows that leave, the last of their ends, and results that failed."""

    chunk: Chunk
    last: int
    dead: list[DeadLetter]
    asked: int  # results, whether they failed or not


def close(
    job: WindowJob,
    panes: pa.Table | None,
    values: pa.Table | None,
    closed: int,
    closing: int,
    src: int,
    merge: Merge | None = None,
) -> Outcome:
    """The results of all windows that end in (closed, closing], and the last such end.

    `panes` are by key and pane, each once; or, if `merge` is given to make them so, as often as
    they have values. `values` may be in any order.
    """
    window_key, window_end, uniques, answers = outputs_of(
        job, panes, values, closed, closing, merge
    )
    span = job.span
    last = int(window_end.max()) if len(window_end) else closed
    start = end = ts = None
    if not span.whole:
        start, end = span.moments(window_end - span.panes), span.moments(window_end)
        ts = end - 1
    chunk, dead = results(job, src, LeavingWindows(window_key, uniques, start, end, ts), answers)
    return Outcome(chunk, last, dead, len(window_key))


def outputs_of(
    job: WindowJob,
    panes: pa.Table | None,
    values: pa.Table | None,
    closed: int,
    closing: int,
    merge: Merge | None = None,
) -> tuple[Int64, Int64, list[pa.Array], Answers]:
    """Per closing window its key code and end; the distinct keys; and the answers."""
    answers = Answers()
    found: tuple[Int64, Int64, list[pa.Array]] | None = None
    if panes is not None and len(panes):
        codes, uniques = codes_of(job.keys, panes)
        pane = numbers(panes, "pane")
        runs = find_runs(job.span, codes, pane, closed, closing)
        key, end, low, high = runs.slices(pane)
        if merge is not None and int((high - low).sum()) >= runs.cells():
            return outputs_of(job, merge(panes), values, closed, closing)
        found = (key, end, uniques)
        slide(job, panes, runs, pane, low, high, answers)
    if values is not None and len(values):
        codes, uniques, order = order_of(job.keys, values)
        codes, pane = codes[order], numbers(values, "pane")[order]
        key, end, low, high = find_runs(job.span, codes, pane, closed, closing).slices(pane)
        if found is not None and len(found[1]) != len(end):
            raise RunError(f"{job.name}: panes and kept values disagree; the state is damaged")
        found = (key, end, uniques)
        held_outputs(job, values, low, high, answers, order)
    if found is None:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, [pa.nulls(0) for _ in job.keys], completed(job, answers)
    return *found, answers


def in_order(keys: tuple[str, ...], values: pa.Table) -> tuple[Int64, list[pa.Array], pa.Table]:
    """Kept rows by key, then in (ts, source, offset) order; their keys as codes; the keys."""
    codes, uniques, order = order_of(keys, values)
    return codes[order], uniques, values.take(pa.array(order))


def order_of(keys: tuple[str, ...], values: pa.Table) -> tuple[Int64, list[pa.Array], Int64]:
    """The keys of kept rows as codes; the keys; and which row comes when in `in_order`."""
    codes, uniques = codes_of(keys, values)
    place = [numbers(values, name) for name in ("pos", "src", "ts")]
    return codes, uniques, np.lexsort([*place, codes])


def slide(
    job: WindowJob,
    panes: pa.Table,
    runs: Runs,
    pane: Int64,
    low: Int64,
    high: Int64,
    answers: Answers,
) -> None:
    """The answers of all combining measures for every closing window of the runs."""
    columns = answers.columns
    sparse = int((high - low).sum()) < runs.cells()
    grids = list(runs.grids(pane)) if not sparse and any(m.kernel for m in job.measures) else []
    for measure in job.measures:
        state = state_of(panes, measure)
        if measure.kernel is not None and sparse:
            add_results(measure, _gathered(measure.kernel, state, low, high), answers)
        elif measure.kernel is not None:
            add_results(measure, [measure.kernel.slide(state, g) for g in grids], answers)
        elif measure.objects is not None and measure.objects.windows is not None:
            columns[measure.name] = measure.objects.windows(state["state"], low, high)
        elif measure.objects is not None:
            with naming_key([job], panes):
                states = measure.objects.slide(state["state"], low, high)
            add_answers(job, measure, states, answers)


def _gathered(kernel: Kernel, state: State, low: Int64, high: Int64) -> Iterator[State]:
    """Windows with fewer rows than panes: merge the rows of each, some windows at a time."""
    done = np.concatenate(([0], np.cumsum(high - low)))
    start = 0
    while start < len(low):
        stop = max(start + 1, int(np.searchsorted(done, done[start] + _ROWS, "right")) - 1)
        rows, window = ranges(low[start:stop], high[start:stop])
        mine = {name: column.take(pa.array(rows)) for name, column in state.items()}
        yield kernel.merge(mine, window, stop - start)
        start = stop


def held_outputs(
    job: WindowJob,
    values: pa.Table,
    low: Int64,
    high: Int64,
    answers: Answers,
    order: Int64 | None = None,
) -> None:
    """The answers of measures, or the input of a reduce function, from kept values in order.

    order: that of the values, if they are not in it yet. Whole records are large, and a reduce
    function sees few at a time, so there is no second copy of them for it.
    """
    if job.reducer is not None:
        make = _kept_values if job.packed else _kept_records
        answers.values = InTurn(values, low, high, make, order)
        return
    if order is not None:
        values = values.take(pa.array(order))
    for measure in job.measures:
        if not measure.held:
            continue
        if measure.column is None:  # the values are whole records
            rows = _kept_records(values)
            kept: Any = [rows[start:stop] for start, stop in zip(low, high, strict=True)]
        else:
            name = f"value.{measure.column}"
            known = name in values.column_names
            column = flat(values.column(name)) if known else pa.nulls(len(values))
            kept = gather_lists(column, low, high)
        if measure.fold is not None:
            lists = kept if isinstance(kept, list) else kept.to_pylist()
            call_each(measure.name, measure.fold, lists, answers)
        else:
            answers.columns[measure.name] = kept if measure.lists is None else measure.lists(kept)


def _kept_values(values: pa.Table) -> list[Any]:
    return unpacked(flat(values.column("value.value")))


def _kept_records(values: pa.Table) -> list[dict[str, Any]]:
    return python_rows(own_columns(values, "value."))
