"""Windows that leave as rows: key, bounds, and what was asked of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.ops.chunks import Chunk, Int64, Objects
from millstream.ops.keys.hashing import places_of
from millstream.ops.mixed import exactly
from millstream.ops.records import DeadLetter
from millstream.ops.windows.answering import Answers
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.reducing import call_reducer, failed_result

STAMP = pa.timestamp("us", "UTC")


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
    place = places_of(found.uniques)
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
        return call_reducer(job, heads, answers.values, order, dead), dead
    for measure in job.measures:
        columns[measure.name] = answers.columns[measure.name].take(pa.array(order))
    chunk = heads.with_table(exactly(columns, answers.exact))
    if not answers.failed:
        return chunk, dead
    good = np.array([at not in answers.failed for at in order.tolist()], np.bool_)
    for index in np.flatnonzero(~good).tolist():
        dead.append(failed_result(job, heads, index, answers.failed[int(order[index])]))
    return chunk.take(good), dead


def _packed(uniques: list[pa.Array]) -> Objects:
    """The packed keys of a job, for results that are sorted by them later."""
    keys = np.empty(len(uniques[0]), object)
    keys[:] = uniques[0].to_pylist()
    return keys


def _stamps(micros: Int64) -> pa.Array:
    return pa.array(micros).cast(STAMP)
