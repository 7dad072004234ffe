"""What changed between two snapshots of a flow.

New segments are the ones the older snapshot does not have, and in those only rows of later batches
count: merging copies old rows too. A key that is gone left a tombstone, expired, or was dropped
when all segments of its shard were merged; the last two are found by looking at the older snapshot.

Rows are found a segment at a time, for whoever wants to know; a prefix is looked for in what was
found. So what is asked by many is found once (`events.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.serve.keys import value_of
from millstream.serve.shelves import Bools, Int64, Shelf
from millstream.serve.slates import Snapshot, Stored, Updater


class Change(msgspec.Struct, frozen=True):
    """A key whose slate is another one than before, or gone (then `data` is None)."""

    updater: Updater
    text: str
    plain: bool
    data: bytes | None
    ts: int

    @property
    def key(self) -> Any:
        """The key as JSON says it."""
        return value_of(self.text, self.plain)


@dataclass(frozen=True)
class Changed:
    """Rows of one shelf whose keys have other slates now, or (`gone`) none any more.

    The same of a view: rows that are there more or less often, or not any more.
    """

    shelf: Shelf
    rows: Int64
    gone: bool

    def told(self, updater: Updater, prefix: str = "") -> Iterator[Change]:
        """The changes of keys whose texts begin with a prefix."""
        shelf, rows = self.shelf, self.rows
        if prefix:
            fits = pc.starts_with(shelf.key.take(pa.array(rows)), prefix)
            rows = rows[np.asarray(fits.to_numpy(zero_copy_only=False), np.bool_)]
        for row in rows.tolist():
            data = None if self.gone else shelf.slate(row)
            yield Change(updater, shelf.text(row), shelf.plain(row), data, shelf.ts(row))


def changes(old: Snapshot, new: Snapshot, updater: Updater, prefix: str = "") -> Iterator[Change]:
    """Every key of an updater whose slate was written or is gone since an older snapshot."""
    for changed in find_changes(old, new, updater):
        yield from changed.told(updater, prefix)


def find_changes(old: Snapshot, new: Snapshot, stored: Stored) -> list[Changed]:
    """The rows that tell what is another slate, or none, since an older snapshot."""
    before, after = old.stored(stored), new.stored(stored)
    if old.shards != new.shards:  # no key has to lie where it lay: all are looked at together
        before, after = ({"0": list(chain(*one.values()))} for one in (before, after))
    then, now = old.now(stored, old.manifest.at), new.now(stored)
    found: list[Changed] = []
    for shard in sorted(before.keys() | after.keys(), key=int):
        was, has = before.get(shard, []), after.get(shard, [])
        known = set(was)
        older = [old.shelf(segment) for segment in was]
        newer = [new.shelf(segment) for segment in has]
        fresh = [one not in known for one in has]
        written = _written(newer, fresh, old.batch_of(stored))
        for shelf, rows in written:
            lives = _living(shelf, rows, now)
            ended = rows[~lives]
            found.append(Changed(shelf, rows[lives], False))
            found.append(Changed(shelf, ended[_lived(older, shelf, ended, then)], True))
        merged = known.isdisjoint(has)  # a merge of all of them drops tombstones
        expiring = [merged or (one.low <= now and one.high > then) for one in was]
        for shelf, rows in _suspects(older, expiring, newer if merged else None, then, now):
            rows = rows[~_among(written, shelf, rows)]
            rows = rows[~_lived(newer, shelf, rows, now)]
            found.append(Changed(shelf, rows, True))
    return [one for one in found if len(one.rows)]


Rows = list[tuple[Shelf, Int64]]


def _written(shelves: list[Shelf], fresh: list[bool], since: int) -> Rows:
    """The newest row of every key that a later batch wrote."""
    found: Rows = []
    for at, shelf in enumerate(shelves):
        if fresh[at]:
            rows = np.flatnonzero(shelf.batch > since)
            found.append((shelf, _newest(shelf, rows, shelves[at + 1 :])))
    return found


def _suspects(
    older: list[Shelf], expiring: list[bool], merged: list[Shelf] | None, then: int, now: int
) -> Iterator[tuple[Shelf, Int64]]:
    """Rows that lived in the older snapshot, and have expired or may have been dropped since."""
    for at, shelf in enumerate(older):
        if not expiring[at]:
            continue
        suspect = shelf.expires <= now
        if merged is not None:
            dropped = np.ones(len(suspect), np.bool_)
            for other in merged:
                dropped &= other.find_all(shelf.hash, shelf.check) < 0
            suspect |= dropped
        rows = np.flatnonzero(suspect & (shelf.expires > then) & ~shelf.gone)
        yield shelf, _newest(shelf, rows, older[at + 1 :])


def _newest(shelf: Shelf, rows: Int64, later: list[Shelf]) -> Int64:
    """Those rows whose keys no later shelf has."""
    for other in later:
        rows = rows[other.find_all(shelf.hash[rows], shelf.check[rows]) < 0]
    return rows


def _lived(shelves: list[Shelf], shelf: Shelf, rows: Int64, at: int) -> Bools:
    """Which rows' keys had a living slate, in shelves from the oldest to the newest."""
    lived = np.zeros(len(rows), np.bool_)
    for other in shelves:
        places = other.find_all(shelf.hash[rows], shelf.check[rows])
        there = places >= 0
        lived[there] = _living(other, places[there], at)
    return lived


def _living(shelf: Shelf, rows: Int64, now: int) -> Bools:
    lives: Bools = (shelf.expires[rows] > now) & ~shelf.gone[rows]
    return lives


def _among(several: Rows, shelf: Shelf, rows: Int64) -> Bools:
    """Which rows' keys are among other rows."""
    among = np.zeros(len(rows), np.bool_)
    for other, some in several:
        places = other.find_all(shelf.hash[rows], shelf.check[rows])
        among |= (places >= 0) & np.isin(places, some)
    return among
