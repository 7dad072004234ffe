"""What changed between two snapshots of a flow.

New segments are the ones the older snapshot does not have, and in those only rows of later batches
count: merging copies old rows too. A key that is gone left a tombstone, expired, or was dropped
when all segments of its shard were merged; the last two are found by looking at the older snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from millstream.serve.keys import value_of
from millstream.serve.shelves import Shelf
from millstream.serve.slates import Snapshot, Updater
from millstream.state.segments import Segment


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


def changes(old: Snapshot, new: Snapshot, updater: Updater, prefix: str = "") -> Iterator[Change]:
    """Every key of an updater whose slate was written or is gone since an older snapshot."""
    before, after = old.stored(updater), new.stored(updater)
    then, now = old.now(updater, old.manifest.at), new.now(updater)
    for shard in sorted(before.keys() | after.keys(), key=int):
        was, has = before.get(shard, []), after.get(shard, [])
        told: set[tuple[int, int]] = set()
        for shelf, row in _written(old, new, updater, shard, was, has):
            told.add((int(shelf.hash[row]), int(shelf.check[row])))
            text = shelf.text(row)
            if not text.startswith(prefix):
                continue
            if shelf.living(row, now):
                data = shelf.slate(row)
                yield Change(updater, text, shelf.plain(row), data, shelf.ts(row))
            elif _lived(old, updater, shard, shelf, row, then):
                yield Change(updater, text, shelf.plain(row), None, shelf.ts(row))
        for shelf, row in _missing(old, new, updater, shard, was, has, then, now):
            key = (int(shelf.hash[row]), int(shelf.check[row]))
            text = shelf.text(row)
            if key not in told and text.startswith(prefix):
                told.add(key)
                yield Change(updater, text, shelf.plain(row), None, shelf.ts(row))


def _written(
    old: Snapshot,
    new: Snapshot,
    updater: Updater,
    shard: str,
    was: list[Segment],
    has: list[Segment],
) -> Iterator[tuple[Shelf, int]]:
    """The newest row of every key that a later batch wrote."""
    known = set(was)
    for segment in (one for one in has if one not in known):
        shelf = new.shelf(segment)
        for row in np.flatnonzero(shelf.batch > old.batch).tolist():
            if new.search(updater, shard, shelf.hash[row], shelf.check[row]) == (shelf, row):
                yield shelf, row


def _missing(
    old: Snapshot,
    new: Snapshot,
    updater: Updater,
    shard: str,
    was: list[Segment],
    has: list[Segment],
    then: int,
    now: int,
) -> Iterator[tuple[Shelf, int]]:
    """Rows that lived in the older snapshot and are not in the newer one."""
    dropped = not set(was) & set(has)  # a merge of all of them drops tombstones
    kept = np.unique(_hashes(new, has)) if dropped else None
    for segment in was:
        expires = segment.low <= now and segment.high > then and now > then
        if not (dropped or expires):
            continue
        shelf = old.shelf(segment)
        suspect = np.zeros(len(shelf.hash), np.bool_)
        if expires:
            suspect |= (shelf.pane > then) & (shelf.pane <= now)
        if kept is not None:
            suspect |= ~np.isin(shelf.hash, kept)
        for row in np.flatnonzero(suspect & ~shelf.gone).tolist():
            wanted, check = shelf.hash[row], shelf.check[row]
            if not _lived(old, updater, shard, shelf, row, then):
                continue
            if old.search(updater, shard, wanted, check) != (shelf, row):
                continue
            place = new.search(updater, shard, wanted, check)
            if place is None or not place[0].living(place[1], now):
                yield shelf, row


def _lived(old: Snapshot, updater: Updater, shard: str, shelf: Shelf, row: int, then: int) -> bool:
    place = old.search(updater, shard, shelf.hash[row], shelf.check[row])
    return place is not None and place[0].living(place[1], then)


def _hashes(snapshot: Snapshot, segments: list[Segment]) -> Any:
    hashes = [snapshot.shelf(segment).hash for segment in segments]
    return np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
