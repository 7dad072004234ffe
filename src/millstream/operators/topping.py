"""The first rows of every group where rows come and go.

All rows of a group are kept in a bag in their order, of which the first are read. What was given of
a group is kept beside it: what is no more among the first is taken back, what has become one of
them is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.operators.filing import Filed, Tables
from millstream.operators.grouped.arriving import Arriving, ByGroup, names_of
from millstream.operators.grouped.moves import VALUE, Moves
from millstream.operators.protocol import Host, Share
from millstream.operators.stores import Bag
from millstream.operators.waiting import give, rows_for
from millstream.ops.chunks import Chunk, Int64, concat, numbers, with_column
from millstream.ops.keys.hashing import key_names
from millstream.ops.mixed import exact_columns, exactly
from millstream.state.bags import Entries, Order, arranged

RANK = "rank"
PLACE = ("ts", "src", "pos", "window")  # which of two rows comes first that are equal else


@dataclass(frozen=True)
class Topping(ByGroup):
    """The operator: rows of groups in order, and those that were given."""

    by: tuple[Order, ...]
    most: int | None = None  # None: all of them
    rank: str | None = None

    def inlet(self, host: Host) -> Arriving:
        """Rows by the hash of their group."""
        return Arriving(self, host, named=True)

    def run(self, share: Share) -> None:
        """Bring groups up to date; give what has become one of the first, take back what was."""
        host, batch, control = share.host, share.host.batch, share.host.control
        rows = Bag(self.name, "rows", batch, control, self.by)
        given = Bag(self.name, "given", batch, control)
        new = rows_for(share)
        if new is not None:
            moves = Moves.of(new)
            rows.add(self._kept(moves))
            before, now = given.first(moves.keys), rows.first(moves.keys, self.most)
            changed = changed_rows(self._listed(before), self._numbered(now), batch.number)
            if changed is not None:
                given.add(changed)
                give(host, self.name, self._chunk(changed))
        rows.store()
        given.store()

    def _kept(self, moves: Moves) -> pa.Table:
        """What comes and goes, as it is stored."""
        marks = ("weight", *key_names(self.keys))
        kept = [name for name in moves.table.column_names if name not in marks]
        return moves.table.select(kept).append_column("count", pa.array(moves.weight))

    def _listed(self, found: Entries) -> pa.Table | None:
        """What was given of some groups, row by row."""
        group, rows = found.repeated()
        return None if rows is None else rows.append_column("group", pa.array(group))

    def _numbered(self, found: Entries) -> pa.Table | None:
        """What is to be given, row by row, with its number."""
        rows = self._listed(found)
        if rows is None or self.rank is None:
            return rows
        group = numbers(rows, "group")
        nth = np.arange(len(group)) - np.searchsorted(group, group)
        return rows.append_column(RANK, pa.array(nth + 1))

    def _chunk(self, changed: pa.Table) -> Chunk:
        names = [name for name in changed.column_names if name.startswith(VALUE)]
        exact = set(exact_columns(changed))
        columns = {name.removeprefix(VALUE): changed.column(name) for name in names}
        ts, src, pos, window, since, weight = (
            numbers(changed, name) for name in (*PLACE, "since", "count")
        )
        row = names_of(src, pos, window)
        if self.rank is not None:
            if self.rank in columns:  # of functions that do not say which columns they give
                raise taken_rank(self.name, self.rank)
            nth = numbers(changed, RANK)
            columns[self.rank] = changed.column(RANK)
            hashes = numbers(changed, "hash")
            row = ((hashes >> np.uint64(2)).astype(np.int64) + nth * 1_000_003) & ((1 << 62) - 1)
        table = exactly(columns, [n.removeprefix(VALUE) for n in names if n in exact])
        return Chunk(table, ts, row, self.number, weight, since)

    def stored(self) -> Tables:
        """Rows of groups in order, and those that were given, by the hash of the group."""
        rows, given = Filed("bag", "expires", "hash", self.by), Filed("bag", "expires", "hash")
        return {self.name: {"rows": rows, "given": given}}


def taken_rank(step: str, rank: str) -> ConfigError:
    """What is said where rows have a column of the name that their number is to have."""
    return ConfigError(
        f"{step}: rank={rank!r}: rows have a column {rank!r} of their own, which their number "
        "would overwrite; give the number another name"
    )


def changed_rows(before: pa.Table | None, now: pa.Table | None, batch: int) -> pa.Table | None:
    """Rows that are given (count 1) or taken back (-1), each with the batch that gave it."""
    sides = [(before, -1), (now, 1)]
    parts = [
        rows.append_column("side", pa.array(np.full(len(rows), sign)))
        for rows, sign in sides
        if rows is not None and len(rows)
    ]
    if not parts:
        return None
    both = concat([_stamped(part, batch) for part in parts])
    side = numbers(both, "side")
    plain = both.drop_columns(["side", "since", "shard", "group"])
    group = numbers(both, "group")
    order, begins = arranged(plain, [group], ())
    same = np.empty(len(order), np.int64)
    same[order] = np.cumsum(begins)
    sizes = [np.bincount(same[side == sign], minlength=int(same.max()) + 1) for sign in (-1, 1)]
    stays = np.minimum(*sizes)[same]
    differs = _nth(same * 2 + (side > 0)) >= stays
    if not differs.any():
        return None
    at = pa.array(np.flatnonzero(differs))
    found = both.take(at).drop_columns(["group", "side"])
    return with_column(found, "count", side[differs])


def _stamped(rows: pa.Table, batch: int) -> pa.Table:
    """Rows with the batch that gave them: this one, if they were not given before."""
    if "since" in rows.column_names:
        return rows
    return rows.append_column("since", pa.array(np.full(len(rows), batch, np.int64)))


def _nth(codes: Int64) -> Int64:
    """The number of every row among those with the same code, in their order."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    nth = np.empty(len(codes), np.int64)
    nth[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return nth
