"""What windows and groups give, before it is rows: columns, values to reduce, and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.ops.aggregates.kernels import State, Sum
from millstream.ops.chunks import Mask, concat, flat
from millstream.ops.mixed import column_of, exactly
from millstream.ops.records import describe
from millstream.ops.windows.jobs import Measure, WindowJob

_WIDER = "cast the column to DOUBLE or DECIMAL first"


@dataclass
class Answers:
    """What windows give, in the order of windows: names are the user's, so ours stand beside."""

    columns: dict[str, Any] = field(default_factory=dict)  # of aggregates, by name
    values: Sequence[list[Any]] = ()  # what a reduce function gets
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

    def where(self, mask: Mask) -> Answers:
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
        whole.values = [*whole.values, *one.values]
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


def completed(job: WindowJob, answers: Answers) -> Answers:
    """With empty columns for measures that had no rows at all."""
    for measure in job.measures:
        answers.columns.setdefault(measure.name, pa.nulls(0))
    return answers


def add_results(measure: Measure, states: Iterable[State], answers: Answers) -> None:
    """The answers of an aggregate from its states, some after the other."""
    kernel, before, parts = measure.kernel, 0, []
    assert kernel is not None
    for state in states:
        parts.append(kernel.result(state))
        if isinstance(kernel, Sum):
            why = f"{measure.name}={measure.state} does not fit in 64 bits; {_WIDER}"
            for row in kernel.overflown(state).tolist():
                answers.failed.setdefault(before + row, why)
        before += len(parts[-1])
    answers.columns[measure.name] = pa.concat_arrays(parts) if parts else pa.nulls(0)


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
