"""The table of a snapshot: from estimates, or from the answer itself; also as rows of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.early import ESTIMATE, MARKS, Looks, Snapshot
from millstream.operators.batch import Batch
from millstream.ops.chunks import Chunk
from millstream.ops.estimating.answers import Answers, estimated
from millstream.ops.estimating.estimates import Confidence, Estimates
from millstream.ops.estimating.places import places
from millstream.ops.keys.hashing import factorize, key_arrays
from millstream.plan.snapshots import Ranking
from millstream.run.early.target import Target
from millstream.run.tasks.splits import Item
from millstream.run.tasks.task import Task

_ALL_DIGITS = 400  # of any float, with a fraction


def estimated_table(
    target: Target, looks: Looks, answers: Answers, found: dict[str, Estimates], look: int
) -> pa.Table:
    """All groups so far, or the ranking of them."""
    columns = answers.key_columns()
    names = [measure.name for measure in target.windows.job.measures]
    for name in [*names, *(name for name, _ in looks.ratios)]:
        one = found.get(name)
        for end, values in zip(ESTIMATE, _columns(one, answers.groups), strict=True):
            columns[name + end] = values
    table = pa.table(columns)
    if target.top is None or not found:
        return table
    return _ranked(target.top, looks, answers, table, look)


def notes_of(target: Target) -> list[str]:
    """What has no estimate, and which steps are not looked at."""
    job, plan, here = target.windows.job, target.plan, target.plan.level_of(target.answers)
    behind = [
        f"{node.name}: comes after {target.answers.step}, which is looked at; its answer is in its "
        "sinks at the end"
        for node in plan.windowed()
        if plan.levels[node.name] > here
    ]
    if not job.measures:
        return [f"{job.name}: a reduce function has no estimate before all was read", *behind]
    return [
        f"{m.name}: {m.state} has no estimate before all was read"
        for m in job.measures
        if not estimated(m)
    ] + behind


def told_of_tails(heavy: tuple[str, ...], confidence: float) -> list[str]:
    """Whose bounds have no promise, because one value that was not read may outweigh all others."""
    if not heavy:
        return []
    return [
        f"{', '.join(heavy)}: heavy tail, no promise: the largest values look as if there were no "
        f"variance, and bounds may be right less often than {confidence:.0%}"
    ]


def exact_table(target: Target, looks: Looks, table: pa.Table | None) -> pa.Table:
    """The answer, with itself as its bounds."""
    job = target.answers.job
    measures = [m.name for m in job.measures]
    if table is None:
        table = pa.table({name: pa.nulls(0) for name in (*job.keys, *measures)})
    if target.top is not None:
        return _as_places(target.top, table)
    for name, (over, under) in looks.ratios:
        above, below = (table.column(one).cast(pa.float64(), safe=False) for one in (over, under))
        there = pc.if_else(pc.equal(below, 0.0), None, below)
        table = table.append_column(name, pc.divide(above, there))
    return _with_bounds(table, [*measures, *(name for name, _ in looks.ratios)])


def _ranked(top: Ranking, looks: Looks, answers: Answers, table: pa.Table, look: int) -> pa.Table:
    """The ranking as far as it is known, with the places that can no longer change."""
    groups = max(1, answers.groups)
    sure = Confidence(1 - (1 - looks.confidence) / (groups + 1), looks.interval, look)
    bounds = answers.estimates_of(top.by, sure)
    beyond = answers.unseen_total(top.by, sure)
    owner, _ = factorize(key_arrays(table, top.keys)) if top.keys else (None, None)
    owner = np.zeros(len(table), np.int64) if owner is None else owner
    ties = np.argsort(np.asarray(pc.rank(table.column(top.column), tiebreaker="first")))
    value, lower, upper = (one[ties] for one in (bounds.value, bounds.lower, bounds.upper))
    found = places(owner[ties], value, lower, upper, beyond, top.k)
    table = table.take(pa.array(ties[found.rows]))
    kept = [*top.keys, top.column, *(top.by + end for end in ESTIMATE)]
    return (
        table.select(kept)
        .add_column(len(top.keys), "place", pa.array(found.place))
        .append_column("settled", pa.array(found.settled))
    )


def _with_bounds(table: pa.Table, measures: list[str]) -> pa.Table:
    """Exact values are their own bounds."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        columns |= {
            name + end: table.column(name) for end in ESTIMATE if name in measures or not end
        }
    return pa.table(columns)


