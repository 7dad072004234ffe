"""`Stream.dedup`: records whose like was not given shortly before.

Records are looked at in the order of time, once the watermark has passed them. One is given if no
equal one was given within the time before it; what is remembered of each is when it was given last,
and that is forgotten as soon as nothing can be left out because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.durations import text
from millstream.errors import ConfigError
from millstream.operators.distinct import OfRecords
from millstream.operators.protocol import Host, KeyedStep, Row, Share
from millstream.operators.stores import Table, in_order
from millstream.operators.waiting import give
from millstream.ops.chunks import Chunk, Int64, Mask, begins, numbers, own_columns
from millstream.ops.times.progress import BEGIN
from millstream.state.bags import Keys

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
        return Forgetting(self.name, number, False, self.keys, self.within)

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
class Forgetting(OfRecords):
    """The operator: when each was given last, as long as that matters."""

    table: ClassVar[str] = "given"
    whole: ClassVar[bool] = True
    within: int | None

    def gone_by(self, share: Share, watermark: int) -> int:
        """Nothing earlier comes any more."""
        return min(watermark, self.reached(share, watermark))

    def compare(self, rows: pa.Table, table: Table, host: Host) -> None:
        """Give records, and remember when."""
        rows = in_order(rows)
        keys, ts = Keys.of(rows), numbers(rows, "time")
        start = np.flatnonzero(begins(keys.hashes, keys.checks))
        before = table.find(keys.at(start)).numbers("ts", BEGIN)
        reach = _FOR_EVER if self.within is None else self.within
        given, latest = _spaced(ts, start, before, reach)
        own = {"ts": latest} | ({} if self.within is None else {"expires": latest + reach + 1})
        table.put_of(keys.at(start), np.zeros(len(start), np.bool_), own)
        at = np.flatnonzero(given)
        chunk = Chunk(own_columns(rows).take(pa.array(at)), ts[at], keys.names[at], self.number)
        give(host, self.name, chunk, len(chunk))


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
