"""Bases: what was stored at one batch, whole, for the manifests after it to say what has changed.

With much state most of a manifest would be the same in every batch. So from a size on, the segments
are written as a file of their own now and then, beside the manifests, and these name it by its
digest and hold only the shards and files that are others since. A manifest needs its own base and
nothing else: what happens to another manifest does not touch it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Hashable
from functools import lru_cache

import msgspec

from millstream.errors import CheckpointError
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import Storage
from millstream.state.values import Int64, Number

Segments = dict[str, dict[str, dict[Number, list[Segment]]]]  # operator, table, shard


class Change(msgspec.Struct, frozen=True):
    """What becomes another in what is stored."""

    segments: Segments  # the shards that changed, with what they consist of now
    files: dict[str, SegmentFile]  # that are new
    gone: list[str]  # files that nothing uses any more


class Base(msgspec.Struct, frozen=True):
    """All that was stored at a batch."""

    batch: Int64
    segments: Segments
    files: dict[str, SegmentFile]


_base = msgspec.json.Decoder(Base)


def applied(
    segments: Segments, files: dict[str, SegmentFile], change: Change
) -> tuple[Segments, dict[str, SegmentFile]]:
    """What is stored after a change; tables it does not touch are the same objects."""
    now = dict(segments)
    for owner, tables in change.segments.items():
        mine = now[owner] = dict(now.get(owner, {}))
        for table, shards in tables.items():
            into = mine[table] = dict(mine.get(table, {}))
            into.update(shards)
            for shard in [shard for shard, found in shards.items() if not found]:
                into.pop(shard, None)
    used = {**files, **change.files}
    for name in change.gone:
        used.pop(name, None)
    return now, used


def base_name(batch: int) -> str:
    """The file name of a base, beside the manifests."""
    return f"{batch:08d}.base"


def write_base(directory: Storage, base: Base) -> str:
    """Write a base; gives its digest."""
    body = msgspec.json.encode(base)
    directory.put(base_name(base.batch), body + f"\n{zlib.crc32(body):08x}\n".encode())
    return _digest(body)


def read_base(directory: Storage, batch: int, digest: str) -> Base:
    """The base with this digest; anything else in its place is refused."""
    name = base_name(batch)
    where = directory.where(name)
    try:
        base, found = _load(directory, name, directory.stamp(name))
    except FileNotFoundError as error:
        raise CheckpointError(f"base {where}, which manifests build on, is missing") from error
    if found != digest or base.batch != batch:
        raise CheckpointError(f"base {where} is not the one that its manifests were written on")
    return base


@lru_cache(maxsize=2)
def _load(directory: Storage, name: str, stamp: Hashable) -> tuple[Base, str]:
    """A base as it was seen: readers that follow a flow need the same one again and again."""
    where = directory.where(name)
    body, _, tail = directory.read(name).rstrip(b"\n").rpartition(b"\n")
    if not body or tail != f"{zlib.crc32(body):08x}".encode():
        raise CheckpointError(f"base {where} is damaged (its checksum does not match)")
    try:
        return _base.decode(body), _digest(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"base {where} cannot be read: {error}") from error


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


class Since:
    """What has changed since the last base: what the next manifest must say."""

    def __init__(self, batch: int, digest: str) -> None:
        self.batch, self.digest, self.tip = batch, digest, batch
        self._shards: dict[tuple[str, str], set[str]] = {}
        self._new: set[str] = set()
        self._gone: set[str] = set()

    def add(self, change: Change, batch: int) -> None:
        """Take in what a batch did."""
        self.tip = batch
        for owner, tables in change.segments.items():
            for table, shards in tables.items():
                self._shards.setdefault((owner, table), set()).update(shards)
        self._new.update(change.files)
        for name in change.gone:
            if name in self._new:
                self._new.discard(name)
            else:
                self._gone.add(name)

    def change(self, segments: Segments, files: dict[str, SegmentFile]) -> Change:
        """The base and this are what is stored now."""
        changed: Segments = {}
        for (owner, table), shards in self._shards.items():
            now = segments.get(owner, {}).get(table, {})
            into = changed.setdefault(owner, {}).setdefault(table, {})
            into.update({shard: now.get(shard, []) for shard in sorted(shards)})
        new = {name: files[name] for name in sorted(self._new)}
        return Change(changed, new, sorted(self._gone))
