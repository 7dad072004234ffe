"""The store of what a window has emitted of windows that are still open: a table by result.

A batch writes the results it changed and nothing of the others; one that is forgotten is a
tombstone, until its segment is merged.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.operators.stores import Table
from millstream.operators.windows.work import Work
from millstream.ops.chunks import concat, flat
from millstream.ops.emitting.emitted import OLDER
from millstream.ops.keys.hashing import factorize
from millstream.ops.keys.names import both_hashes

_NAME = ("name", "window", "nth")
_HEAD = ("shard", "pane", *_NAME)
_HASHED = ("hash", "check", "gone")


class Remembered(Table):
    """What one window of a family has emitted, in the shards of this task."""

    by = "pane"  # results do not expire, they are forgotten

    def __init__(self, work: Work, job: str) -> None:
        owner, batch = work.family.name, work.batch
        if any(batch.segments.get(owner, {}).get(f"emitted {job}", {}).values()):
            raise RunError(f"{job}: {OLDER}")
        super().__init__(owner, f"given {job}", batch, work.control)
        rows = self.every_row()
        self.known = None if rows is None else rows.drop_columns(list(_HASHED))

    def keep(self, known: pa.Table | None, since: int) -> None:
        """Store what is remembered now; what was emitted since some emission is new."""
        puts = [self._forgotten(known)]
        if known is not None:
            new = pc.greater_equal(known.column("stamp"), since)
            emptied = pc.equal(known.column("shown"), 0)
            puts.append(_hashed(known.filter(pc.or_(new, emptied)), gone=False))
        puts = [table for table in puts if len(table)]
        if puts:
            self.put_hashed(concat(puts))
        self.store()

    def _forgotten(self, known: pa.Table | None) -> pa.Table:
        """Tombstones for what was remembered and is so no more."""
        if self.known is None:
            return pa.table({})
        before = self.known.select(list(_HEAD))
        if known is not None:
            both = concat([before.select(list(_NAME)), known.select(list(_NAME))])
            codes, _ = factorize([flat(both.column(name)) for name in _NAME])
            still = np.isin(codes[: len(before)], codes[len(before) :])
            before = before.filter(pa.array(~still))
        return _hashed(before, gone=True)


def _hashed(rows: pa.Table, gone: bool) -> pa.Table:
    hashes, checks = both_hashes([flat(rows.column(name)) for name in _NAME])
    return (
        rows.append_column("hash", pa.array(hashes))
        .append_column("check", pa.array(checks))
        .append_column("gone", pa.array(np.full(len(rows), gone)))
    )
