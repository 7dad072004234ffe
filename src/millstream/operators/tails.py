"""The rows of groups from the first one on that a batch has changed.

What most functions over rows say of a row follows from few rows around it, or from what they said
of the row before it. So of a group only its end is read: from the rows that a change can reach to
the last. Where that is not enough to know the rest, more of the group is read, and then all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.operators.grouped.moves import VALUE
from millstream.operators.topping import PLACE
from millstream.ops.chunks import Int64, Mask, begins, concat, numbers
from millstream.ops.keys.joins import ranges
from millstream.state.bags import Order, arranged

FEW = 64  # rows of a group that are read at first
FAILED = "failed"  # of a row that was not given: why what is said of it could not be computed
_NEVER = 2**62


@dataclass(frozen=True)
class Reach:
    """How far rows must be known around one: so many before it and after it.

    carries: also what was said of the row before it, where a function goes on from there.
    """

    back: int
    ahead: int
    carries: bool


@dataclass(frozen=True)
class Tails:
    """The ends of groups, in order: rows as they are now, and as they were given."""

    now: pa.Table  # from as many rows before the first that may differ as are needed
    group: Int64
    differs: Mask  # from the row before it in the order; or the first of its group
    shown: Mask  # rows that may be given anew
    last: Mask  # the row just before them, from which functions go on
    before: pa.Table | None  # what was given of the same rows
    carried: Int64  # for each row of `last` the place in `given` of what was said of it
    given: pa.Table | None


def tails_of(
    now: pa.Table | None,
    given: pa.Table | None,
    fresh: pa.Table,
    by: tuple[Order, ...],
    reach: Reach,
    most: int,
    groups: int,
) -> tuple[Mask, Tails | None]:
    """Which groups are known well enough, and their ends; tables have the group of every row."""
    if now is None:
        now = fresh.slice(0, 0)
    made = {name for table in (now, fresh) for name in table.column_names}
    own = sorted(name for name in made if name.startswith(VALUE) or name in PLACE)
    places = _Places.of([now, fresh] if given is None else [now, fresh, given], own, by)
    rows = _Rows.of(places, reach, groups)
    was = _Given.of(given, places, rows.cut, groups, most)
    known = rows.known(most) & was.known
    if reach.carries:
        known &= rows.go_on_from(was, known)
    if not known.any():
        return known, None
    return known, rows.tails(now.take(pa.array(places.order[0])), was, known)


@dataclass(frozen=True)
class _Places:
    """Where the rows of several tables stand in one order, table by table."""

    group: list[Int64]
    rank: list[Int64]  # equal rows have the same
    peers: list[Int64]  # rows that are equal in what was ordered by have the same
    order: list[Int64]  # how to sort each table

    @staticmethod
    def of(tables: list[pa.Table], own: list[str], by: tuple[Order, ...]) -> _Places:
        every = concat([_with(table, own) for table in tables])
        group = numbers(every, "group")
        named = tuple(one for one in by if one.column in own)
        asked = tuple(one for one in named if one.column not in PLACE)
        rank = _numbered(*arranged(every.drop_columns(["group"]), [group], named))
        peers = group  # all rows, if no order was asked for
        if asked:
            peers = _numbered(*arranged(every.select([o.column for o in asked]), [group], asked))
        sizes = np.cumsum([len(table) for table in tables])[:-1]
        several = [np.split(one, sizes) for one in (group, rank, peers)]
        sorts = [np.lexsort((r, g)) for g, r in zip(several[0], several[1], strict=True)]
        return _Places(several[0], several[1], several[2], sorts)

    def sorted(self, table: int) -> tuple[Int64, Int64, Int64]:
        """Groups, ranks and peers of one table, in its order."""
        group, rank, peers = (
            one[table][self.order[table]] for one in (self.group, self.rank, self.peers)
        )
        return group, rank, peers


@dataclass(frozen=True)
class _Rows:
    """The rows of groups as they are now, in order, and from which one on they may differ."""

    group: Int64
    rank: Int64
    peers: Int64
    begin: Int64  # of every group its first row, the first that may differ, and where it ends
    start: Int64
    end: Int64
    cut: Int64  # the place from which on rows of a group may differ
    before: int  # rows that are needed before `start`

    @staticmethod
    def of(places: _Places, reach: Reach, groups: int) -> _Rows:
        group, rank, peers = places.sorted(0)
        first = np.full(groups, _NEVER)
        np.minimum.at(first, places.group[1], places.peers[1])
        begin, end = _bounds(group, groups)
        start = np.maximum(_first_from(group, peers, first, begin, end) - reach.ahead, begin)
        inside = start < end
        equal = _peers_begin(group, peers)
        start[inside] = np.minimum(start[inside], equal[start[inside]])
        cut = first.copy()
        cut[inside] = np.minimum(cut[inside], peers[start[inside]])
        return _Rows(group, rank, peers, begin, start, end, cut, max(reach.back, 1))

    def known(self, most: int) -> Mask:
        """Groups of which all rows were read, or as many as are needed."""
        enough: Mask = (self.end - self.begin < most) | (self.start - self.before >= self.begin)
        return enough

    def go_on_from(self, was: _Given, known: Mask) -> Mask:
        """Groups of which it is known what was said of the row to go on from, or that have none."""
        continues = self.start > self.begin
        same = np.zeros(len(known), np.bool_)
        there = np.flatnonzero(continues & known & (was.start > was.begin))
        same[there] = was.is_last(there, self.rank[self.start[there] - 1])
        found: Mask = ~continues | same
        return found

    def tails(self, now: pa.Table, was: _Given, known: Mask) -> Tails:
        """The ends of some groups."""
        low = np.maximum(self.start - self.before, self.begin)
        sizes = (self.end - low)[known]
        at, _ = ranges(low[known], self.end[known])
        shown = at >= np.repeat(self.start[known], sizes)
        continues = self.start > self.begin
        last = at == np.repeat(np.where(continues, self.start - 1, -1)[known], sizes)
        group = self.group[at]
        differs = begins(group, self.peers[at])
        carried = was.start[group[last]] - 1
        return Tails(
            now.take(pa.array(at)), group, differs, shown, last, was.rows(known), carried, was.table
        )


@dataclass(frozen=True)
class _Given:
    """What was given of groups, and from which row on it may differ."""

    table: pa.Table | None
    rank: Int64
    begin: Int64
    start: Int64
    end: Int64
    known: Mask

    @staticmethod
    def of(table: pa.Table | None, places: _Places, cut: Int64, groups: int, most: int) -> _Given:
        none = np.zeros(groups, np.int64)
        if table is None:
            nothing = np.zeros(0, np.int64)
            return _Given(None, nothing, none, none, none, np.ones(groups, np.bool_))
        group, rank, peers = places.sorted(2)
        begin, end = _bounds(group, groups)
        start = _first_from(group, peers, cut, begin, end)
        known = (end - begin < most) | (start > begin)
        return _Given(table.take(pa.array(places.order[2])), rank, begin, start, end, known)

    def is_last(self, groups: Int64, rank: Int64) -> Mask:
        """Whether the row before the first is this one, was given, and no other is equal to it."""
        at = self.start[groups] - 1
        same = self.rank[at] == rank
        if self.table is not None and FAILED in self.table.column_names:
            same &= np.asarray(self.table.column(FAILED).is_null())[at]
        earlier = np.maximum(at - 1, 0)
        twin = (at > self.begin[groups]) & (self.rank[earlier] == rank)
        unique: Mask = same & ~twin
        return unique

    def rows(self, known: Mask) -> pa.Table | None:
        """From there on, of some groups."""
        if self.table is None:
            return None
        at, _ = ranges(self.start[known], self.end[known])
        return self.table.take(pa.array(at))


def _with(table: pa.Table, own: list[str]) -> pa.Table:
    """The group and a row's own columns, null where it was stored without one."""
    columns: dict[str, Any] = {
        name: table.column(name) if name in table.column_names else pa.nulls(len(table))
        for name in ("group", *own)
    }
    return pa.table(columns)


def _numbered(order: Int64, starts: Mask) -> Int64:
    """The place of every row among rows that differ, in an order."""
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(starts)
    return number


def _bounds(group: Int64, groups: int) -> tuple[Int64, Int64]:
    """Where every group begins and ends; rows are in order."""
    numbers = np.arange(groups)
    return np.searchsorted(group, numbers), np.searchsorted(group, numbers, "right")


def _first_from(group: Int64, peers: Int64, least: Int64, begin: Int64, end: Int64) -> Int64:
    """The first row of every group that is not before a place; rows are in order."""
    counts = np.bincount(group[peers < least[group]], minlength=len(begin))
    found: Int64 = begin + counts
    return np.minimum(found, end)


def _peers_begin(group: Int64, peers: Int64) -> Int64:
    """Of every row the first that is equal to it in what was ordered by."""
    at = np.where(begins(group, peers), np.arange(len(group)), 0)
    found: Int64 = np.maximum.accumulate(at)
    return found
