"""Pages: a base parted by shards, so that tasks read for themselves what lies in theirs.

What the driver would send to every task is what the task finds here: the segments of its shards as
they were at the base. So only what has changed since travels. A page has the shards that are equal
modulo the number of pages. The file is written with its base, named by the same batch, and belongs
to it by its digest; whoever has read a page keeps it, because the next batch wants it again.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from functools import lru_cache
from math import gcd
from typing import Any

import msgspec

from millstream.errors import CheckpointError
from millstream.state.bases import Base, Segments
from millstream.state.segments import Segment, SegmentFile
from millstream.state.storage import Storage

PAGES = 256
_KEPT = 250_000  # segments that a process keeps of pages it has read
_PLACE = struct.Struct("<QII")  # where a page begins, its size and its checksum
_PLACES = PAGES * _PLACE.size
_HEAD = 32 + _PLACES + 4  # the digest of the base, the places, and the checksum of both

Packed = dict[str, dict[str, dict[str, list[Any]]]]  # operator, table, shard
_packed = msgspec.msgpack.Decoder(tuple[Packed, list[SegmentFile]])


class StatePage(msgspec.Struct, frozen=True):
    """What was stored in some shards."""

    segments: Segments
    files: dict[str, SegmentFile]
    size: int  # how many segments there are


def pages_name(batch: int) -> str:
    """The file with the pages of a base, beside the manifests."""
    return f"{batch:08d}.pages"


def write_pages(directory: Storage, base: Base, digest: str) -> None:
    """Write a base again, page by page."""
    parts: list[Segments] = [{} for _ in range(PAGES)]
    for owner, tables in base.segments.items():
        for table, shards in tables.items():
            for shard, segments in shards.items():
                part = parts[int(shard) % PAGES]
                part.setdefault(owner, {}).setdefault(table, {})[shard] = segments
    bodies, places, at = [], [], _HEAD
    for part in parts:
        bodies.append(pack(part, base.files))
        places.append(_PLACE.pack(at, len(bodies[-1]), zlib.crc32(bodies[-1])))
        at += len(bodies[-1])
    head = b"".join([digest.encode(), *places])
    check = zlib.crc32(head).to_bytes(4, "little")
    directory.put(pages_name(base.batch), b"".join([head, check, *bodies]))


def pages_of(part: int, parts: int) -> range:
    """The pages with shards that are equal to `part` modulo `parts`."""
    step = gcd(parts, PAGES)
    return range(part % step, PAGES, step)


def pack(segments: Segments, files: dict[str, SegmentFile]) -> bytes:
    """Segments with the files they are in; these are few, and named by their number."""
    numbers: dict[str, int] = {}
    packed: Packed = {
        owner: {
            table: {
                shard: [
                    (numbers.setdefault(one.file, len(numbers)), *msgspec.structs.astuple(one)[1:])
                    for one in several
                ]
                for shard, several in shards.items()
            }
            for table, shards in tables.items()
        }
        for owner, tables in segments.items()
    }
    return msgspec.msgpack.encode((packed, [files[name] for name in numbers]))


def unpack(data: bytes) -> tuple[Segments, dict[str, SegmentFile]]:
    """What `pack` packed."""
    packed, files = _packed.decode(data)
    segments: Segments = {
        owner: {
            table: {
                shard: [Segment(files[number].file, *rest) for number, *rest in several]
                for shard, several in shards.items()
            }
            for table, shards in tables.items()
        }
        for owner, tables in packed.items()
    }
    return segments, {file.file: file for file in files}


class _Pages:
    """Pages that this process has read, as long as they are not too many."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[Storage, str, int], StatePage] = OrderedDict()
        self._size = 0

    def get(self, directory: Storage, batch: int, digest: str, number: int) -> StatePage:
        key = (directory, digest, number)
        page = self._read.get(key)
        if page is None:
            page = self._read[key] = _read(directory, batch, digest, number)
            self._size += page.size
        self._read.move_to_end(key)
        while self._size > _KEPT and len(self._read) > 1:
            _, gone = self._read.popitem(last=False)
            self._size -= gone.size
        return page


_pages = _Pages()
read_page = _pages.get


def _read(directory: Storage, batch: int, digest: str, number: int) -> StatePage:
    name = pages_name(batch)
    try:
        start, size, check = _places(directory, batch, digest)[number]
        data = directory.read_range(name, start, size)
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory.where(name)}, which tasks read, is missing") from error
    if len(data) != size or zlib.crc32(data) != check:
        raise CheckpointError(f"{directory.where(name)} is damaged (its checksum does not match)")
    segments, files = unpack(data)
    shards = (one for tables in segments.values() for one in tables.values())
    return StatePage(segments, files, sum(len(found) for one in shards for found in one.values()))


@lru_cache(maxsize=2)
def _places(directory: Storage, batch: int, digest: str) -> list[tuple[int, int, int]]:
    """Where each page is."""
    head = directory.read_range(pages_name(batch), 0, _HEAD)
    where = directory.where(pages_name(batch))
    if len(head) != _HEAD or head[:32] != digest.encode():
        raise CheckpointError(f"{where} is not what belongs to its base")
    if zlib.crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
        raise CheckpointError(f"{where} is damaged (its checksum does not match)")
    return list(_PLACE.iter_unpack(head[32:-4]))
