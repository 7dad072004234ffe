"""Results over the whole input, which leave when it ends, and again when there is more of it.

Rows whose answers were given stay, in a pane of their own. If a later run brings more, the groups
it touches are given anew: of everything, as changes of what was given before; or, if the run is
incremental, of what is new alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from millstream.operators.windows.bags import PaneBag, in_pane
from millstream.operators.windows.work import Work
from millstream.ops.chunks import Chunk, concat
from millstream.ops.emitting.modes import joined
from millstream.ops.windows.changes import lifted
from millstream.ops.windows.changes import settle as without_taken_back
from millstream.ops.windows.closing import Outcome, close
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.preparing import merge_panes, of_keys

Rows = dict[str, pa.Table | None]  # by table: panes, values


def whole(work: Work, job: WindowJob, bags: dict[str, PaneBag]) -> Chunk:
    """What leaves of a job over the whole input: nothing before its end.

    After it other sources may go on for long: then nothing of what was given is looked at again.
    """
    settled = all(bag.is_settled() for bag in bags.values())
    if settled or work.closing(job) <= work.closed(job):
        for bag in bags.values():
            bag.add()
        return _answers(work, job, {}).chunk
    parts = {table: bag.parted() for table, bag in bags.items()}
    old: Rows = {table: before for table, (before, _) in parts.items()}
    new: Rows = {table: since for table, (_, since) in parts.items()}
    for table, bag in bags.items():
        if work.order.lasting:
            bag.settle(new[table])
        else:
            bag.store(work.all_closing())
    if any(rows is not None for rows in new.values()):
        work.report.strategies[job.name] = "blocks" if job.lifts else "kept values"
    if not work.order.again:
        outcome = _answers(work, job, new)
        return work.account(job, outcome.last, outcome)
    old = {table: _of_groups(job, rows, new) for table, rows in old.items()}
    outcome = _answers(work, job, {table: _both(old[table], new[table]) for table in bags})
    after = work.account(job, outcome.last, outcome)
    return joined([_weighed(_answers(work, job, old).chunk, -1), _weighed(after, 1)])


def _answers(work: Work, job: WindowJob, rows: Rows) -> Outcome:
    family = work.family
    found = {table: None if one is None else in_pane(one, 0) for table, one in rows.items()}
    panes, values = found.get("panes"), found.get("values")
    values = None if values is None else without_taken_back(values)
    if family.changes:
        panes = lifted(family, values)
    elif panes is not None:
        panes = merge_panes(family, panes)
    src, bounds = work.numbers[job.name], (work.closed(job), work.closing(job))
    return close(job, panes if job.lifts else None, values if job.lists else None, *bounds, src)


def _of_groups(job: WindowJob, rows: pa.Table | None, new: Rows) -> pa.Table | None:
    """Of rows that were there before, those of groups that have new ones."""
    fresh = [one for one in new.values() if one is not None]
    if rows is None or not fresh:
        return None
    return of_keys(job.keys, rows, fresh)


def _both(old: pa.Table | None, new: pa.Table | None) -> pa.Table | None:
    there = [one for one in (old, new) if one is not None]
    return concat(there) if there else None


def _weighed(chunk: Chunk, weight: int) -> Chunk:
    return replace(chunk, weight=np.full(len(chunk), weight, np.int64))
