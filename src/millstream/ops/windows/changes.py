"""Windows over a stream of changes: what was taken back is left out, then all is as always.

Not every aggregate can take a value away, and sums of floats cannot without a trace. So such a
window keeps its values, each with the weight it came with and the emission that gave it. A change
takes back all rows that one emission gave of a result, which are known by their place; what is left
are the newest results, and states are made of these.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.ops.aggregates.kernels import Rows
from millstream.ops.chunks import Chunk, Int64, flat, numbers, own_columns
from millstream.ops.emitting.emitted import OLDER
from millstream.ops.keys.hashing import factorize, group_by
from millstream.ops.times.sessions import find_sessions
from millstream.ops.windows.closing import in_order
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import heads_of, lift

_MARKS = ("weight", "revision", "window")
_PLACE = ("ts", "src", "pos", "revision", "window")


def settle(rows: pa.Table) -> pa.Table:
    """Kept rows without those that were taken back, and without those that took them back."""
    if "sign" in rows.column_names:
        raise RunError(OLDER)
    if "weight" not in rows.column_names or not len(rows):
        return rows
    weight = numbers(rows, "weight")
    if weight.min() > 0:
        return rows
    codes, _ = factorize([flat(rows.column(name)) for name in _PLACE])
    gone = np.zeros(int(codes.max()) + 1, np.bool_)
    gone[codes[weight < 0]] = True
    return rows.filter(pa.array(~gone[codes]))


def without_pairs(rows: pa.Table) -> pa.Table:
    """Some of the kept rows without those of both weights: what they take back may lie elsewhere.

    The rows of one revision in one shard come in one batch, so they are all here or none is.
    """
    if "weight" not in rows.column_names or not len(rows):
        return rows
    weight = numbers(rows, "weight")
    if weight.min() > 0 or weight.max() < 0:
        return rows
    codes, _ = factorize([flat(rows.column(name)) for name in ("shard", *_PLACE)])
    given, gone = (np.zeros(int(codes.max()) + 1, np.bool_) for _ in range(2))
    given[codes[weight > 0]] = True
    gone[codes[weight < 0]] = True
    return rows.filter(pa.array(~(given & gone)[codes]))


def unsigned(rows: pa.Table | None) -> pa.Table | None:
    """Rows that cannot be taken back any more."""
    if rows is None:
        return None
    return rows.drop_columns([name for name in _MARKS if name in rows.column_names])


def lifted(family: Family, values: pa.Table | None) -> pa.Table | None:
    """Kept rows as states: one row per (key, pane), ascending, or one per session."""
    if values is None or not len(values) or not family.measures:
        return None
    codes, uniques, values = in_order(family.keys, values)
    pane = numbers(values, "pane")
    until: dict[str, pa.Array] = {}
    if family.kind == "session":
        ts = numbers(values, "ts")
        found = find_sessions(codes, ts, ts, family.span.size)
        pane, until = found.start[found.groups], {"until": pa.array(found.until)}
    return states_of(family, values, codes, uniques, pane, until)


def states_of(
    family: Family,
    rows: pa.Table,
    codes: Int64,
    uniques: list[pa.Array],
    pane: Int64,
    until: dict[str, pa.Array],
) -> pa.Table:
    """Rows in order as one row of states per (key, pane), with where it lies and its key."""
    states, state_pane, key = lift_rows(family, rows, codes, pane)
    shard = np.zeros(int(codes.max()) + 1, np.int32)
    shard[codes] = numbers(rows, "shard")
    heads = heads_of(pa.array(shard[key]), state_pane, uniques, key, until)
    return pa.table(heads | {name: flat(states.column(name)) for name in states.column_names})


def lift_rows(
    family: Family, rows: pa.Table, codes: Int64, pane: Int64
) -> tuple[pa.Table, Int64, Int64]:
    """Rows in order as states per (key, pane)."""
    ts = numbers(rows, "ts")
    groups, group_key, group_pane = group_by(codes, pane)
    place = np.arange(len(rows), dtype=np.int64)  # rows are in order: their place is their number
    chunk = Chunk(own_columns(rows, "value."), ts, place, 0)
    columns: dict[str, pa.Array] = {}
    lifted = Rows(groups, len(group_key), ts, 0, place)
    for measure in family.measures:
        bad = lift(measure, chunk, lifted, columns)
        if bad:
            raise RunError(f"{family.name}: {next(iter(bad.values()))}")
    return pa.table(columns), group_pane, group_key


def still_open(job: WindowJob, values: pa.Table | None, watermark: int) -> pa.Table | None:
    """Kept rows of sessions that are not over."""
    if values is None or not len(values):
        return values
    codes, _, values = in_order(job.keys, values)
    ts = numbers(values, "ts")
    sessions = find_sessions(codes, ts, ts, job.span.size)
    over = sessions.until + job.span.size <= watermark
    return values.filter(pa.array(~over[sessions.groups]))
