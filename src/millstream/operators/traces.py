"""Rows with weights by key, as a keyed task stores them: a trace that a batch adds to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.batch import Batch, Control
from millstream.operators.stores import Store
from millstream.ops.chunks import concat, numbers, with_column
from millstream.ops.keys.hashing import distinct
from millstream.ops.keys.joins import keys_of, settled
from millstream.ops.times.progress import BEGIN, END
from millstream.state.segments import Segment
from millstream.state.traces import Trace, in_order


class Traced(Store):
    """All rows of some keys: a batch reads those it asks for, and writes those it brought."""

    by = "expires"

    def __init__(
        self, owner: str, table: str, batch: Batch, control: Control, *, settles: bool
    ) -> None:
        super().__init__(owner, table, batch, control)
        self.rows = Trace(self.root, self.stored, batch.files)
        self.settles = settles  # rows may be taken back: what they come to must be worked out

    def rows_of(self, wanted: pa.Table | None) -> pa.Table | None:
        """The stored rows of the keys that occur in a table, without those that were taken back."""
        if wanted is None or not len(wanted) or not self.stored:
            return None
        keys = keys_of(wanted)
        _, some = distinct(keys)
        _, one = np.unique(keys[0][some], return_index=True)  # two keys may share a hash
        some = some[one]
        found = self.rows.rows_of(numbers(wanted, "shard")[some].astype(np.int64), keys[0][some])
        if found is None:
            return None
        return settled(found) if self.settles else found

    def rows_near(self, wanted: pa.Table | None, before: int, after: int) -> pa.Table | None:
        """Stored rows, in the order of time, of the keys that occur in a table.

        Of each key those from so long before the first row that is wanted of it to so long after
        the last.
        """
        if wanted is None or not len(wanted) or not self.stored:
            return None
        hashes, ts = numbers(wanted, "hash"), numbers(wanted, "ts")
        keys, some, codes = np.unique(hashes, return_index=True, return_inverse=True)
        first, last = np.full(len(keys), END), np.full(len(keys), BEGIN)
        np.minimum.at(first, codes, ts)
        np.maximum.at(last, codes, ts)
        shard = numbers(wanted, "shard")[some].astype(np.int64)
        return self.rows.rows_of(shard, keys, (first + before, last + after))

    def known(self, new: pa.Table) -> pa.Table:
        """New rows without those that take back what is not here, as to a step that came later."""
        weight = numbers(new, "weight")
        back = np.flatnonzero(weight < 0)
        if not len(back):
            return new
        taken = new.take(pa.array(back))
        shard = numbers(taken, "shard").astype(np.int64)
        held = self.rows.weights(shard, numbers(taken, "hash"), numbers(taken, "same"))
        weight = weight.copy()
        weight[back] = np.maximum(weight[back], -np.maximum(held, 0))
        new = with_column(new, "weight", weight)
        return new.filter(pa.array(weight != 0))

    def store(self, new: pa.Table | None, gone_by: int | None = None) -> None:
        """Add rows, together with small segments worth merging.

        gone_by: rows that expire by then are dropped where that is cheap.
        """
        kept = {
            shard: [one for one in segments if gone_by is None or one.high > gone_by]
            for shard, segments in self.stored.items()
        }
        if new is None or not len(new):
            if kept != self.stored:
                self._report(kept, {})
            return

        def merge(shard: str, segments: list[Segment], mine: pa.Table) -> pa.Table:
            """Several pieces as one, without what has expired or comes to nothing."""
            rows = concat([*self.rows.read(segments), mine])
            if gone_by is not None:
                rows = rows.filter(pc.greater(rows.column("expires"), gone_by))
            return settled(rows) if self.settles else rows

        merging = {
            shard: [one for one in segments if one in kept[shard]]
            for shard, segments in self.rows.to_merge(len(new)).items()
        }
        self._write_merged(new, kept, merging, merge)

    def _write(
        self, rows: pa.Table | None, suffix: str = "", *, cold: bool = False
    ) -> dict[int, Segment]:
        return super()._write(None if rows is None else in_order(rows), suffix, cold=cold)
