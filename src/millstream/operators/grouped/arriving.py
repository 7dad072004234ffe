"""Beside the readers: rows on their way to the groups they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.grouped.moves import VALUE
from millstream.operators.waiting import Gathered, Immediate, addressed
from millstream.ops.aggregates.kernels import Rows
from millstream.ops.chunks import Chunk, Int64, all_but
from millstream.ops.keys.hashing import canonical
from millstream.ops.keys.names import both_hashes
from millstream.ops.mixed import exact_columns, exactly
from millstream.ops.records import dead_row
from millstream.ops.windows.jobs import Measure
from millstream.ops.windows.preparing import lift, long_keys, null_keys, with_numbers


@dataclass(frozen=True)
class ByGroup(Immediate):
    """An operator that keeps rows of groups, or what they come to."""

    name: str
    keys: tuple[str, ...]
    keep_null_keys: bool
    number: int


@dataclass
class Arriving(Gathered[ByGroup]):
    """The inlet: what groups need of every row, one below the other."""

    measures: tuple[Measure, ...] = ()
    columns: tuple[str, ...] | None = None  # of a row; None: all
    named: bool = False  # also of which window a row is, by which readers know it

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Rows without a key, or with a value an aggregate cannot take, are set aside."""
        offered = len(chunk)
        if not offered:
            return
        bad = {} if self.operator.keep_null_keys else null_keys(self.operator.keys, chunk)
        bad.update(long_keys(self.operator.keys, chunk, self.host.batch.max_key))
        chunk, unfit = with_numbers(self.measures, chunk)
        bad.update(unfit)
        bad.update(self._refused(chunk, bad))
        adds = chunk.weights() > 0  # what is taken back was dead when it came
        dead = [dead_row(self.operator.name, chunk, at, why) for at, why in bad.items() if adds[at]]
        self.host.control.dead.extend(dead)
        counts = self.host.ledger(self.operator.name)
        counts["offered"] += offered
        counts["dead"] += len(dead)
        counts["aggregated"] += offered - len(dead)
        self._add(chunk.take(all_but(offered, bad)))

    def _refused(self, chunk: Chunk, bad: dict[int, str]) -> dict[int, str]:
        """Rows a user's `add` raises on: found here, so that they are dead letters."""
        found: dict[int, str] = {}
        for measure in self.measures:
            if measure.objects is None or measure.objects.bulk is not None:
                continue
            good = np.array([at for at in range(len(chunk)) if at not in bad and at not in found])
            rows = chunk.take(good.astype(np.int64))
            groups = np.zeros(len(rows), np.int64)
            raised = lift(measure, rows, Rows(groups, 1, rows.ts, rows.src, rows.pos), {})
            found.update({int(good[at]): why for at, why in raised.items()})
        return found

    def _add(self, chunk: Chunk) -> None:
        if not len(chunk):
            return
        times = np.abs(chunk.weights())
        if (times != 1).any():
            chunk = chunk.take(np.repeat(np.arange(len(chunk)), times))
        keys = [canonical(chunk.column(name)) for name in self.operator.keys]
        hashes = checks = np.zeros(len(chunk), np.uint64)
        if keys:
            hashes, checks = both_hashes(keys)
        names = chunk.table.column_names if self.columns is None else self.columns
        rows: dict[str, pa.Array] = {
            **addressed(hashes, checks, self.host.batch.shards),
            "weight": pa.array(np.sign(chunk.weights())),
            "ts": pa.array(chunk.ts),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
            **{f"key.{nth}": key for nth, key in enumerate(keys)},
            **{f"{VALUE}{name}": chunk.column(name) for name in names},
        }
        if self.named:
            rows["window"] = pa.array(chunk.mark("window"))
        exact = [f"{VALUE}{name}" for name in exact_columns(chunk.table) if name in names]
        self.tables.append(exactly(rows, exact))


def names_of(src: Int64, pos: Int64, window: Int64) -> Int64:
    """A number for every row by which readers know it: where it is from, and of which window."""
    name: Int64 = pos ^ ((src + 1) << np.int64(40)) ^ (window * 1_000_003)
    return name & ((1 << 62) - 1)
