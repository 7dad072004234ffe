"""The slates of updaters: one per key, as bytes, with the time at which it expires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from millstream.operators.batch import Batch, Control
from millstream.operators.stores import Table
from millstream.ops.cells import Cell
from millstream.ops.chunks import flat
from millstream.ops.keynames import key_text
from millstream.ops.updates import NEVER


class Slates(Table):
    """The slates of one updater: a batch reads and writes the keys it touches."""

    def __init__(self, updater: str, batch: Batch, control: Control) -> None:
        super().__init__(updater, "slates", batch, control)

    def load(self, cells: Sequence[Cell], shards: Iterable[int]) -> None:
        """Give cells what is stored of their slates."""
        if not self.stored or not cells:
            return
        count = len(cells)
        hashes = np.fromiter((cell.hash for cell in cells), np.uint64, count)
        checks = np.fromiter((cell.check for cell in cells), np.uint64, count)
        place, found = self.rows.find(np.fromiter(shards, np.int64, count), hashes, checks)
        if found is None:
            return
        data = flat(found.column("slate")).to_pylist()
        ts = flat(found.column("ts")).to_pylist()
        expires = flat(found.column("expires")).to_pylist()
        for cell, at in zip(cells, place.tolist(), strict=True):
            if at >= 0:
                cell.load(data[at], ts[at], expires[at])

    def put_cells(self, cells: list[tuple[Cell, int]]) -> None:
        """Slates that have changed, with their shards."""
        if not cells:
            return
        texts = [key_text(cell.key) for cell, _ in cells]
        expires = [NEVER if cell.gone else cell.expires for cell, _ in cells]
        self.put_hashed(
            pa.table(
                {
                    "shard": pa.array([shard for _, shard in cells], pa.int32()),
                    "expires": pa.array(expires, pa.int64()),
                    "hash": pa.array([cell.hash for cell, _ in cells], pa.uint64()),
                    "check": pa.array([cell.check for cell, _ in cells], pa.uint64()),
                    "gone": pa.array([cell.gone for cell, _ in cells], pa.bool_()),
                    "key": pa.array([text for text, _ in texts], pa.string()),
                    "plain": pa.array([plain for _, plain in texts], pa.bool_()),
                    "ts": pa.array([cell.ts for cell, _ in cells], pa.int64()),
                    "batch": pa.array(np.full(len(cells), self.batch.number, np.int64)),
                    "slate": pa.array([cell.data or b"" for cell, _ in cells], pa.binary()),
                }
            )
        )
