"""The blocks of stored files in a random order: what is sampled when answers are wanted early.

They are cut and drawn once, before anything is read, and kept in the checkpoint, so that whoever
goes on after a kill reads the rest of the same order.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from millstream.api.sources import Files
from millstream.errors import CheckpointError, RunError
from millstream.io.formats import READER, Format
from millstream.io.readers import Split, is_gzip, plan_splits
from millstream.ops.chunks import OFFSET_BITS, Int64
from millstream.run.sources.files.extents import Extents
from millstream.run.sources.files.listing import list_files, list_seen, look
from millstream.run.sources.tracking import Probe
from millstream.state.storage import Storage

Floats = np.ndarray[Any, np.dtype[np.float64]]

# Few blocks say little, and each costs as much as reading some thousand rows.
_FEWEST, _MANY = 320, 700  # a tenth of them have bounds
_GOOD_BYTES, _GOOD_ROWS = 256 * 1024, 10_000
_LEAST_BYTES, _LEAST_ROWS = 8 * 1024, 200
_MOST_BYTES = 8 * 1024 * 1024


class File(msgspec.Struct, frozen=True):
    """A file as it was when its blocks were cut."""

    path: str
    inode: int
    size: int
    changed: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Records of one file, by bytes or rows, as a split says."""

    file: int
    start: int
    end: int
    size: int  # in the measure all blocks share


@dataclass(frozen=True)
class Population:
    """All blocks, in the order in which they are read; so it is kept, too."""

    seed: int
    files: list[File]
    blocks: list[Block]
    drawn: int = 0  # when; in checkpoints of before it is not there

    @cached_property
    def sizes(self) -> Floats:
        """How large blocks are, in the order in which they are read."""
        return np.array([block.size for block in self.blocks], np.float64)

    @cached_property
    def by_place(self) -> Int64:
        """The blocks in the order of positions."""
        return np.argsort(self._starts, kind="stable")

    @cached_property
    def _starts(self) -> Int64:
        return np.array([(b.file << OFFSET_BITS) + b.start for b in self.blocks], np.int64)

    @property
    def starts(self) -> Int64:
        """Where blocks begin, ascending."""
        return self._starts[self.by_place]

    @cached_property
    def places(self) -> Int64:
        """For each block in the order of reading, its place in the order of positions."""
        places = np.empty(len(self.blocks), np.int64)
        places[self.by_place] = np.arange(len(self.blocks))
        return places

    def split(self, source: int, block: Block) -> Split:
        """A block as a task reads it.

        All records without a time of their own arrived at once, so that what goes by their order
        (`first`, `reduce`) goes by that of the files, whenever a block has its turn.
        """
        file, at = self.files[block.file], (block.start, block.end)
        return Split(source, block.file, file.path, *at, inode=file.inode, arrival=self.drawn)

    # -- keeping --------------------------------------------------------------------------------

    def write(self, place: Storage, name: str) -> None:
        """Keep it for those who go on."""
        body = msgspec.msgpack.encode(self)
        place.put(name, zlib.crc32(body).to_bytes(4, "big") + body)

    @staticmethod
    def read(place: Storage, name: str) -> Population | None:
        """The one that was kept; None if none was."""
        if not place.exists(name):
            return None
        data = place.read(name)
        try:
            if zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
                raise msgspec.DecodeError("its checksum does not match")
            return _population.decode(data[4:])
        except msgspec.DecodeError as error:
            raise CheckpointError(
                f"{place.where(name)} is damaged ({error}): which blocks were read cannot be "
                "known; begin again with a new checkpoint"
            ) from error

    def check(self, spec: Files) -> None:
        """All files are what they were, and there are no others."""
        known = {file.path for file in self.files}
        more = [path for path in list_files(spec) if path not in known and _holds(path)]
        if more:
            raise RunError(
                f"{len(more)} file{'s' * (len(more) != 1)} came after blocks were drawn (the first "
                f"is {more[0]}), and the answer would be without them: move them away, or begin "
                "again with a new checkpoint"
            )
        for file in self.files:
            seen = look(file.path)
            if seen is None or seen.stamp != (file.size, file.changed):
                raise RunError(
                    f"{file.path} was changed, replaced or removed after its blocks were drawn. "
                    "What was read of it cannot be told from what is new: put it back as it was, "
                    "or begin again with a new checkpoint"
                )

    def written_to(self) -> tuple[list[str], list[str]]:
        """The files that are no longer what their blocks were cut from, and those that only grew.

        What has grown still begins with its blocks; what is gone by now was read before.
        """
        rewritten, grown = [], []
        for file in self.files:
            now = look(file.path)
            if now is not None and now.size > file.size:
                grown.append(file.path)
            elif now is not None and now.stamp != (file.size, file.changed):
                rewritten.append(file.path)
        return rewritten, grown


_population = msgspec.msgpack.Decoder(Population)


def _holds(path: str) -> bool:
    seen = look(path)
    return seen is not None and seen.size > 0


def draw(spec: Files, fmt: Format, number: int, seed: int, probe: Probe) -> Population:
    """Cut all files into blocks, and put these into a random order."""
    seen = [one for one in list_seen(spec) if one.size]
    extents = Extents(fmt, follow=False)
    extents.lengths.probe = probe
    extents.lengths.find([one for one in seen if extents.is_packed(one.path)])
    ends = [extents.of(one) for one in seen]
    unit = _unit(fmt, sum(ends))
    files = [File(one.path, one.inode[1], one.size, one.changed) for one in seen]
    blocks: list[Block] = []
    for at, (file, end) in enumerate(zip(files, ends, strict=True)):
        blocks.extend(_cut(fmt, number, at, file, end, unit))
    order = np.random.default_rng(seed).permutation(len(blocks))
    drawn = time.time_ns() // 1_000
    return Population(seed, files, [blocks[index] for index in order.tolist()], drawn)


def _unit(fmt: Format, total: int) -> int:
    """How large a block is."""
    good, least = _GOOD_BYTES, _LEAST_BYTES
    if fmt.kind == "parquet":
        good, least = _GOOD_ROWS, _LEAST_ROWS
    count = min(_MANY, max(_FEWEST, total // good))
    return min(_MOST_BYTES, max(least, -(-total // count)))


def _cut(fmt: Format, source: int, at: int, file: File, end: int, unit: int) -> list[Block]:
    """The blocks of one file; one that has to be read from its beginning is one block."""
    unit = end if is_gzip(fmt.cut, file.path) else unit
    splits = plan_splits(fmt.cut, source, at, file.path, 0, end, unit, file.inode)
    whole = file.size if fmt.cut == READER else 0
    return [Block(at, one.start, one.end, whole or one.end - one.start) for one in splits]