def _as_places(top: Ranking, table: pa.Table) -> pa.Table:
    """An exact ranking, one row for each place."""
    rows = [
        {
            **{name: row[name] for name in top.keys},
            "place": place,
            top.column: one["value"],
            **{top.by + end: one["total"] for end in ESTIMATE},
            "settled": True,
        }
        for row in table.to_pylist()
        for place, one in enumerate(row[top.name], 1)
    ]
    return pa.Table.from_pylist(rows)


def _columns(found: Estimates | None, rows: int) -> list[pa.Array]:
    """An estimate and its bounds as columns, null where there are none."""
    if found is None:
        return [pa.nulls(rows, pa.float64())] * 3
    values = (found.value, found.lower, found.upper)
    return [pa.array(one, pa.float64(), mask=~np.isfinite(one)) for one in values]


# -- as rows of a stream ------------------------------------------------------------------------


def given(
    target: Target, batch: Batch, snapshot: Snapshot, types: dict[str, pa.DataType]
) -> Iterator[Item]:
    """A snapshot as rows that go on to the sinks, committed with the batch that brought it.

    types: of values that are whole numbers or decimals in the end. Their estimates are too, so that
    a column has one type in all files.
    """
    plan, step = target.plan, target.answers.step
    table = snapshot.table if snapshot.exact else _rounded(snapshot.table, types)
    marks = (snapshot.progress, snapshot.exact)
    for name, mark in zip(MARKS, marks, strict=True):
        table = table.append_column(name, pa.array([mark] * len(table), pa.scalar(mark).type))
    rows = np.arange(len(table), dtype=np.int64)
    chunk = Chunk(table, np.full(len(table), batch.now, np.int64), rows, plan.numbers[step])
    # A task beyond all others of its level, so that its files have names of their own.
    task = Task(plan, batch, plan.level_of(target.answers), batch.parallelism)
    if not snapshot.exact:  # results of the window itself are counted there
        task.control.results += len(table)
        task.ledger(step)["results"] += len(table)
    return task.give(step, chunk)


def _rounded(table: pa.Table, types: dict[str, pa.DataType]) -> pa.Table:
    """Estimates of whole numbers and decimals rounded, bounds outwards; nulls may become anything.

    What does not fit the type is null, as the answer will be.
    """
    for at, name in enumerate(table.column_names):
        stem = next(
            (name[: len(name) - len(end)] for end in ESTIMATE[1:] if name.endswith(end)), name
        )
        column = table.column(at)
        if stem in types:
            column = _fitted(column, types[stem], name[len(stem) :])
        elif pa.types.is_floating(column.type) and column.null_count == len(column):
            column = pa.nulls(len(table))
        table = table.set_column(at, name, column)
    return table


def _fitted(column: Any, kind: pa.DataType, end: str) -> Any:
    """Floats as whole numbers or decimals of a type, an estimate or one of its bounds."""
    if pa.types.is_decimal(kind):
        way = dict(zip(ESTIMATE, (ROUND_HALF_EVEN, ROUND_FLOOR, ROUND_CEILING), strict=True))[end]
        unit, most = Decimal(1).scaleb(-kind.scale), 10.0 ** (kind.precision - kind.scale)
        fits = (one if one is not None and abs(one) < most else None for one in column.to_pylist())
        digits = Context(prec=_ALL_DIGITS, rounding=way)
        made = (
            None if one is None else Decimal(one).quantize(unit, context=digits) for one in fits
        )
        return pa.array(made, kind)
    rounded = dict(zip(ESTIMATE, (pc.round, pc.floor, pc.ceil), strict=True))[end](column)
    return pc.if_else(pc.less(pc.abs(rounded), 2.0**63), rounded, None).cast(kind)
