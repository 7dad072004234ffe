"""The operator of a join: where rows of both sides meet.

Both sides are kept by key. Of a batch some rows are new, some go, and some of the same keys stay:
new ones meet new ones and those that stay. Those that go meet others that go and those that stay,
and take back what they gave with them. A pair of which one row comes and the other goes never was.

Where a side gives rows that match nothing (or, of a semi-join, those that match something), a table
has per key how many rows each side has, so that rows of a key are read only when the first match
comes or the last one goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.joins.arriving import SIDES, Joining
from millstream.operators.joins.counting import Counted
from millstream.operators.joins.giving import Giving
from millstream.operators.protocol import Host, Share
from millstream.operators.stores import Queue, Table
from millstream.operators.traces import Traced
from millstream.operators.waiting import rows_for
from millstream.ops.chunks import concat, numbers
from millstream.ops.keys.joins import keys_of, pairs, settled

# Per way to join: whether pairs are given, and which sides give rows by themselves.
PAIRS = ("inner", "left", "right", "full")
ALONE = {"left": (0,), "right": (1,), "full": (0, 1), "semi": (0,), "anti": (0,)}


@dataclass(frozen=True)
class Matching(Joining):
    """A join of two streams, of records or of changes.

    Right records of a semi-join wait for the watermark: the first of them gives left rows their
    time, and which one that is must not depend on batches.
    """

    how: str
    changes: bool  # what it gave may be taken back

    @property
    def waits(self) -> bool:
        """Whether right rows wait for the watermark."""
        return self.how == "semi" and not self.changes

    @property
    def queued(self) -> tuple[str, ...]:
        """Right rows, if they wait."""
        return ("waiting",) if self.waits else ()

    def run(self, share: Share) -> None:
        """Let new rows meet stored ones; then store them."""
        new = [rows_for(share, name) for name in SIDES]
        for number, side in enumerate(self.sides):
            rows = new[number]
            if rows is not None and side.changes:
                new[number] = settled(rows)
        if self.waits:
            new[1] = self._due(share, new[1])
        if any(rows is not None for rows in new):
            Work(self, share.host, new).run()

    def _due(self, share: Share, new: pa.Table | None) -> pa.Table | None:
        """The right rows that the watermark has passed."""
        closed, watermark = self.times(share)
        host = share.host
        queue = Queue(self.name, "waiting", timed(new, 0), host.batch, host.control)
        due = queue.due(closed, watermark)
        self.tell(share, watermark, queue.store(watermark))
        return None if due is None else due.drop_columns(["time"])


def timed(rows: pa.Table | None, after: int) -> pa.Table | None:
    """Rows that wait until so long after their time."""
    if rows is None:
        return None
    return rows.append_column("time", pa.array(numbers(rows, "ts") + after))


class Work:
    """One batch of a join in one task."""

    def __init__(self, join: Matching, host: Host, new: list[pa.Table | None]) -> None:
        self.join, self.host = join, host
        batch, control = host.batch, host.control
        self.traces = [
            Traced(join.name, name, batch, control, settles=side.changes)
            for name, side in zip(SIDES, join.sides, strict=True)
        ]
        self.giving = Giving(host, join.name, join.number, join.layout, join.changes)
        self.apart: list[pa.Table | None] = [None, None]  # rows without a key
        self.new: list[pa.Table | None] = [None, None]
        for number, rows in enumerate(new):
            if rows is not None and join.sides[number].changes:
                rows = self.traces[number].known(rows)
            if rows is not None and len(rows):
                null = numbers(rows, "null").astype(np.bool_)
                self.apart[number] = rows.filter(pa.array(null)) if null.any() else None
                self.new[number] = rows.filter(pa.array(~null)) if null.any() else rows

    def run(self) -> None:
        """Give what changes, and bring the state up to date."""
        join = self.join
        before: list[pa.Table | None] = [None, None]
        if join.how in PAIRS:
            for number in (0, 1):  # what rows of the other side meet
                before[number] = self.traces[number].rows_of(self.new[1 - number])
            stay = [self._stays(number, before[number]) for number in (0, 1)]
            self._pairs(self.new[0], stay[1])
            self._pairs(stay[0], self.new[1])
            for sign in (-1, 1):
                self._pairs(*(self._signed(number, sign) for number in (0, 1)))
        if join.how in ALONE:
            self._alone(before)
        for number, side in enumerate(join.sides):
            if side.holds or side.changes:
                parts = (self.new[number], self.apart[number] if side.changes else None)
                stored = [one for one in parts if one is not None]
                self.traces[number].store(concat(stored) if stored else None)

    # -- pairs ------------------------------------------------------------------------------------

    def _signed(self, number: int, sign: int) -> pa.Table | None:
        """The rows of a side that come, or those that go."""
        rows = self.new[number]
        if rows is None or not self.join.sides[number].changes:
            return rows if sign > 0 else None
        return rows.filter(pa.array(numbers(rows, "weight") * sign > 0))

    def _stays(self, number: int, before: pa.Table | None) -> pa.Table | None:
        """Stored rows without those that go."""
        gone = self._signed(number, -1)
        if before is None or gone is None or not len(gone):
            return before
        left = settled(concat([before, gone]))
        return left.filter(pa.array(numbers(left, "weight") > 0))

    def _pairs(self, left: pa.Table | None, right: pa.Table | None) -> None:
        if left is None or right is None or not len(left) or not len(right):
            return
        self.giving.pairs(left, right, *pairs(keys_of(left), keys_of(right)))

    # -- rows by themselves -----------------------------------------------------------------------

    def _alone(self, before: list[pa.Table | None]) -> None:
        """Rows of a side that are given because of how many match them, not with these."""
        join, batch = self.join, self.host.batch
        for number in ALONE[join.how]:
            if join.how != "semi":
                self.giving.alone(number, self.apart[number])
        counts = Table(join.name, "keys", batch, self.host.control)
        keys = Counted.of(self.new, counts)
        if keys is None:
            return
        for number in ALONE[join.how]:
            was, now = keys.shown(number, semi=join.how == "semi")
            since = keys.since(number, was, now, batch.number)
            turned = was != now
            stored = before[number]
            if join.how not in PAIRS and turned.any():
                stored = self.traces[number].rows_of(keys.rows(turned))
            stored, key = keys.match(stored)
            new, new_key = keys.match(self.new[number])
            ends, begins, stays = was & ~now, now & ~was, was & now
            first = keys.first if join.how == "semi" else None
            all_, all_key = (
                keys.match(self._together(number, stored)) if begins.any() else (None, key)
            )
            for rows, of, chosen, sign in (
                (stored, key, ends, -1),
                (all_, all_key, begins, 1),
                (new, new_key, stays, 1),
            ):
                if rows is not None and len(rows):
                    some = np.flatnonzero(chosen[of])
                    mine, of = rows.take(pa.array(some)), of[some]
                    known = keys.before(number) if sign < 0 else since
                    let = None if first is None else first[of]
                    self.giving.alone(number, mine, sign, known[of], let)
        keys.store(counts)
        counts.store()

    def _together(self, number: int, stored: pa.Table | None) -> pa.Table | None:
        """Stored and new rows of a side."""
        tables = [rows for rows in (stored, self.new[number]) if rows is not None]
        if not tables:
            return None
        whole = concat(tables)
        return settled(whole) if self.join.sides[number].changes else whole
