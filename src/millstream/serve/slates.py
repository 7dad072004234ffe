"""Slates as one committed batch left them.

A snapshot belongs to one manifest and never changes: whatever is asked of it, the answers belong
together. It reads memory-mapped segments without a lock; a key is searched by its hash from the
newest segment of its shard to the oldest. `following.py` moves from snapshot to snapshot.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import ConfigError
from millstream.ops.codec import decode
from millstream.ops.keys.texts import meanings
from millstream.ops.updates.job import NEVER
from millstream.serve.keys import hashes_of, value_of
from millstream.serve.shelves import Shelf, Shelves
from millstream.state.manifests import Manifest, shards_of
from millstream.state.segments import Missing, Segment
from millstream.state.tables import newest
from millstream.state.unflushed import BATCH, UNFLUSHED, both, has_unflushed

NOT_YET = -(2**62)
_PLAIN_CODEC = "msgpack"
_LEAST_CANDIDATES = 64

Decoder = Callable[[bytes], Any]

_STORED = ["key", "plain", "ts", "batch", "slate"]


@dataclass(frozen=True)
class Updater:
    """An updater, as the checkpoint describes it."""

    table: ClassVar[str] = "slates"
    name: str
    family: str
    keys: tuple[str, ...]
    ttl: int | None
    clock: str
    codec: str
    cyclic: bool
    partitioned: bool = False  # keys lie where a function of the user says, not by their hash


@dataclass(frozen=True)
class KeptView:
    """A view, as the checkpoint describes it."""

    table: ClassVar[str] = "rows"
    clock: ClassVar[str] = "event"
    view: str  # the name it is read by
    name: str
    family: str
    columns: tuple[Any, ...]  # names and types, as far as they are known


Stored = Updater | KeptView  # what is read from outside


class Slate(msgspec.Struct, frozen=True):
    """One slate: its key, what it holds, and the event time of its last write."""

    key: Any
    slate: Any
    ts: int  # microseconds
    text: str  # the key as text


@dataclass(frozen=True)
class Page:
    """Some slates in the order of their keys' texts, and where the next page begins."""

    slates: list[Slate]
    next: str | None


class Unknown(ConfigError):
    """There is no such updater or view; the message names what there is."""


