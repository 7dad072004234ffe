"""The first rows of every group where rows only come, and none is ever taken back.

A row that others have pushed out of the first ones never returns. So nothing is kept but what was
given: a batch reads that of the groups it touches, and puts its own rows between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.operators.filing import Filed, Tables
from millstream.operators.grouped.moves import Moves
from millstream.operators.protocol import Share
from millstream.operators.stores import Bag
from millstream.operators.topping import RANK, Topping
from millstream.operators.waiting import give, rows_for
from millstream.ops.chunks import Int64, Mask, concat, numbers, with_column
from millstream.state.bags import arranged


@dataclass(frozen=True)
class Foremost(Topping):
    """The operator: the rows that were given, and no others."""

    def run(self, share: Share) -> None:
        """Let new rows take their places among those that were given."""
        host, batch = share.host, share.host.batch
        given = Bag(self.name, "given", batch, host.control)
        new = rows_for(share)
        if new is not None:
            moves = Moves.of(new)
            before = self._listed(given.first(moves.keys))
            fresh = self._kept(moves).append_column("group", pa.array(moves.group))
            changed = self._placed(before, fresh, batch.number)
            if len(changed):
                given.add(changed)
                give(host, self.name, self._chunk(changed))
        given.store()

    def _placed(self, before: pa.Table | None, fresh: pa.Table, batch: int) -> pa.Table:
        """Rows that are given (count 1) or taken back (-1), each with the batch that gave it."""
        assert self.most is not None
        old = 0 if before is None else len(before)
        both = fresh if before is None else concat([_bare(before), fresh])
        group = numbers(both, "group")
        order, _ = arranged(both.drop_columns(["group"]), [group], self.by)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order)) - np.searchsorted(group[order], group[order]) + 1
        first, known = place <= self.most, np.arange(len(order)) < old
        stays = known & first & ~self._moved(before, place)
        came = _taken(both, first & ~stays, 1)
        came = came.append_column("since", pa.array(np.full(len(came), batch, np.int64)))
        if self.rank is not None:
            came = came.append_column(RANK, pa.array(place[first & ~stays]))
        if before is None:
            return came
        gone = _taken(before.drop_columns(["expires"]), ~stays[:old], -1)
        return concat([one for one in (gone, came) if len(one)] or [came])

    def _moved(self, before: pa.Table | None, place: Int64) -> Mask:
        """Which rows have a number that is not the one they were given with."""
        moved = np.zeros(len(place), np.bool_)
        if before is not None and self.rank is not None:
            was = numbers(before, RANK)
            moved[: len(was)] = was != place[: len(was)]
        return moved

    def stored(self) -> Tables:
        """Rows that were given, by the hash of the group."""
        return {self.name: {"given": Filed("bag", "expires", "hash")}}


def _bare(given: pa.Table) -> pa.Table:
    """Rows as they came, without what was noted when they were given."""
    noted = [name for name in (RANK, "since", "expires") if name in given.column_names]
    return given.drop_columns(noted)


def _taken(rows: pa.Table, some: Mask, count: int) -> pa.Table:
    found = rows.filter(pa.array(some)).drop_columns(["group"])
    return with_column(found, "count", np.full(len(found), count, np.int64))
