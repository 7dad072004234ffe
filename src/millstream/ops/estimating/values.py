"""What the driver is told of single values, for aggregates that no total can stand for.

Quantiles get some values of each block, `distinct` the hashes of all different ones, and of columns
that are summed up the driver is told those furthest out. Made in tasks, chunk by chunk, beside the
states of other aggregates.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.aggregates.kernels import as_numbers
from millstream.ops.aggregates.sketches import ExactQuantile
from millstream.ops.chunks import Chunk, Int64, begins
from millstream.ops.estimating.kinds import Kind, kind_of
from millstream.ops.estimating.ranks import picked
from millstream.ops.estimating.tails import furthest
from millstream.ops.keys.hashing import canonical, factorize, hash_keys
from millstream.ops.windows.jobs import Measure, WindowJob
from millstream.ops.windows.preparing import null_keys


def quantile_of(measure: Measure) -> float | None:
    """The share of a quantile that is estimated; None for any other aggregate."""
    asked = measure.lists.q if isinstance(measure.lists, ExactQuantile) else None
    return asked if isinstance(asked, float) else None


def counts_values(measure: Measure) -> bool:
    """Whether an aggregate is the number of different values."""
    return measure.objects is not None and measure.objects.name.startswith("distinct(")


def tailed(job: WindowJob) -> dict[str, str]:
    """The columns of which the tail is looked at, and the first aggregate of each."""
    found: dict[str, str] = {}
    for one in job.measures:
        if one.column is not None and kind_of(one) in (Kind.SUM, Kind.MEAN, Kind.VARIANCE):
            found.setdefault(one.column, one.name)
    return found


def reported_tails(job: WindowJob, chunk: Chunk) -> dict[str, pa.Table]:
    """The values of a chunk that are furthest out, for the first aggregate of each column."""
    found = {}
    for column, name in tailed(job).items():
        values = chunk.column(column).drop_null()
        if len(values):
            far = furthest(np.asarray(pc.cast(values, pa.float64(), safe=False)))
            found[name] = pa.table({"far": pa.array([far], pa.list_(pa.float64()))})
    return found


def reported_values(job: WindowJob, chunk: Chunk) -> dict[str, pa.Table]:
    """Values of a chunk, all of one block, for each aggregate that needs them."""
    wanted = [m for m in job.measures if quantile_of(m) is not None or counts_values(m)]
    if not wanted or not len(chunk):
        return {}
    bad = [] if job.keep_null_keys else list(null_keys(job.keys, chunk))
    if bad:
        chunk = chunk.take(np.delete(np.arange(len(chunk)), bad))
    keys = [canonical(chunk.column(name)) for name in job.keys]
    codes, uniques = factorize(keys) if keys else (np.zeros(len(chunk), np.int64), [])
    at = int(chunk.pos.min()) if len(chunk) else 0
    found = {}
    for measure in wanted:
        column = chunk.column(measure.column or "")
        there = np.asarray(pc.is_valid(column))
        column, of = column.filter(pa.array(there)), codes[there]
        if len(column):
            picks = _hashes if counts_values(measure) else _some
            rows, more = picks(column, of, at)
            named = {f"key.{i}": one.take(pa.array(rows)) for i, one in enumerate(uniques)}
            place = pa.array(np.full(len(rows), at, np.int64))
            found[measure.name] = pa.table({**named, **more, "block": place})
    return found


def _some(column: pa.Array, groups: Int64, at: int) -> tuple[Int64, dict[str, pa.Array]]:
    """The groups of some values, these, and how many each stands for."""
    numbers, _ = as_numbers(column, "quantile")
    values = numbers.astype(np.float64)
    rows, weights = picked(groups, values, int(groups.max()) + 1, at)
    return groups[rows], {"value": pa.array(values[rows]), "weight": pa.array(weights)}


def _hashes(column: pa.Array, groups: Int64, at: int) -> tuple[Int64, dict[str, pa.Array]]:
    """The groups of different values, and their hashes."""
    hashes = hash_keys([canonical(column)])
    order = np.lexsort((hashes, groups))
    of, value = groups[order], hashes[order]
    new = begins(of, value)
    return of[new], {"value": pa.array(value[new])}
