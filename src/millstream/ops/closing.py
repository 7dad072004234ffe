"""The keyed side of windows: panes to results, one row per window and key.

Built-in states slide through two-pass blocks, a user's states through two stacks, kept values are
handed over as slices of the rows in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import ProgramError, RunError
from millstream.ops.chunks import Chunk, Int64, Objects, concat, flat
from millstream.ops.codec import Keys, as_key, decode_key, python_rows, python_values, shared_values
from millstream.ops.grid import Runs, find_runs
from millstream.ops.holding import gather_lists
from millstream.ops.jobs import Measure, Window, WindowJob
from millstream.ops.kernels import Kernel, State
from millstream.ops.keys import hash_keys
from millstream.ops.mixed import column_of, exactly
from millstream.ops.pairs import unpacked
from millstream.ops.preparing import codes_of, naming_key, state_of
from millstream.ops.records import (
    DeadLetter,
    any_column,
    as_json,
    describe,
    several,
    to_table,
)

STAMP = pa.timestamp("us", "UTC")
_BOUNDS = ("window_start", "window_end")
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


@dataclass
class Answers:
    """What windows give, in the order of windows: names are the user's, so ours stand beside."""

    columns: dict[str, Any] = field(default_factory=dict)  # of aggregates, by name
    values: list[list[Any]] = field(default_factory=list)  # what a reduce function gets
    failed: dict[int, str] = field(default_factory=dict)  # windows without an answer, and why
    exact: set[str] = field(default_factory=set)  # columns of what users' functions gave

    def add(self, measure: str, values: list[Any]) -> None:
        """Answers of a user's function as a column; what cannot be stored has failed."""
        bad: dict[int, str] = {}
        column = column_of(values, bad)
        if column is None:
            column = column_of([None if at in bad else v for at, v in enumerate(values)], {})
        self.columns[measure] = column
        self.exact.add(measure)
        self.failed.update({at: f"{measure!r}: {why}" for at, why in bad.items()})

    def where(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Answers:
        """Those of some windows."""
        columns = {name: one.filter(pa.array(mask)) for name, one in self.columns.items()}
        rows = np.flatnonzero(mask).tolist()
        values = [self.values[at] for at in rows] if self.values else []
        failed = {new: self.failed[at] for new, at in enumerate(rows) if at in self.failed}
        return Answers(columns, values, failed, self.exact)


def joined(parts: list[tuple[Answers, int]], names: Iterable[str]) -> Answers:
    """The answers of some windows, so many, then of others; types may widen on the way."""
    whole, before = Answers(), 0
    for one, count in parts:
        whole.values.extend(one.values)
        whole.failed.update({before + at: why for at, why in one.failed.items()})
        whole.exact |= one.exact
        before += count
    for name in names:
        columns = [
            exactly({"answer": one.columns[name]}, ["answer"] if name in one.exact else [])
            for one, _ in parts
        ]
        whole.columns[name] = flat(concat(columns).column(0)) if columns else pa.nulls(0)
    return whole


@dataclass(frozen=True)
class LeavingWindows:
    """Windows that leave: the key of each as a code, the keys, and its bounds and time."""

    key: Int64
    uniques: list[pa.Array]
    start: Int64 | None  # None: the window has no beginning ...
    end: Int64 | None  # ... or, over the whole input, no bounds at all
    ts: Int64 | None
    window: Int64 | None = None  # which window of its key, where its time does not tell


def results(
    job: WindowJob, src: int, found: LeavingWindows, answers: Answers
) -> tuple[Chunk, list[DeadLetter]]:
    """One row per window and key, in the order of windows and keys; and those that failed."""
    count = len(found.key)
    place = _places(found.uniques)
    time = found.ts if found.ts is not None else np.zeros(count, np.int64)
    ends = found.end if found.end is not None else time
    order = np.lexsort((found.key, ends))
    key = found.key[order]
    at = pa.array(key)
    columns = {name: one.take(at) for name, one in zip(job.keys, found.uniques, strict=True)}
    if found.end is not None:
        no_start = pa.nulls(count, STAMP)
        columns["window_start"] = no_start if found.start is None else _stamps(found.start[order])
        columns["window_end"] = _stamps(found.end[order])
    dead: list[DeadLetter] = []
    window = None if found.window is None else found.window[order]
    packed = _packed(found.uniques)[key] if job.ordered else None
    heads = Chunk(pa.table(columns), time[order], place[key], src, window=window, order=packed)
    if job.reducer is not None:
        return _call_reducer(job, heads, answers.values, order, dead), dead
    for measure in job.measures:
        columns[measure.name] = answers.columns[measure.name].take(pa.array(order))
    chunk = heads.with_table(exactly(columns, answers.exact))
    if not answers.failed:
        return chunk, dead
    good = np.array([at not in answers.failed for at in order.tolist()], np.bool_)
    for index in np.flatnonzero(~good).tolist():
        dead.append(_failed(job, heads, index, answers.failed[int(order[index])]))
    return chunk.take(good), dead


def _failed(job: WindowJob, heads: Chunk, index: int, error: str) -> DeadLetter:
    """A dead letter for one result: its key and its window."""
    rows = heads.table.slice(index, 1).to_pylist()
    head = rows[0] if rows else {}
    keys = [head[name] for name in job.keys]
    key = as_key(keys[0] if len(keys) == 1 else tuple(keys))
    if job.packed:
        key = decode_key(keys[0])
    bounds = {"window_start": head.get("window_start"), "window_end": head.get("window_end")}
    raw = as_json({"key": key, **bounds})
    return DeadLetter(job.name, -1, int(heads.pos[index]), raw, error)


def _places(uniques: list[pa.Array]) -> Int64:
    """The place of each key among results of the same time: by hash."""
    hashes = hash_keys(uniques) if uniques else np.zeros(1, np.uint64)
    return (hashes >> np.uint64(1)).astype(np.int64)


def _packed(uniques: list[pa.Array]) -> Objects:
    """The packed keys of a job, for results that are sorted by them later."""
    keys = np.empty(len(uniques[0]), object)
    keys[:] = uniques[0].to_pylist()
    return keys


def _stamps(micros: Int64) -> pa.Array:
    return pa.array(micros).cast(STAMP)


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
        pane = np.asarray(flat(panes.column("pane")))
        runs = find_runs(job.span, codes, pane, closed, closing)
        key, end, low, high = runs.slices(pane)
        if merge is not None and int((high - low).sum()) >= runs.cells():
            return outputs_of(job, merge(panes), values, closed, closing)
        found = (key, end, uniques)
        slide(job, panes, runs, pane, low, high, answers)
    if values is not None and len(values):
        codes, uniques, values = in_order(job.keys, values)
        pane = np.asarray(flat(values.column("pane")))
        key, end, low, high = find_runs(job.span, codes, pane, closed, closing).slices(pane)
        if found is not None and len(found[1]) != len(end):
            raise RunError(f"{job.name}: panes and kept values disagree; the state is damaged")
        found = (key, end, uniques)
        held_outputs(job, values, low, high, answers)
    if found is None:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, [pa.nulls(0) for _ in job.keys], completed(job, answers)
    return *found, answers


def completed(job: WindowJob, answers: Answers) -> Answers:
    """With empty columns for measures that had no rows at all."""
    for measure in job.measures:
        answers.columns.setdefault(measure.name, pa.nulls(0))
    return answers


def in_order(keys: tuple[str, ...], values: pa.Table) -> tuple[Int64, list[pa.Array], pa.Table]:
    """Kept rows by key, then in (ts, source, offset) order; their keys as codes; the keys."""
    codes, uniques = codes_of(keys, values)
    place = [np.asarray(flat(values.column(name))) for name in ("pos", "src", "ts")]
    sort = np.lexsort([*place, codes])
    return codes[sort], uniques, values.take(pa.array(sort))


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
            columns[measure.name] = _gathered(measure.kernel, state, low, high)
        elif measure.kernel is not None:
            parts = [measure.kernel.result(measure.kernel.slide(state, g)) for g in grids]
            columns[measure.name] = pa.concat_arrays(parts) if parts else pa.nulls(0)
        elif measure.objects is not None and measure.objects.windows is not None:
            columns[measure.name] = measure.objects.windows(state["state"], low, high)
        elif measure.objects is not None:
            with naming_key([job], panes):
                states = measure.objects.slide(state["state"], low, high)
            add_answers(job, measure, states, answers)


def _gathered(kernel: Kernel, state: State, low: Int64, high: Int64) -> pa.Array:
    """Windows with fewer rows than panes: merge the rows of each, some windows at a time."""
    parts = []
    done = np.concatenate(([0], np.cumsum(high - low)))
    start = 0
    while start < len(low):
        stop = max(start + 1, int(np.searchsorted(done, done[start] + _ROWS, "right")) - 1)
        sizes = high[start:stop] - low[start:stop]
        nth = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = pa.array(np.repeat(low[start:stop], sizes) + nth)
        window = np.repeat(np.arange(stop - start), sizes)
        mine = {name: column.take(rows) for name, column in state.items()}
        parts.append(kernel.result(kernel.merge(mine, window, stop - start)))
        start = stop
    return pa.concat_arrays(parts) if parts else pa.nulls(0)


def add_answers(job: WindowJob, measure: Measure, states: list[Any], answers: Answers) -> None:
    """The answers of a user's states: a column, or what a MapReduce job reduces."""
    assert measure.objects is not None
    if measure.objects.typed is not None:
        typed_answers(measure, states, answers)
    elif job.reducer is not None:
        answers.values = [[measure.objects.finish(state)] for state in states]
    else:
        call_each(measure.name, measure.objects.finish, states, answers)


def typed_answers(measure: Measure, states: list[Any], answers: Answers) -> None:
    """Answers as a column of a known type; what does not fit in it has failed."""
    kernel = measure.objects
    assert kernel is not None and kernel.typed is not None
    answers.columns[measure.name] = kernel.typed(states)
    if kernel.fails is not None:
        for at, state in enumerate(states):
            why = kernel.fails(state)
            if why is not None:
                answers.failed.setdefault(at, why)


def call_each(name: str, fn: Callable[[Any], Any], given: list[Any], answers: Answers) -> None:
    """A user's function per window or group; where it raises, that one has failed."""
    values: list[Any] = []
    for at, one in enumerate(given):
        try:
            values.append(fn(one))
        except BaseException as error:  # a user's function may raise anything
            values.append(None)
            answers.failed[at] = f"{name!r}: {describe(error)}"
    answers.add(name, values)


def held_outputs(
    job: WindowJob, values: pa.Table, low: Int64, high: Int64, answers: Answers
) -> None:
    """The answers of measures, or the input of a reduce function, from kept values in order."""
    if job.reducer is not None:
        rows: list[Any] = (
            unpacked(flat(values.column("value.value"))) if job.packed else _kept_records(values)
        )
        spans = zip(low.tolist(), high.tolist(), strict=True)
        answers.values = [rows[start:stop] for start, stop in spans]
        return
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


def _kept_records(values: pa.Table) -> list[dict[str, Any]]:
    names = [n for n in values.column_names if n.startswith("value.")]
    kept = values.select(names).rename_columns([n.removeprefix("value.") for n in names])
    return python_rows(kept)


def _call_reducer(
    job: WindowJob,
    heads: Chunk,
    values: list[list[Any]],
    order: Int64,
    dead: list[DeadLetter],
) -> Chunk:
    """The user's reduce per (window, key); a failure costs that one result and is reported."""
    assert job.reducer is not None
    reducer, made = job.reducer, (_Pairs if job.packed else _Rows)(heads)
    failed: dict[int, str] = {}
    given = zip(order.tolist(), _user_keys(job, heads), _windows(heads), strict=True)
    for index, (place, key, window) in enumerate(given):
        before = len(made.origin)
        try:
            made.add(index, reducer(key, values[place], window))
        except ProgramError:
            raise
        except BaseException as error:  # a user's function may raise anything
            made.keep(range(before))
            failed[index] = describe(error)
    table, bad = made.table()
    while bad:  # what cannot be stored takes the result it is part of with it
        failed.update({made.origin[at]: why for at, why in bad.items()})
        made.keep([at for at, index in enumerate(made.origin) if index not in failed])
        table, bad = made.table()
    dead.extend(_failed(job, heads, index, why) for index, why in sorted(failed.items()))
    return heads.at(table, np.array(made.origin, np.int64))


def _user_keys(job: WindowJob, heads: Chunk) -> Iterable[Any]:
    """The key of every result."""
    columns = [heads.column(name) for name in job.keys]
    if job.packed:
        return map(Keys().__getitem__, columns[0].to_pylist())
    if not columns:
        return [()] * len(heads)
    keys = list(map(python_values, columns))
    return map(as_key, keys[0] if len(keys) == 1 else zip(*keys, strict=True))


def _windows(heads: Chunk) -> Iterator[Window]:
    """The window of every result, made once for those that follow each other."""
    start, end = (shared_values(heads.column(name)) for name in _BOUNDS)
    window = Window(None, None)
    for one, other in zip(start, end, strict=True):
        if one is not window.start or other is not window.end:
            window = Window(one, other)
        yield window


class _Pairs:
    """What the reduce of a MapReduce job gave: keys, values, and the result each is of."""

    def __init__(self, heads: Chunk) -> None:
        self.heads = heads.table
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.origin: list[int] = []

    def add(self, index: int, result: Any) -> None:
        """All pairs of one result."""
        for key, value in () if result is None else result:
            self.keys.append(as_key(key))
            self.values.append(value)
            self.origin.append(index)

    def keep(self, at: Sequence[int]) -> None:
        """These and no others."""
        self.keys = [self.keys[one] for one in at]
        self.values = [self.values[one] for one in at]
        self.origin = [self.origin[one] for one in at]

    def table(self) -> tuple[pa.Table, dict[int, str]]:
        """As columns, with the bounds of their windows; and those that cannot be stored."""
        if not self.origin:
            return to_table([], None, any_type=True)
        bad: dict[int, str] = {}
        columns = {
            "key": any_column("key", self.keys, bad),
            "value": any_column("value", self.values, bad),
        }
        if bad:
            return pa.table({}), bad
        rows = pa.array(self.origin)
        for name in _BOUNDS:
            if name in self.heads.column_names:
                bound = flat(self.heads.column(name)).take(rows)
                nothing = bound.null_count == len(bound)
                columns[name] = pa.nulls(len(bound)) if nothing else bound
        return exactly(columns), bad


class _Rows:
    """What a reduce function gave: rows with key and window, and the result each is of."""

    def __init__(self, heads: Chunk) -> None:
        # Without keys and bounds a table has no columns, and so forgets its number of rows.
        self.heads = python_rows(heads.table) or [{} for _ in range(len(heads))]
        self.rows: list[dict[str, Any]] = []
        self.origin: list[int] = []

    def add(self, index: int, result: Any) -> None:
        """All rows of one result."""
        if not isinstance(result, dict | list | tuple) and not hasattr(result, "__next__"):
            result = None if result is None else {"value": result}
        for row in several(result):
            self.rows.append(self.heads[index] | row)
            self.origin.append(index)

    def keep(self, at: Sequence[int]) -> None:
        """These and no others."""
        self.rows = [self.rows[one] for one in at]
        self.origin = [self.origin[one] for one in at]

    def table(self) -> tuple[pa.Table, dict[int, str]]:
        """As columns; and those that cannot be stored."""
        return to_table(self.rows, None, any_type=True)
