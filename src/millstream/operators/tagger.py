"""`Stream.changes`: records of objects as changes of a table with one row per object.

The row of an object is its latest record, by time and place. The first one is an insertion, a newer
one takes the place of the row before it, and steps behind may keep either: so a filter gives `+`
when an object begins to qualify, `u` while it changes, and `-` when it no longer does. Records of
one batch count together, and one that is older than the row of its object changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.protocol import Host, KeyedStep, Row, Share
from millstream.operators.stores import Table
from millstream.operators.waiting import Immediate
from millstream.ops.cells import Publication
from millstream.ops.chunks import Chunk, Mask, concat, decode_block, flat
from millstream.ops.keynames import both_hashes
from millstream.ops.keys import key_arrays
from millstream.ops.preparing import null_keys
from millstream.ops.records import dead_row
from millstream.ops.updates import NEVER

_ROW = "row."  # before the names of a record's own columns
_PLACE = ("ts", "src", "pos")  # which of two records is the later one


@dataclass(frozen=True, eq=False, kw_only=True)
class Changes(KeyedStep):
    """The latest record of every object, as a stream of changes."""

    at_once: ClassVar[bool] = True
    keys: tuple[str, ...]

    @property
    def gives_changes(self) -> bool:
        """Always."""
        return True

    def operator(self, number: int, changes: bool) -> Tagger:
        """Keeps the latest record of every object."""
        if changes:
            raise ConfigError(
                f"{self.name}: changes() is for records of objects, and its input is changes "
                "already; leave it out"
            )
        return Tagger(self.name, self.keys, number)

    def words(self) -> str:
        """For the plan."""
        return f"changes of the latest record by {', '.join(self.keys)}"

    def answers(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """The last record of every object."""
        latest = {
            tuple(row.get(key) for key in self.keys): at
            for at, row in enumerate(rows)
            if all(row.get(key) is not None for key in self.keys)
        }
        return [(at, rows[at]) for at in latest.values()]

    def remembered(self) -> dict[str, Any]:
        """The columns that name an object."""
        return {"keys": list(self.keys)}


@dataclass(frozen=True)
class Tagger(Immediate):
    """The operator: a table with one row per object."""

    name: str
    keys: tuple[str, ...]
    number: int
    counted: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        """One step."""
        return (self.name,)

    def inlet(self, host: Host) -> Records:
        """Records by the hash of their object."""
        return Records(self, host)

    def run(self, share: Share) -> None:
        """The latest of the new records of each object takes the place of what is stored."""
        host, batch, control = share.host, share.host.batch, share.host.control
        table = Table(self.name, "rows", batch, control)
        blocks = [decode_block(block) for block in share.rows.get("rows", [])]
        if blocks:
            chunk = self._changes(_latest(concat(blocks)), table, batch.number)
            added = int((chunk.weights() > 0).sum())
            host.ledger(self.name)["results"] += added
            control.results += added
            host.push(self.name, chunk)
        table.store()

    def _changes(self, new: pa.Table, table: Table, batch: int) -> Chunk:
        """What the latest records change, and the table brought up to date."""
        names = ("shard", "hash", "check")
        shard, hashes, checks = (np.asarray(flat(new.column(name))) for name in names)
        place, known = table.rows.find(shard.astype(np.int64), hashes, checks)
        newer = np.ones(len(new), np.bool_)
        if known is not None:
            found = np.flatnonzero(place >= 0)
            newer[found] = _later(new.take(pa.array(found)), known.take(pa.array(place[found])))
        new, place = new.filter(pa.array(newer)), place[newer]
        living = pa.array(np.zeros(len(new), np.bool_))
        table.put_hashed(
            new.append_column("gone", living).append_column(
                "expires", pa.array(np.full(len(new), NEVER))
            )
        )
        parts = [(new, 1)]
        if known is not None and (place >= 0).any():
            parts.insert(0, (known.take(pa.array(place[place >= 0])), -1))
        return self._chunk(parts, batch)

    def _chunk(self, parts: list[tuple[pa.Table, int]], batch: int) -> Chunk:
        names = [n for n in parts[-1][0].column_names if n.startswith(_ROW)]
        keep = [*_PLACE, "hash"]
        rows = concat([_with_all(part, names).select([*keep, *names]) for part, _ in parts])
        ts, src, pos, hashes = (np.asarray(flat(rows.column(name))) for name in keep)
        weight = np.repeat([sign for _, sign in parts], [len(part) for part, _ in parts])
        table = rows.select(names).rename_columns([name.removeprefix(_ROW) for name in names])
        identity = (hashes >> np.uint64(1)).astype(np.int64)
        record = ((ts * 31 + src) * 1_000_003 + pos) & ((1 << 62) - 1)
        change = np.full(len(rows), batch, np.int64)
        return Chunk(table, ts, identity, self.number, weight, record, change)

    def stored(self) -> Tables:
        """The latest record of each object, by its hash."""
        return {self.name: {"rows": Filed("newest", "expires", "hash")}}


def _later(new: pa.Table, old: pa.Table) -> Mask:
    """Whether each new record comes after the one that is stored of the same object."""
    later = np.zeros(len(new), np.bool_)
    equal = np.ones(len(new), np.bool_)
    for name in _PLACE:
        mine, theirs = (np.asarray(flat(table.column(name))) for table in (new, old))
        later |= equal & (mine > theirs)
        equal &= mine == theirs
    return later


def _latest(rows: pa.Table) -> pa.Table:
    """The last of the records of every object."""
    names = (*reversed(_PLACE), "check", "hash")
    order = np.lexsort(tuple(np.asarray(flat(rows.column(name))) for name in names))
    hashes, checks = (np.asarray(flat(rows.column(name)))[order] for name in ("hash", "check"))
    last = np.ones(len(order), np.bool_)
    last[:-1] = (np.diff(hashes) != 0) | (np.diff(checks) != 0)
    return rows.take(pa.array(order[last]))


def _with_all(rows: pa.Table, names: list[str]) -> pa.Table:
    """Rows with null in columns they were stored without."""
    for name in names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows)))
    return rows


@dataclass
class Records:
    """Records on their way to the table, in one task."""

    operator: Tagger
    host: Host
    tables: list[pa.Table] = field(default_factory=list)

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Late records and those without an object are set aside; the others go by its hash."""
        name, batch = step.name, self.host.batch
        counts, late = self.host.ledger(name), chunk.late()
        counts["offered"] += len(chunk)
        counts["late"] += int(late.sum())
        self.host.push_late(name, chunk.take(late))
        chunk = chunk.take(~late)
        bad = null_keys(self.operator.keys, chunk) if len(chunk) else {}
        self.host.control.dead.extend(dead_row(name, chunk, at, why) for at, why in bad.items())
        counts["dead"] += len(bad)
        counts["aggregated"] += len(chunk) - len(bad)
        good = np.ones(len(chunk), np.bool_)
        good[list(bad)] = False
        chunk = chunk.take(good)
        if not len(chunk):
            return
        hashes, checks = both_hashes(key_arrays(chunk.table, self.operator.keys))
        marks = {
            "shard": pa.array((hashes % np.uint64(batch.shards)).astype(np.int32)),
            "hash": pa.array(hashes),
            "check": pa.array(checks),
            "ts": pa.array(chunk.ts),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
        }
        rows = {f"{_ROW}{name}": chunk.column(name) for name in chunk.table.column_names}
        self.tables.append(pa.table(marks | rows))

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Published events come as records."""
        return False

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """The latest of each object."""
        if self.tables:
            yield "rows", _latest(concat(self.tables))
