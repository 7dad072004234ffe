"""A small writer of slates: commits batches to a checkpoint the way a flow does."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.ops.codec import encode
from millstream.ops.keys.names import hashes_of_values
from millstream.ops.updates.job import NEVER
from millstream.state.checkpoint import Checkpoint
from millstream.state.manifests import Manifest
from millstream.state.segments import write_segment
from millstream.state.tables import KeyedTable

GONE = object()  # instead of a slate: a tombstone


@dataclass
class Put:
    """What a batch does to one key."""

    key: Any
    slate: Any
    ts: int = 0
    expires: int = NEVER


@dataclass
class Writer:
    """One updater of a flow, written batch by batch."""

    path: Path
    updater: str = "counts"
    shards: int = 4
    retain: int = 3
    about: dict[str, Any] = field(default_factory=dict)
    flow: str = "made"

    def __post_init__(self) -> None:
        self.place = Checkpoint(self.path)
        kept = self.place.latest()
        self.manifest = kept or Manifest(-1)
        about = {"kind": "update", "family": self.updater, "keys": ["k"], "ttl": None}
        about |= {"clock": "event", "codec": "msgpack", "cyclic": False} | self.about
        program = {"format": 1, "id": "x", "flow": self.flow, "shards": self.shards}
        program |= {"sources": {"in": {}}, "operators": {self.updater: about}}
        program["graph"] = {
            "nodes": [
                {"name": "in", "kind": "source", "level": 0},
                {"name": self.updater, "kind": "update", "level": 1},
            ],
            "edges": [["in", self.updater]],
        }
        if kept is None:
            self.place.write_program(program)

    def commit(self, *puts: Put, closed: int | None = None, **fields: Any) -> int:
        """One batch; gives its number."""
        old = self.manifest
        number = old.batch + 1
        stored = {
            shard: list(its)
            for shard, its in old.segments.get(self.updater, {}).get("slates", {}).items()
        }
        files = dict(old.files)
        if puts:
            fresh = self.rows(number, puts)
            table = KeyedTable(self.place.state, stored, files)
            owner = np.asarray(fresh.column("shard").combine_chunks())
            merging = table.to_merge(len(fresh))
            pieces = [fresh.filter(pa.array(~np.isin(owner, [int(s) for s in merging])))]
            for shard, segments in merging.items():
                merged = table.merged(shard, segments, fresh.filter(pa.array(owner == int(shard))))
                stored[shard] = stored[shard][: len(stored[shard]) - len(segments)]
                if merged is not None:
                    pieces.append(merged)
            rows = pa.concat_tables(pieces).combine_chunks()
            if len(rows):
                name = f"{self.updater}/slates/{number:08d}-{os.urandom(4).hex()}.arrow"
                file, written = write_segment(self.place.state, name, rows, "expires")
                files[name] = file
                for shard, segment in written.items():
                    stored.setdefault(str(shard), []).append(segment)
        ledger = fields.pop("ledger", {"in": {"offered": (number + 1) * 10}})
        reached = {} if closed is None else {self.updater: closed}
        self.manifest = Manifest(
            number,
            at=time.time(),
            closed={**old.closed, **reached},
            watermarks={**old.watermarks, **reached},
            segments={
                self.updater: {"slates": {shard: its for shard, its in stored.items() if its}}
            },
            ledger=ledger,
            **fields,
        )
        used = {segment.file for its in stored.values() for segment in its}
        self.manifest.files = {name: files[name] for name in sorted(used)}
        self.place.commit(self.manifest)
        if number % 2:
            self.place.collect_garbage(self.manifest, self.retain)
        return number

    def rows(self, number: int, puts: tuple[Put, ...]) -> pa.Table:
        """The rows of a batch, sorted as they are stored."""
        latest = {(type(p.key), p.key): p for p in puts}.values()
        hashes, checks = hashes_of_values([p.key for p in latest])
        owner = (hashes >> np.uint64(1)) % np.uint64(self.shards)
        if self.about.get("cyclic"):
            owner = np.zeros(len(hashes), np.uint64)
        texts = [
            p.key if isinstance(p.key, str) else msgspec.json.encode(p.key).decode() for p in latest
        ]
        table = pa.table(
            {
                "shard": pa.array(owner.astype(np.int32)),
                "expires": pa.array([p.expires for p in latest], pa.int64()),
                "hash": pa.array(hashes),
                "check": pa.array(checks),
                "gone": pa.array([p.slate is GONE for p in latest]),
                "key": pa.array(texts, pa.string()),
                "plain": pa.array([isinstance(p.key, str) for p in latest]),
                "ts": pa.array([p.ts for p in latest], pa.int64()),
                "batch": pa.array([number] * len(hashes), pa.int64()),
                "slate": pa.array(
                    [
                        b""
                        if p.slate is GONE
                        else p.slate
                        if isinstance(p.slate, bytes)
                        else encode(p.slate)
                        for p in latest
                    ],
                    pa.binary(),
                ),
            }
        )
        return table.take(pa.array(np.argsort(hashes, kind="stable")))