class Snapshot:
    """All slates of a flow after one batch."""

    def __init__(
        self,
        manifest: Manifest,
        program: dict[str, Any],
        shelves: Shelves,
        decoders: Mapping[str, Decoder] | None = None,
    ) -> None:
        self.manifest = manifest
        self.program = program
        self._shelves = shelves
        self._decoders = {} if decoders is None else decoders
        self._open: dict[Segment, Shelf] = {}
        self._alone: dict[str, bool] = {}  # updater -> whether only flushed slates can be read

    @property
    def batch(self) -> int:
        """The batch this reflects; -1 if none was committed."""
        return self.manifest.batch

    @cached_property
    def shards(self) -> int:
        """Into how many shards its state is parted."""
        return shards_of(self.manifest, self.program)

    @cached_property
    def updaters(self) -> dict[str, Updater]:
        """All updaters of the flow."""
        return {
            name: Updater(
                name,
                about.get("family", name),
                _columns(about.get("keys", ())),
                about.get("ttl"),
                about.get("clock", "event"),
                about.get("codec", _PLAIN_CODEC),
                bool(about.get("cyclic")),
                bool(about.get("partition")),
            )
            for name, about in self.program.get("operators", {}).items()
            if about.get("kind") == "update"
        }

    def updater(self, name: str) -> Updater:
        """One of them; an unknown one is refused with the nearest known."""
        found = self.updaters.get(name)
        if found is None:
            raise Unknown(self._unknown(name, list(self.updaters), "updater"))
        return found

    @cached_property
    def views(self) -> dict[str, KeptView]:
        """All views of the flow, by the names they are read by."""
        found = (
            KeptView(
                about["view"], name, about.get("family", name), tuple(about.get("columns", ()))
            )
            for name, about in self.program.get("operators", {}).items()
            if about.get("kind") == "kept"
        )
        return {one.view: one for one in found}

    def view(self, name: str) -> KeptView:
        """One of them: as it is written, or the only one that differs by case."""
        found = self.views.get(name)
        if found is None:
            alike = [one for one in self.views if one.lower() == name.lower()]
            if len(alike) != 1:
                told = self._not_kept(name) or self._unknown(name, list(self.views), "view")
                raise Unknown(told)
            found = self.views[alike[0]]
        return found

    def _not_kept(self, name: str) -> str | None:
        """What to say of a step that can be read in the flow, and not from outside."""
        steps = [one["name"] for one in self.program.get("graph", {}).get("nodes", ())]
        step = next((one for one in steps if one.lower() == name.lower()), None)
        if step is None:
            return None
        return (
            f"the rows of {step!r} are not kept, so they cannot be read here: make it with CREATE "
            f"MATERIALIZED VIEW or WITH (kept = true), in Python with .view({step!r}); kept are: "
            f"{', '.join(sorted(self.views)) or 'none'}"
        )

    def is_step(self, name: str) -> bool:
        """Whether the flow has a step of that name, whatever its rows become."""
        return self._not_kept(name) is not None

    def _unknown(self, name: str, known: list[str], what: str) -> str:
        if not self.program:
            return f"there is no {what} {name!r} yet: the flow is starting, ask again"
        near = difflib.get_close_matches(name, known, 1)
        if near:
            return f"there is no {what} {name!r}; did you mean {near[0]!r}?"
        return f"there is no {what} {name!r}; there are: {', '.join(sorted(known)) or 'none'}"

    def stored(self, one: Stored) -> dict[str, list[Segment]]:
        """The segments of an updater or view per shard, the oldest first."""
        tables = self.manifest.segments.get(one.family, {})
        if not has_unflushed(tables) or self._flushed_only(one):
            return tables.get(one.table, {})
        return both(tables, one.table)

    def _flushed_only(self, one: Stored) -> bool:
        """Whether slates in memory alone cannot be read here; what can is kept open."""
        if one.family not in self._alone:
            try:
                for segments in self.manifest.segments[one.family][UNFLUSHED].values():
                    for segment in segments:
                        self.shelf(segment)
                self._alone[one.family] = False
            except Missing:
                self._alone[one.family] = True
        return self._alone[one.family]

    def batch_of(self, one: Stored) -> int:
        """The batch its slates are of: this one, or that of the last flush if later ones are lost.

        They are in the memory of the machine the flow runs on, and of nobody else.
        """
        tables = self.manifest.segments.get(one.family, {})
        if not has_unflushed(tables) or not self._flushed_only(one):
            return self.batch
        return self.manifest.memos.get(one.family, {}).get(BATCH, -1)

    def behind(self) -> bool:
        """Whether some slates can be told as of their last flush only."""
        return any(self.batch_of(one) != self.batch for one in self.updaters.values())

    def rows(self, one: Stored) -> int:
        """How many rows are stored: at least as many as there are slates or rows."""
        return sum(segment.rows for shard in self.stored(one).values() for segment in shard)

    def now(self, one: Stored, wall: float | None = None) -> int:
        """Slates that expire at or before this are gone; those that never do are not."""
        if one.clock == "wall":
            return int((time.time() if wall is None else wall) * 1e6)
        return min(self.manifest.closed.get(one.name, NOT_YET), NEVER - 1)

    def open_all(self) -> None:
        """Open (and check) every segment, so that later reads find them open."""
        every: list[Stored] = [*self.updaters.values(), *self.views.values()]
        for one in every:
            for segments in self.stored(one).values():
                for segment in segments:
                    self.shelf(segment)

    def shelf(self, segment: Segment) -> Shelf:
        """An opened segment."""
        found = self._open.get(segment)
        if found is None:
            found = self._open[segment] = self._shelves.open(segment, self.manifest.files)
        return found

    # -- one slate ------------------------------------------------------------------------------

    def get(self, updater: str, key: Any) -> Slate | None:
        """The slate of a key given as a Python value; several key columns are a tuple."""
        about = self.updater(updater)
        place = self._find(about, key, self.now(about))
        return None if place is None else self._slate(about, *place)

    def get_text(self, updater: str, text: str) -> Slate | None:
        """The slate of a key given as text: a string, or else what it stands for as JSON."""
        about = self.updater(updater)
        place = self._find_text(about, text, self.now(about))
        return None if place is None else self._slate(about, *place)

    def rows_of(self, updater: str, texts: Iterable[str]) -> Iterator[pa.Table]:
        """The stored rows of keys given as text, each looked up; columns as `scan` has them."""
        about = self.updater(updater)
        now = self.now(about)
        for text in dict.fromkeys(texts):
            place = self._find_text(about, text, now)
            if place is not None:
                row = place[0].rows.slice(place[1], 1)
                yield pa.Table.from_batches([row]).select(_STORED)

    def _find_text(self, updater: Updater, text: str, now: int) -> tuple[Shelf, int] | None:
        places = (self._find(updater, key, now) for key in meanings(text))
        return next((place for place in places if place is not None), None)

    def _find(self, updater: Updater, key: Any, now: int) -> tuple[Shelf, int] | None:
        hashes = hashes_of(key)
        if hashes is None:
            return None
        shard = 0 if updater.cyclic else (int(hashes[0]) >> 1) % self.shards
        several = list(self.stored(updater)) if updater.partitioned else [str(shard)]
        for one in several:
            place = self.search(updater, one, *hashes)
            if place is not None:
                return place if place[0].living(place[1], now) else None
        return None

    def search(
        self, updater: Updater, shard: str, wanted: np.uint64, check: np.uint64
    ) -> tuple[Shelf, int] | None:
        """The newest row of a key, living or not."""
        for segment in reversed(self.stored(updater).get(shard, [])):
            shelf = self.shelf(segment)
            row = shelf.find(wanted, check)
            if row >= 0:
                return shelf, row
        return None

    def _slate(self, updater: Updater, shelf: Shelf, row: int) -> Slate:
        text = shelf.text(row)
        return Slate(
            value_of(text, shelf.plain(row)),
            self.decode(updater, shelf.slate(row)),
            shelf.ts(row),
            text,
        )

    def decode(self, updater: Updater, data: bytes) -> Any:
        """What a stored slate holds; bytes if its codec is not known here, or fails."""
        if updater.codec == _PLAIN_CODEC:
            return decode(data)
        decoder = self._decoders.get(updater.name)
        try:
            return data if decoder is None else decoder(data)
        except Exception:  # a user's codec may raise anything; the slate is there all the same
            return data

    # -- many -----------------------------------------------------------------------------------

    def page(
        self,
        updater: str,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        seconds: float | None = None,
        size: int | None = None,
    ) -> Page:
        """Slates whose keys' texts begin with `prefix` and come after `after`, in that order.

        A string and another key with the same text are never parted, so a page can have one more
        than `limit`. If time runs out, or the slates have `size` bytes as they are stored, the page
        ends early; `next` says where to go on.
        """
        about = self.updater(updater)
        now, begun, stored = self.now(about), time.monotonic(), 0
        found: list[Slate] = []
        while True:
            wanted = max(limit - len(found) + 1, _LEAST_CANDIDATES)
            places, bound = self._candidates(about, prefix, after, wanted)
            for text, shard, shelf, row in places:
                if bound is not None and text > bound:
                    break
                place = self.search(about, shard, shelf.hash[row], shelf.check[row])
                if place != (shelf, row) or not shelf.living(row, now):
                    continue
                full = len(found) >= limit or (size is not None and stored >= size)
                if full and text != found[-1].text:
                    return Page(found, found[-1].text)
                found.append(self._slate(about, shelf, row))
                stored += len(text) + shelf.size(row)
            if bound is None:
                return Page(found, None)
            after = bound
            if seconds is not None and time.monotonic() - begun > seconds:
                return Page(found, bound)

    def _candidates(
        self, updater: Updater, prefix: str, after: str | None, count: int
    ) -> tuple[list[tuple[str, str, Shelf, int]], str | None]:
        """The first rows in key order, and the text up to which none is missing (None: all are)."""
        places: list[tuple[str, str, Shelf, int]] = []
        bound: str | None = None
        for shard, segments in self.stored(updater).items():
            for segment in segments:
                shelf = self.shelf(segment)
                rows, whole = _first_rows(shelf.key, prefix, after, count)
                texts = shelf.key.take(rows).to_pylist()
                places.extend(
                    (text, shard, shelf, row)
                    for text, row in zip(texts, rows.to_pylist(), strict=True)
                )
                if not whole:  # another row may have the last text
                    last = max(texts)
                    safe = max(text for text in texts if text != last)
                    bound = safe if bound is None else min(bound, safe)
        places.sort(key=lambda place: (place[0], place[2].hash[place[3]]))
        return places, bound

    def scan(self, updater: str) -> Iterator[pa.Table]:
        """All living slates, shard by shard: key, plain, ts, batch, slate (as stored)."""
        about = self.updater(updater)
        now = self.now(about)
        for segments in self.stored(about).values():
            rows = newest([pa.Table.from_batches([self.shelf(one).rows]) for one in segments])
            if rows is not None:
                living = pc.and_(
                    pc.invert(rows.column("gone")), pc.greater(rows.column("expires"), now)
                )
                yield rows.filter(living).select(_STORED)


def _first_rows(
    keys: pa.Array, prefix: str, after: str | None, count: int
) -> tuple[pa.Array, bool]:
    """The rows of the smallest keys in a range, and whether these are all of them."""
    mask = None
    if prefix:
        mask = pc.starts_with(keys, prefix)
    if after is not None:
        later = pc.greater(keys, after)
        mask = later if mask is None else pc.and_(mask, later)
    rows = (
        pa.array(np.arange(len(keys), dtype=np.uint64))
        if mask is None
        else pc.indices_nonzero(mask)
    )
    if len(rows) <= count:
        return rows, True
    inside = keys if mask is None else keys.take(rows)
    first = pc.select_k_unstable(inside, k=count, sort_keys=[("key", "ascending")])
    return rows.take(first), False


def _columns(keys: list[Any]) -> tuple[str, ...]:
    """The key columns; where streams have different names for one, all of them."""
    several = [one if isinstance(one, list) else [one] for one in keys]
    if several and not isinstance(keys[0], list):
        return tuple(keys)
    return tuple("/".join(dict.fromkeys(names)) for names in zip(*several, strict=False))
