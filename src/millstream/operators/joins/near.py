"""The operator of an interval join: rows of two streams of records that meet in time.

A pair is given as soon as both rows are there. A row is kept as long as one that it may meet can
come: until the watermark has passed its interval. What a side gives by itself it gives then,
because only then is it known that nothing met it: so nothing is ever taken back. The watermark
behind such a join is held back by that interval, since these rows have their own time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.joins.arriving import SIDES, Joining
from millstream.operators.joins.giving import Giving
from millstream.operators.joins.matching import ALONE, PAIRS, timed
from millstream.operators.protocol import Share
from millstream.operators.stores import Queue
from millstream.operators.traces import Traced
from millstream.operators.waiting import rows_for
from millstream.ops.chunks import Int64, concat, numbers, with_column
from millstream.ops.keys.joins import keys_of, near


@dataclass(frozen=True)
class Near(Joining):
    """A join of records whose times differ by so much."""

    how: str
    low: int  # the time of the right row less that of the left one, in microseconds
    high: int

    queued = ()  # rows meet others as they come

    def run(self, share: Share) -> None:
        """Let new rows meet others; give those by themselves whose time is over."""
        Work(self, share).run()

    def span(self, number: int) -> tuple[int, int]:
        """How far before and after a row of a side those of the other side lie that it meets."""
        return (self.low, self.high) if number == 0 else (-self.high, -self.low)

    def lives(self, number: int) -> int:
        """How long after its time a row may be needed: to meet others, and to be seen by them.

        A row of the other side that is given by itself looks once more, when its time is over.
        """
        last = self.span(number)[1]
        looked = 1 - number in ALONE.get(self.how, ())
        return last + max(0, self.span(1 - number)[1]) if looked else last


class Work:
    """One batch of an interval join in one task."""

    def __init__(self, join: Near, share: Share) -> None:
        self.join, self.share, self.host = join, share, share.host
        self.giving = Giving(self.host, join.name, join.number, join.layout, changes=False)
        self.closed, self.watermark = join.times(share)
        batch, control = self.host.batch, self.host.control
        self.traces = [Traced(join.name, name, batch, control, settles=False) for name in SIDES]
        self.new: list[pa.Table | None] = [rows_for(share, name) for name in SIDES]
        for number, rows in enumerate(self.new):
            null = None if rows is None else numbers(rows, "null").astype(np.bool_)
            if rows is not None and null is not None and null.any():
                self.new[number] = rows.filter(pa.array(~null))
                if join.how != "semi":
                    self.giving.alone(number, rows.filter(pa.array(null)))

    def run(self) -> None:
        """Pairs first, then rows by themselves, then what is kept."""
        join = self.join
        if join.how in PAIRS:
            stored = [
                self.traces[number].rows_near(self.new[1 - number], *join.span(1 - number))
                for number in (0, 1)
            ]
            self._pairs(self.new[0], _together(stored[1], self.new[1]))
            self._pairs(stored[0], self.new[1])
        waiting = [self._alone(number) for number in ALONE.get(join.how, ())]
        over = join.reached(self.share, self.watermark) - 1
        for number, rows in enumerate(self.new):
            if join.how in PAIRS or number == 1:
                self.traces[number].store(self._kept(number, rows, over), over)
        join.tell(self.share, self.watermark, *([min(waiting)] if waiting else []))

    def _pairs(self, left: pa.Table | None, right: pa.Table | None) -> None:
        if left is not None and right is not None and len(left) and len(right):
            self.giving.pairs(left, right, *self._near(0, left, right))

    def _near(self, number: int, rows: pa.Table, others: pa.Table) -> tuple[Int64, Int64]:
        """Which rows of a side meet which of the other."""
        ts = numbers(rows, "ts")
        before, after = self.join.span(number)
        between = (ts + before, ts + after)
        return near(keys_of(rows), keys_of(others), between, numbers(others, "ts"))

    def _alone(self, number: int) -> int:
        """Rows of a side whose time is over: those that met nothing, or of a semi-join something.

        Gives the time when the next one is due.
        """
        join = self.join
        after = join.span(number)[1]
        new = timed(self.new[number], after)
        queue = Queue(
            join.name, f"{SIDES[number]} waiting", new, self.host.batch, self.host.control
        )
        due = queue.due(self.closed, self.watermark)
        if due is not None:
            due = due.drop_columns(["time"])
            trace = self.traces[1 - number]
            others = _together(trace.rows_near(due, *join.span(number)), self.new[1 - number])
            met = np.zeros(len(due), np.bool_)
            if others is not None:
                met[self._near(number, due, others)[0]] = True
            self.giving.alone(number, due.filter(pa.array(met == (join.how == "semi"))))
        return queue.store(self.watermark)

    def _kept(self, number: int, rows: pa.Table | None, over: int) -> pa.Table | None:
        """New rows that may still be needed, with the time until which they are."""
        if rows is None:
            return None
        expires = numbers(rows, "ts") + self.join.lives(number)
        rows = with_column(rows, "expires", expires)
        return rows.filter(pa.array(expires > over))


def _together(one: pa.Table | None, other: pa.Table | None) -> pa.Table | None:
    tables = [rows for rows in (one, other) if rows is not None and len(rows)]
    return concat(tables) if tables else None
