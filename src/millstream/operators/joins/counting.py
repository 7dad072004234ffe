"""How many rows each side of a join has of a key, and what that means for rows by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.stores import Table
from millstream.ops.chunks import Int64, Mask, concat, numbers
from millstream.ops.keys.hashing import distinct
from millstream.ops.keys.joins import keys_of, pairs
from millstream.state.bags import Keys

_COLUMNS = ("count.0", "count.1", "since.0", "since.1", "first")


@dataclass
class Counted:
    """The keys that a batch touches: what was stored of each, and what it comes to."""

    keys: Keys
    old: dict[str, Int64]  # what was stored, by column
    now: dict[str, Int64]  # what is to be stored

    @staticmethod
    def of(new: list[pa.Table | None], counts: Table) -> Counted | None:
        """The keys of new rows of both sides, with these counted."""
        several = [rows for rows in new if rows is not None and len(rows)]
        if not several:
            return None
        both = concat([rows.select(["shard", "hash", "check"]) for rows in several])
        codes, some = distinct(keys_of(both))
        stored = counts.find(Keys.of(both, some))
        old = {name: stored.numbers(name) for name in _COLUMNS}
        found = Counted(stored.keys, old, dict(old))
        begin = 0
        for number, rows in enumerate(new):
            if rows is not None and len(rows):
                mine = codes[begin : begin + len(rows)]
                begin += len(rows)
                found._count(number, mine, rows)
        return found

    def _count(self, number: int, codes: Int64, rows: pa.Table) -> None:
        weight, count = numbers(rows, "weight"), f"count.{number}"
        more = np.zeros(len(self.keys), np.int64)
        np.add.at(more, codes, weight)
        self.now[count] = self.now[count] + more
        if number == 1:
            self._first(codes[weight > 0], numbers(rows, "ts")[weight > 0])

    def _first(self, codes: Int64, ts: Int64) -> None:
        """Since when keys have right rows that had none before."""
        first = np.full(len(self.keys), np.iinfo(np.int64).max)
        np.minimum.at(first, codes, ts)
        begins = (self.old["count.1"] == 0) & (self.now["count.1"] > 0)
        self.now["first"] = np.where(begins, first, self.now["first"])

    def shown(self, number: int, *, semi: bool) -> tuple[Mask, Mask]:
        """Whether rows of a side were given by themselves before, and whether they are now."""
        other = f"count.{1 - number}"
        was, now = self.old[other] > 0, self.now[other] > 0
        return (was, now) if semi else (~was, ~now)

    def since(self, number: int, was: Mask, now: Mask, batch: int) -> Int64:
        """The batch since which they are."""
        name = f"since.{number}"
        self.now[name] = np.where(now & ~was, batch + 1, self.old[name])
        return self.now[name]

    def before(self, number: int) -> Int64:
        """The batch since which they were."""
        return self.old[f"since.{number}"]

    @property
    def first(self) -> Int64:
        """The time of what lets left rows through."""
        return np.where(self.now["count.1"] > 0, self.now["first"], self.old["first"])

    def rows(self, chosen: Mask) -> pa.Table:
        """Some of the keys, to look them up."""
        some = self.keys.at(np.flatnonzero(chosen))
        return pa.table({"shard": some.shard, "hash": some.hashes, "check": some.checks})

    def match(self, rows: pa.Table | None) -> tuple[pa.Table | None, Int64]:
        """Rows of these keys, and the number of the key of each."""
        if rows is None or not len(rows):
            return None, np.zeros(0, np.int64)
        i, j = pairs(keys_of(rows), (self.keys.hashes, self.keys.checks))
        return (rows if len(i) == len(rows) else rows.take(pa.array(i))), j

    def store(self, counts: Table) -> None:
        """Put what is to be stored of every key."""
        counts.put_counts(self.keys, {name: self.now[name] for name in _COLUMNS})
