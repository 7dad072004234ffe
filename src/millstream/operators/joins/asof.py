"""The operator of an as-of join: every left record with the right one that was the latest then.

Records of both sides wait until the watermark has passed them. They are looked at in the order of
time, so that what a left record gets does not depend on batches; a right record of the same time
counts. Of the right side only the latest record of each key is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.joins.arriving import SIDES, Joining
from millstream.operators.joins.giving import Giving
from millstream.operators.joins.matching import timed
from millstream.operators.protocol import Host, Share
from millstream.operators.stores import Queue, Table
from millstream.operators.waiting import rows_for
from millstream.ops.chunks import Int64, Mask, concat, ends, numbers, with_column
from millstream.ops.keys.hashing import blended, distinct
from millstream.ops.updates.job import NEVER

_MARKS = ("shard", "hash", "check", "ts", "src", "pos")


@dataclass(frozen=True)
class AsOf(Joining):
    """A join of each left record with the latest right one that is not after it."""

    within: int | None = None  # how old the right record may be, in microseconds

    queued = tuple(f"{name} waiting" for name in SIDES)  # rows of both sides wait

    def run(self, share: Share) -> None:
        """Look at the rows that the watermark has passed."""
        closed, watermark = self.times(share)
        batch, control = share.host.batch, share.host.control
        queues = [
            Queue(self.name, f"{name} waiting", timed(rows_for(share, name), 0), batch, control)
            for name in SIDES
        ]
        due = [queue.due(closed, watermark) for queue in queues]
        latest = Table(self.name, "latest", batch, control)
        if any(rows is not None for rows in due):
            self._look(due, latest, share.host)
        latest.store(self.reached(share, watermark) - 1)
        self.tell(share, watermark, min(queue.store(watermark) for queue in queues))

    def _look(self, due: list[pa.Table | None], latest: Table, host: Host) -> None:
        """Give left rows what was there at their time; keep the latest right ones."""
        some = [rows for rows in due if rows is not None]
        marks = {n: np.concatenate([numbers(rows, n) for rows in some]) for n in _MARKS}
        is_left = np.concatenate([np.full(len(rows), rows is due[0]) for rows in some])
        codes, first = distinct((marks["hash"], marks["check"]))
        order = np.lexsort((marks["pos"], marks["src"], is_left, marks["ts"], codes))
        shard = marks["shard"][first].astype(np.int64)
        place, known = latest.rows.find(shard, marks["hash"][first], marks["check"][first])
        before = _last_before(order, codes, is_left)
        lefts = 0 if due[0] is None else len(due[0])
        rights = [rows for rows in (due[1], known) if rows is not None]
        right = concat(rights) if rights else None
        if due[0] is not None:
            new = 0 if due[1] is None else len(due[1])
            stored = place[codes[:lefts]]
            at = np.where(before[:lefts] >= 0, before[:lefts] - lefts, stored + new)
            at = np.where((before[:lefts] < 0) & (stored < 0), -1, at)
            self._give(due[0], right, at, host)
        if due[1] is not None:
            self._keep(due[1], order, codes, is_left, lefts, latest)

    def _give(self, left: pa.Table, right: pa.Table | None, at: Int64, host: Host) -> None:
        giving = Giving(host, self.name, self.number, self.layout, changes=False)
        ts, who = numbers(left, "ts"), blended(numbers(left, "who"))
        if right is None:
            matched = None
        else:
            if self.within is not None:
                there = numbers(right, "ts")[np.maximum(at, 0)]
                at = np.where((at >= 0) & (ts - there <= self.within), at, -1)
            matched = right.take(pa.array(np.maximum(at, 0), mask=at < 0))
        ones = np.ones(len(left), np.int64)
        giving.push(left, matched, ts, who, ones, ones)

    def _keep(
        self, right: pa.Table, order: Int64, codes: Int64, is_left: Mask, lefts: int, latest: Table
    ) -> None:
        """The last right row of every key takes the place of the one before."""
        ordered = order[~is_left[order]]
        last = ordered[ends(codes[ordered])]
        rows = right.take(pa.array(last - lefts)).drop_columns(["time"])
        ts = numbers(rows, "ts")
        expires = np.full(len(rows), NEVER) if self.within is None else ts + self.within
        rows = with_column(rows, "expires", expires)
        latest.put_hashed(rows.append_column("gone", pa.array(np.zeros(len(rows), np.bool_))))


def _last_before(order: Int64, codes: Int64, is_left: Mask) -> Int64:
    """For every row the last right row of its key before it in the order; -1 if there is none."""
    right = np.where(is_left[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(right)
    begin = np.searchsorted(codes[order], codes[order])
    found = np.full(len(order), -1, np.int64)
    there = last >= begin
    found[order[there]] = order[last[there]]
    return found
