"""`Stream.dedup`: records whose like was not given shortly before.

Records are looked at in the order of time, once the watermark has passed them. One is given if no
equal one was given within the time before it; what is remembered of each is when it was given last,
and that is forgotten as soon as nothing can be left out because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.durations import text
from millstream.errors import ConfigError
from millstream.operators.distinct import ComparedRows, in_order_of_content
from millstream.operators.filing import Filed, Tables
from millstream.operators.protocol import Host, KeyedStep, Row, Share
from millstream.operators.stores import Queue, Table, keyed_rows, stored_numbers
from millstream.operators.waiting import Waiting, give, rows_for
from millstream.ops.chunks import Chunk, Int64, Mask, begins, numbers, own_columns
from millstream.ops.progress import BEGIN

_FOR_EVER = 2**60  # microseconds


@dataclass(frozen=True, eq=False, kw_only=True)
class Dedup(KeyedStep):
    """Records that differ in some columns (or in any) from those given shortly before."""

    keys: tuple[str, ...] = ()
    within: int | None = None  # microseconds; None: for ever

    def operator(self, number: int, changes: bool) -> Forgetting:
        """Remembers when each was given last."""
        if changes:
            raise ConfigError(
                f"{self.name}: dedup() works on records, and its input takes back what it gave; "
                "use distinct(), which follows changes, or dedup() before that step"
            )
        return Forgetting(self.name, self.keys, number, self.within)

    def words(self) -> str:
        """For the plan."""
        what = ", ".join(self.keys) or "whole records"
        within = "" if self.within is None else f" within {text(self.within)}"
        return f"dedup by {what}{within}"

    def answers_in_time(self, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """Each that comes more than so long after the last one given."""
        given: dict[str, int] = {}
        found = []
        for at, (ts, row) in enumerate(rows):
            mine = repr(sorted((name, row.get(name)) for name in self.keys or row))
            if mine not in given or (self.within is not None and ts - given[mine] > self.within):
                given[mine] = ts
                found.append((at, row))
        return found

    def remembered(self) -> dict[str, Any]:
        """What is compared, and for how long."""
        return {"keys": list(self.keys), "within": self.within}


@dataclass(frozen=True)
class Forgetting(Waiting):
    """The operator: when each was given last, as long as that matters."""

    name: str
    keys: tuple[str, ...]
    number: int
    within: int | None
    changes: bool = False
    whole: bool = True  # rows keep all their columns

    def inlet(self, host: Host) -> ComparedRows:
        """Records by the hash of what is compared."""
        return ComparedRows(self, host)

    def run(self, share: Share) -> None:
        """Look at the records that the watermark has passed."""
        host, batch, control = share.host, share.host.batch, share.host.control
        closed, watermark = self.times(share)
        waiting = Queue(self.name, "waiting", rows_for(share), batch, control)
        last = Table(self.name, "given", batch, control)
        due = waiting.due(closed, watermark)
        if due is not None:
            chunk = self._given(in_order_of_content(due), last)
            give(host, self.name, chunk, len(chunk))
        next_time = waiting.store(watermark)
        last.store(gone_by=min(watermark, self.reached(share, watermark)))
        self.tell(share, watermark, next_time)

    def _given(self, rows: pa.Table, last: Table) -> Chunk:
        """The records that are given; when, is remembered."""

        def column(name: str) -> Any:
            return numbers(rows, name)

        hashes, checks, ts = column("hash"), column("check"), column("time")
        start = np.flatnonzero(begins(hashes, checks))
        shard = column("shard").astype(np.int64)[start]
        place, known = last.rows.find(shard, hashes[start], checks[start])
        before = stored_numbers(place, known, "ts", BEGIN)
        reach = _FOR_EVER if self.within is None else self.within
        given, latest = _spaced(ts, start, before, reach)
        own = {"ts": latest} | ({} if self.within is None else {"expires": latest + reach + 1})
        keys, gone = (hashes[start], checks[start]), np.zeros(len(start), np.bool_)
        last.put_hashed(pa.table(keyed_rows(shard, keys, gone, own)))
        table = own_columns(rows)
        at = np.flatnonzero(given)
        pos = (hashes >> np.uint64(1)).astype(np.int64)
        return Chunk(table.take(pa.array(at)), ts[at], pos[at], self.number)

    def stored(self) -> Tables:
        """Rows that wait, and when each was given last, by the hash of what is compared."""
        waiting, given = Filed("spans", "time", "hash"), Filed("newest", "expires", "hash")
        return {self.name: {"waiting": waiting, "given": given}}


def _spaced(ts: Int64, start: Int64, before: Int64, reach: int) -> tuple[Mask, Int64]:
    """Which of the ascending times of each group lie more than `reach` after the last one taken.

    `before`: the last one taken before these. Also gives the last one taken of each group.
    """
    end = np.r_[start[1:], len(ts)]
    taken, last = np.zeros(len(ts), np.bool_), before.copy()
    at, open = start.copy(), np.arange(len(start))
    while len(open := open[ts[end[open] - 1] > last[open] + reach]):
        near = open[ts[at[open]] <= last[open] + reach]  # mostly few
        for group in near.tolist():
            rest = ts[at[group] : end[group]]
            at[group] += np.searchsorted(rest, last[group] + reach, "right")
        nearest = at[open]  # in every round each group takes one more
        taken[nearest] = True
        last[open], at[open] = ts[nearest], nearest + 1
    return taken, last
