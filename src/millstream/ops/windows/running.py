"""Running values: add the panes that enter a window, take away those that leave it.

For aggregates with an inverse, a window costs what enters and leaves it, however long it is. The
value of every key is kept from batch to batch. Rounding is kept in bounds in two ways: values are
recomputed from panes at intervals (`operators/windows/sliding.py`), and a value that has become
small beside what it once was is not trusted (`Advanced.sure`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.kernels import Columns, Count, Running
from millstream.ops.chunks import Chunk, Floats, Int64, concat, numbers, with_column
from millstream.ops.codec import decode, encode, fresh
from millstream.ops.comparing import alike, magnitude
from millstream.ops.keys.hashing import key_names
from millstream.ops.windows.answering import Answers, add_answers, add_results, joined
from millstream.ops.windows.jobs import Family, Measure, WindowJob
from millstream.ops.windows.preparing import codes_of, merge_panes, naming_key, state_of
from millstream.ops.windows.results import LeavingWindows

TRUST = 1e-4  # a value below this share of its peak since the last recomputation is not trusted
DISAGREE = 1e-6  # rounding is far below this share of the largest result
LEAST_PANES = 8  # shorter windows are recomputed as cheaply
# How many records a window has: a key is present while there are any.
PRESENCE = Measure("", "count()", None, kernel=Count())


@dataclass(frozen=True)
class Advanced:
    """Windows that left, their answers, and the running values after the last of them."""

    found: LeavingWindows
    answers: Answers
    running: pa.Table
    sure: bool


def can_run(job: WindowJob) -> bool:
    """Whether every measure of a job has an inverse, and its windows are long enough to gain."""
    if job.kind != "time" or job.span.whole or not job.measures or job.changes:
        return False
    if job.reducer is not None and not job.packed:
        return False
    return job.span.panes >= LEAST_PANES and all(map(has_inverse, job.measures))


def has_inverse(measure: Measure) -> bool:
    """Whether what a pane added can be taken away again."""
    if measure.objects is not None:
        return measure.objects.inverse is not None
    return isinstance(measure.kernel, Running)


def advance(
    job: WindowJob,
    running: pa.Table | None,
    panes: pa.Table | None,
    late: pa.Table | None,
    closed: int,
    closing: int,
) -> Advanced:
    """Move every key from the window that ends at `closed` to the one that ends at `closing`.

    `running` has one row per key that is present; `panes` are merged rows of all panes that enter
    or leave on the way; `late` are rows for panes that the values hold already. There
    must be rows of any kind.
    """
    span = job.span
    given = (running, panes, late)
    none = next(table for table in given if table is not None).slice(0, 0)
    running, panes, late = (none if table is None else table for table in given)
    rows = concat([t.select(["shard", *key_names(job.keys)]) for t in (running, panes, late)])
    codes, uniques = codes_of(job.keys, rows)
    keys = int(codes.max()) + 1 if len(codes) else 0
    some = np.zeros(keys, np.int64)
    some[codes] = np.arange(len(codes))
    owners = rows.take(pa.array(some))
    at_running, at_panes, at_late = np.split(codes, np.cumsum([len(running), len(panes)]))
    pane = numbers(panes, "pane")
    totals = [_Total.start(m, running, at_running, keys) for m in _measures(job)]
    states = [state_of(panes, m) for m in _measures(job)]
    for total in totals:
        every = np.ones(len(late), np.bool_)
        with naming_key([job], late):
            total.move(state_of(late, total.measure), at_late, every, ~every)
    found_key: list[Int64] = []
    found_end: list[Int64] = []
    answers: list[tuple[Answers, int]] = []
    sure = all(total.sure() for total in totals)
    for end in range(closed + span.step, closing + 1, span.step):
        enters = (pane >= end - span.step) & (pane < end)
        leaves = (pane >= end - span.step - span.panes) & (pane < end - span.panes)
        totals[-1].move(states[-1], at_panes, enters, leaves)
        there = totals[-1].columns["n"] > 0
        leaves &= there[at_panes]
        for total, state in zip(totals[:-1], states[:-1], strict=True):
            with naming_key([job], panes):
                total.move(state, at_panes, enters, leaves)
            total.forget(~there)
        sure = sure and all(total.sure() for total in totals)
        present = np.flatnonzero(there)
        found_key.append(present)
        found_end.append(np.full(len(present), end, np.int64))
        answers.append((_answers(job, totals, present), len(present)))
    key = np.concatenate(found_key) if found_key else np.zeros(0, np.int64)
    end_us = (np.concatenate(found_end) if found_end else key) * span.pane
    names = [] if job.reducer is not None else [measure.name for measure in job.measures]
    found = LeavingWindows(key, uniques, end_us - span.size, end_us, end_us - 1)
    kept = _kept(owners, totals, closing)
    return Advanced(found, joined(answers, names), kept, sure)


def disagreement(
    job: WindowJob, running: Chunk, recomputed: Chunk, panes: pa.Table | None, hint: str
) -> str | None:
    """Where results from what is kept differ from those computed from panes, in words.

    Both are in the order of windows and keys; `panes` tell how large the numbers behind them are.
    Rounding may differ; an `uncombine` that is not the inverse of `combine` shows.
    """
    if len(running) != len(recomputed):
        return (
            f"{job.name}: what is kept gives {len(running)} results, "
            f"recomputing gives {len(recomputed)}"
        )
    mine, others = running.table.to_pylist(), recomputed.table.to_pylist()
    scale: dict[str, float] = {}
    for measure in job.measures:
        shown = magnitude([row.get(measure.name) for row in (*mine, *others)])
        scale[measure.name] = max(shown, 0.0 if panes is None else _largest(measure, panes))
    for one, other in zip(mine, others, strict=True):
        for measure in job.measures:
            name = measure.name
            if not alike(one.get(name), other.get(name), DISAGREE, scale[name]):
                what = measure.objects.name if measure.objects is not None else measure.state
                key = ", ".join(repr(one.get(key)) for key in job.keys) or "everything"
                return (
                    f"{job.name}: {what}, key {key}, window until {one.get('window_end')}: the "
                    f"running value of {name!r} is {one.get(name)!r}, recomputed from panes it is "
                    f"{other.get(name)!r}; {hint} "
                    "millstream.testing.check_aggregate can tell"
                )
    return None


def _largest(measure: Measure, panes: pa.Table) -> float:
    """The largest float behind some results, as what rounding is relative to."""
    state = state_of(panes, measure)
    if measure.objects is not None:
        return max((_floats(one) for one in measure.objects.decoded(state["state"])), default=0.0)
    found = 0.0
    for name, column in state.items():
        if pa.types.is_floating(column.type):
            values = np.abs(np.asarray(column))
            most = float(values[np.isfinite(values)].max(initial=0.0))
            found = max(found, most, most * most if name == "mean" else 0.0)
    return found


def _floats(state: Any) -> float:
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list):
        return max(map(_floats, state), default=0.0)
    return magnitude(state) if isinstance(state, float) else 0.0


def recompute(job: WindowJob, panes: pa.Table, closing: int) -> pa.Table:
    """The running values of the window that ends at `closing`, from all of its panes (merged)."""
    pane = numbers(panes, "pane")
    inside = panes.filter(pa.array((pane >= closing - job.span.panes) & (pane < closing)))
    as_one = with_column(inside, "pane", np.full(len(inside), closing, np.int64))
    merged = merge_panes(Family(job.name, (job,), extra=(PRESENCE,)), as_one)
    heads = ["shard", *key_names(job.keys), "pane"]  # as what `advance` gives
    return merged.select([*heads, *(name for name in merged.column_names if name not in heads)])


def _measures(job: WindowJob) -> list[Measure]:
    """The measures of a job, and last the number of records."""
    return [*job.measures, PRESENCE]


class _Total:
    """The running state of one measure for all keys."""

    def __init__(self, measure: Measure, columns: Columns, peak: Floats | None) -> None:
        self.measure, self.columns, self.peak = measure, columns, peak
        self.kernel: Any = measure.kernel  # one that can run, see can_run()
        self.objects: Any = measure.objects

    @classmethod
    def start(cls, measure: Measure, running: pa.Table, at: Int64, keys: int) -> _Total:
        state = state_of(running, measure)
        if measure.kernel is None:
            objects: Any = measure.objects
            values = np.empty(keys, object)
            for key in range(keys):
                values[key] = objects.zero()
            for key, value in zip(at.tolist(), objects.decoded(state["state"]), strict=True):
                values[key] = value
            return cls(measure, {"state": values}, None)
        columns: Columns = {}
        for name, values in state.items():
            column = np.zeros(keys, np.asarray(values).dtype)
            column[at] = np.asarray(values)
            columns[name] = column
        kernel: Any = measure.kernel
        magnitude = kernel.magnitude(columns)
        peak = None
        if magnitude is not None:
            peak = magnitude.copy()
            stored = f"peak.{measure.state}"
            if stored in running.column_names:
                peak[at] = np.maximum(peak[at], numbers(running, stored))
        return cls(measure, columns, peak)

    def move(self, state: dict[str, pa.Array], at: Int64, enters: Any, leaves: Any) -> None:
        """Add what enters, take away what leaves; each key at most once in each."""
        for mask, sign in ((enters, 1), (leaves, -1)):
            rows = np.flatnonzero(mask)
            if len(rows):
                self._apply(state, rows, at[rows], sign)

    def _apply(self, state: dict[str, pa.Array], rows: Int64, keys: Int64, sign: int) -> None:
        # A step may be several panes: those of one key are added one after the other.
        while len(rows):
            _, first = np.unique(keys, return_index=True)
            self._apply_once(state, rows[first], keys[first], sign)
            rest = np.ones(len(rows), np.bool_)
            rest[first] = False
            rows, keys = rows[rest], keys[rest]

    def _apply_once(self, state: dict[str, pa.Array], rows: Int64, keys: Int64, sign: int) -> None:
        if self.kernel is None:
            objects, packed = self.objects, state["state"]
            for row, key in zip(rows.tolist(), keys.tolist(), strict=True):
                total, pane = self.columns["state"][key], decode(packed[row].as_py())
                move = objects.plus if sign > 0 else objects.minus
                moved = move(total, pane, row)
                self.columns["state"][key] = moved
            return
        kernel = self.kernel
        change = {name: np.asarray(state[name])[rows] for name in self.columns}
        mine = {name: column[keys] for name, column in self.columns.items()}
        moved = kernel.plus(mine, change) if sign > 0 else kernel.minus(mine, change)
        for name, column in self.columns.items():
            if moved[name].dtype != column.dtype:
                self.columns[name] = column = column.astype(moved[name].dtype)
            column[keys] = moved[name]
        magnitude = kernel.magnitude({name: column[keys] for name, column in self.columns.items()})
        if magnitude is not None and self.peak is not None:
            self.peak[keys] = np.maximum(self.peak[keys], magnitude)

    def forget(self, keys: Any) -> None:
        """Begin keys that are gone anew, so that nothing of what they were is left."""
        if self.kernel is None:
            for key in np.flatnonzero(keys):
                self.columns["state"][key] = self.objects.zero()
            return
        for column in self.columns.values():
            column[keys] = 0
        if self.peak is not None:
            self.peak[keys] = 0

    def sure(self) -> bool:
        """Whether no value has lost too many digits by taking away much more than is left."""
        if self.peak is None:
            return True
        magnitude = self.kernel.magnitude(self.columns)
        present = self.columns["n"] > 0
        least = getattr(self.kernel, "trust", TRUST) * self.peak
        doubtful = present & ((magnitude < least) | ~np.isfinite(magnitude))
        return not bool(doubtful.any())


def _answers(job: WindowJob, totals: list[_Total], present: Int64) -> Answers:
    answers = Answers()
    for measure, total in zip(job.measures, totals, strict=False):
        if measure.kernel is not None:
            state = {name: pa.array(column[present]) for name, column in total.columns.items()}
            add_results(measure, [state], answers)
        else:
            states = list(total.columns["state"][present])
            if measure.objects is None or measure.objects.typed is None:
                states = [fresh(one) for one in states]  # a user's result() may change them
            add_answers(job, measure, states, answers)
    return answers


def _kept(owners: pa.Table, totals: list[_Total], closing: int) -> pa.Table:
    """The running values of all keys that are present, as rows to be stored."""
    present = np.flatnonzero(totals[-1].columns["n"] > 0)
    table = owners.take(pa.array(present))
    table = table.append_column("pane", pa.array(np.full(len(present), closing, np.int64)))
    done: set[str] = set()
    for total in totals:
        if total.measure.state in done:
            continue
        done.add(total.measure.state)
        for name, column in total.columns.items():
            if total.measure.kernel is None:
                values = pa.array([encode(one) for one in column[present]], pa.binary())
            else:
                values = pa.array(column[present])
            table = table.append_column(f"state.{total.measure.state}.{name}", values)
        if total.peak is not None:
            table = table.append_column(
                f"peak.{total.measure.state}", pa.array(total.peak[present])
            )
    return table
