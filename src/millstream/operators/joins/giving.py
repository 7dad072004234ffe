"""What a join gives: pairs of rows, and rows by themselves, as one chunk of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.joins.layout import Layout, Refused
from millstream.operators.protocol import Host
from millstream.operators.waiting import give
from millstream.ops.chunks import Chunk, Int64, numbers, own_columns
from millstream.ops.keys.hashing import blended
from millstream.ops.keys.joins import repeated
from millstream.ops.records import DeadLetter, as_json

_PIECE = 200_000  # joined rows that are made at once


@dataclass(frozen=True)
class Giving:
    """Makes joined rows and pushes them to the steps after the join."""

    host: Host
    step: str
    number: int
    layout: Layout
    changes: bool  # what is given may be taken back

    def pairs(self, left: pa.Table, right: pa.Table, i: Int64, j: Int64) -> None:
        """Rows that meet, by their places; a pair goes if one of its rows does."""
        for start in range(0, len(i), _PIECE):
            some = slice(start, start + _PIECE)
            self._pairs(left.take(pa.array(i[some])), right.take(pa.array(j[some])))

    def _pairs(self, left: pa.Table, right: pa.Table) -> None:
        weight, other = numbers(left, "weight"), numbers(right, "weight")
        weight = np.where((weight < 0) | (other < 0), -1, 1) * np.abs(weight * other)
        again = repeated(weight)
        if again is not None:
            left, right, weight = left.take(again), right.take(again), np.sign(weight[again])
        ts = np.maximum(numbers(left, "ts"), numbers(right, "ts"))
        who = blended(numbers(left, "who"), numbers(right, "who"))
        revision = blended(numbers(left, "revision"), numbers(right, "revision"))
        self.push(left, right, ts, who, weight, revision)

    def alone(
        self,
        number: int,
        rows: pa.Table | None,
        sign: int = 1,
        since: Int64 | None = None,
        first: Int64 | None = None,
    ) -> None:
        """Give rows of one side by themselves, or take them back.

        `since`: the batch in which those of their key began to be given: they may come and go more
        than once, and each time is one of its own. `first`: the time of what let them through.
        """
        if rows is None or not len(rows):
            return
        weight = numbers(rows, "weight") * sign
        since = np.zeros(len(rows), np.int64) if since is None else since
        again = repeated(weight)
        if again is not None:
            rows, weight, since = rows.take(again), np.sign(weight[again]), since[again]
            first = None if first is None else first[again]
        ts = numbers(rows, "ts")
        ts = ts if first is None else np.maximum(ts, first)
        who = blended(numbers(rows, "who"), np.full(len(rows), number + 1, np.int64))
        revision = blended(numbers(rows, "revision"), since)
        left, right = (rows, None) if number == 0 else (None, rows)
        self.push(left, right, ts, who, weight, revision)

    def push(
        self,
        left: pa.Table | None,
        right: pa.Table | None,
        ts: Int64,
        who: Int64,
        weight: Int64,
        revision: Int64,
    ) -> None:
        """Give joined rows to the steps after the join, and count them."""
        table, refused = self.layout.joined(left, right)
        self._account(left, right, weight, who, refused)
        if refused:
            kept = np.setdiff1d(np.arange(len(table)), list(refused))
            table = table.take(pa.array(kept))
            ts, who, weight, revision = (one[kept] for one in (ts, who, weight, revision))
        marks = (weight, revision) if self.changes else ()
        chunk = Chunk(table, ts, who, self.number, *marks)
        give(self.host, self.step, chunk, int((weight > 0).sum()))

    def _account(
        self,
        left: pa.Table | None,
        right: pa.Table | None,
        weight: Int64,
        who: Int64,
        refused: Refused,
    ) -> None:
        """Pairs that cannot be one row are dead letters, of which those taken back say nothing."""
        counts, lost = self.host.ledger(self.step), 0
        for row, why in refused.items():
            if weight[row] > 0 and left is not None and right is not None:
                sides = [own_columns(one.slice(row, 1)).to_pylist()[0] for one in (left, right)]
                raw = as_json(dict(zip(("left", "right"), sides, strict=True)))
                self.host.control.dead.append(DeadLetter(self.step, -1, int(who[row]), raw, why))
                lost += 1
        counts["failed"] += lost
        counts["answered"] += int((weight > 0).sum()) - lost
