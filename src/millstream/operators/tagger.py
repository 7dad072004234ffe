"""`Stream.changes`: records of objects as changes of a table with one row per object.

The row of an object is its latest record, by time and place. The first one is an insertion, a newer
one takes the place of the row before it, and steps behind may keep either: so a filter gives `+`
when an object begins to qualify, `u` while it changes, and `-` when it no longer does. Records of
one batch count together, and one that is older than the row of its object changes nothing.

Records of a change log also say that an object is no more (`operations.py`). Its row is taken back,
and what is older than that does not bring it back; so that a removal is known it stays in the table
until the watermark has passed it.

Where all steps behind let only some rows through, the planner says so (`push_predicates`), and a
record that none of them lets through counts as a removal: its object is not there for them. Of a
change log all objects are kept, since it is counted what removals found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.durations import text
from millstream.errors import ConfigError
from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.operations import KNOWN, Operations
from millstream.operators.protocol import Columns, Host, Inputs, KeyedStep, Names, Row, Share
from millstream.operators.stores import StoredRows, Table, in_order, order_by_key
from millstream.operators.waiting import Gathered, Immediate, addressed, give, rows_for
from millstream.ops.chunks import (
    ROW,
    Chunk,
    Mask,
    all_but,
    begins,
    blanked,
    concat,
    ends,
    marked,
    numbers,
    own_columns,
)
from millstream.ops.expressions import Expression, ExpressionError
from millstream.ops.keys.hashing import key_arrays
from millstream.ops.keys.names import both_hashes
from millstream.ops.records import without
from millstream.ops.times.progress import END
from millstream.ops.updates.job import NEVER
from millstream.ops.windows.preparing import null_keys
from millstream.state.bags import Keys

_PLACE = ("ts", "src", "pos")  # which of two records is the later one


@dataclass(frozen=True, eq=False, kw_only=True)
class Changes(KeyedStep):
    """The latest record of every object, as a stream of changes."""

    gives_changes: ClassVar[bool] = True
    at_once: ClassVar[bool] = True
    keys: tuple[str, ...]
    op: Operations | None = None
    only: tuple[tuple[Expression, ...], ...] = ()  # the rows wanted: all of one of these hold
    within: int | None = None  # for how long they are wanted, in microseconds

    def operator(self, number: int, changes: bool) -> Tagger:
        """Keeps the latest record of every object."""
        if changes:
            raise ConfigError(
                f"{self.name}: changes() is for records of objects, and its input is changes "
                "already; leave it out"
            )
        return Tagger(self.name, self.keys, number, self.op, self.only, self.within)

    def operator_over(self, number: int, inputs: Inputs) -> Tagger:
        """The same; of functions each batch may have columns of its own."""
        (records,) = inputs
        made = self.operator(number, records.changes)
        return replace(made, any_columns=records.columns is None)

    def columns(self, have: Columns) -> Columns:
        """All but what a log says of the change."""
        if have is None or self.op is None:
            return have
        return tuple(name for name in have if name != self.op.column)

    def needs(self, number: int) -> Iterable[tuple[str, str, bool]]:
        """The key, and what happened."""
        yield from super().needs(number)
        if self.op is not None:
            yield "op", self.op.column, False

    def row_names(self, before: tuple[Names, ...], inputs: Inputs) -> Names:
        """The key."""
        return tuple(frozenset((name,)) for name in self.keys)

    def words(self) -> str:
        """For the plan."""
        log = f", as {self.op.column} says" if self.op is not None else ""
        return f"changes of the latest record by {', '.join(self.keys)}{log}"

    def details(self, inputs: Inputs) -> list[str]:
        """What of it is kept, if not all."""
        ways = [" and ".join(one.sql for one in conditions) for conditions in self.only]
        asked = [f"where {ways[0] if len(ways) == 1 else ' or '.join(f'({w})' for w in ways)}"]
        asked = asked if ways else []
        if self.within is not None:
            asked.append(f"of the last {text(self.within)}")
        why = "since the steps behind take no others"
        return [f"keeps: only rows {', '.join(asked)}, {why}"] if asked else []

    def answers(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """The last record of every object, if it is not a removal."""
        latest = {
            tuple(row.get(key) for key in self.keys): at
            for at, row in enumerate(rows)
            if all(row.get(key) is not None for key in self.keys)
        }
        if self.op is None:
            return [(at, rows[at]) for at in latest.values()]
        known, op = KNOWN | dict(self.op.words), self.op.column
        return [
            (at, {name: value for name, value in rows[at].items() if name != op})
            for at in latest.values()
            if known[str(rows[at][op])] == "+"
        ]

    def remembered(self) -> dict[str, Any]:
        """The columns that name an object, and the one that says what happened."""
        log = {} if self.op is None else {"op": self.op.column}
        return {"keys": list(self.keys), **log}


@dataclass(frozen=True)
class Tagger(Immediate):
    """The operator: a table with one row per object."""

    name: str
    keys: tuple[str, ...]
    number: int
    op: Operations | None = None
    only: tuple[tuple[Expression, ...], ...] = ()
    within: int | None = None
    any_columns: bool = False  # rows that are stored may have columns that new ones lack

    def inlet(self, host: Host) -> Records:
        """Records by the hash of their object."""
        return Records(self, host)

    def run(self, share: Share) -> None:
        """The latest of the new records of each object takes the place of what is stored."""
        host, batch, control = share.host, share.host.batch, share.host.control
        table = Table(self.name, "rows", batch, control)
        rows = rows_for(share)
        watermark = share.clocks.watermarks[self.name]
        passed = watermark if watermark < END else None  # nothing earlier than this comes any more
        if rows is not None:
            if self.op is not None:
                self._audit(rows, table, host)
            give(host, self.name, self._changes(_latest(rows), table, passed))
        table.store(passed - 1 if self._forgets and passed is not None else None)

    @property
    def _forgets(self) -> bool:
        """Whether rows become of no use with time."""
        return self.op is not None or bool(self.only) or self.within is not None

    def _audit(self, rows: pa.Table, table: Table, host: Host) -> None:
        """Count records that are older than what is known, and removals of what is not there."""
        rows = in_order(rows, "ts")
        keys, back = Keys.of(rows), _removed(rows)
        stored = table.find(keys)
        stale, there = ~_newer(rows, stored), stored.there & ~stored.flags("back")
        same = ~begins(keys.hashes, keys.checks)[1:] & ~stale[:-1]  # as the record before it
        there[1:] = np.where(same, ~back[:-1], there[1:])
        counts = host.ledger(self.name)
        counts["stale"] += int(stale.sum())
        counts["unmatched"] += int((back & ~there & ~stale).sum())

    def _changes(self, new: pa.Table, table: Table, passed: int | None) -> Chunk:
        """What the latest records change, and the table brought up to date."""
        found = table.find(Keys.of(new))
        newer = _newer(new, found)
        new, there = new.filter(pa.array(newer)), found.there[newer]
        back = _removed(new)
        self._put(new, back, there, table, passed)
        parts = [(new.filter(pa.array(~back)), 1)]
        if there.any():
            old = found.rows("", found.there & newer)
            parts.insert(0, (old.filter(pa.array(~_removed(old))), -1))
        return self._chunk(parts)

    def _put(
        self, new: pa.Table, back: Mask, known: Mask, table: Table, passed: int | None
    ) -> None:
        """Store the latest records; of a removal only that it was, while that can matter."""
        ts = numbers(new, "ts")
        lives = NEVER if self.within is None else ts + self.within
        settled = back & (ts < passed) if passed is not None else np.zeros(len(new), np.bool_)
        rows = new.append_column("gone", pa.array(settled)).append_column(
            "expires", pa.array(np.where(back, ts, lives))
        )
        table.put_hashed(rows.filter(pa.array(known | ~settled)))

    def _chunk(self, parts: list[tuple[pa.Table, int]]) -> Chunk:
        tables = [part for part, _ in reversed(parts)] if self.any_columns else [parts[-1][0]]
        every = dict.fromkeys(name for table in tables for name in table.column_names)
        names = [name for name in every if name.startswith(ROW)]
        keep = [*_PLACE, "hash"]
        rows = concat([_with_all(part, names).select([*keep, *names]) for part, _ in parts])
        ts, src, pos, hashes = (numbers(rows, name) for name in keep)
        weight = np.repeat([sign for _, sign in parts], [len(part) for part, _ in parts])
        table = own_columns(rows)
        identity = (hashes >> np.uint64(1)).astype(np.int64)
        record = ((ts * 31 + src) * 1_000_003 + pos) & ((1 << 62) - 1)
        return Chunk(table, ts, identity, self.number, weight, record)

    def stored(self) -> Tables:
        """The latest record of each object, by its hash."""
        return {self.name: {"rows": Filed("newest", "expires", "hash")}}


def _newer(rows: pa.Table, stored: StoredRows) -> Mask:
    """Whether each record comes after the one that is stored of the same object, if one is."""
    later, equal = ~stored.there, stored.there.copy()
    for name in _PLACE:
        mine, theirs = numbers(rows, name), stored.numbers(name)
        later |= equal & (mine > theirs)
        equal &= mine == theirs
    return later


def _removed(rows: pa.Table) -> Mask:
    """Which rows say that their object is no more."""
    if "back" not in rows.column_names:
        return np.zeros(len(rows), np.bool_)
    return numbers(rows, "back").astype(np.bool_)


def _latest(rows: pa.Table) -> pa.Table:
    """The last of the records of every object."""
    order = order_by_key(rows, "ts")
    hashes, checks = (numbers(rows, name)[order] for name in ("hash", "check"))
    return rows.take(pa.array(order[ends(hashes, checks)]))


def _with_all(rows: pa.Table, names: list[str]) -> pa.Table:
    """Rows with null in columns they were stored without."""
    for name in names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows)))
    return rows


def wanted(only: tuple[tuple[Expression, ...], ...], table: pa.Table) -> Mask:
    """The rows for which all conditions of one way hold, or cannot be computed."""
    found = np.zeros(len(table), np.bool_)
    for conditions in only:
        every = np.ones(len(table), np.bool_)
        for one in conditions:
            every &= _holds(one, table)
        found |= every
    return found


def _holds(condition: Expression, table: pa.Table) -> Mask:
    """Where a condition is true; a row on which it fails is left to the step that has it."""
    try:
        return np.asarray(condition.evaluate(table).fill_null(False)).astype(np.bool_)
    except ExpressionError:
        half = len(table) // 2
        if half:
            parts = (table.slice(0, half), table.slice(half))
            return np.concatenate([_holds(condition, part) for part in parts])
    except (ConfigError, pa.ArrowException):  # columns of several types, or not there
        pass
    return np.ones(len(table), np.bool_)


class Records(Gathered[Tagger]):
    """Records on their way to the table, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Late records and those without an object are set aside; the others go by its hash."""
        name, batch = step.name, self.host.batch
        counts, late = self.host.ledger(name), chunk.late()
        counts["offered"] += len(chunk)
        counts["late"] += int(late.sum())
        self.host.push_late(name, chunk.take(late))
        chunk = chunk.take(~late)
        bad: dict[int, str] = {}
        back, op, only = None, self.operator.op, self.operator.only
        if len(chunk):
            if op is not None:
                back, bad = op.removals(chunk)
            elif only:
                back = ~wanted(only, chunk.table)
            bad |= null_keys(self.operator.keys, chunk)
        good = all_but(len(chunk), bad)
        chunk, dead = without(name, chunk, bad)
        self.host.control.dead.extend(dead)
        counts["dead"] += len(bad)
        counts["aggregated"] += len(chunk)
        if not len(chunk):
            return
        hashes, checks = both_hashes(key_arrays(chunk.table, self.operator.keys))
        marks = {
            **addressed(hashes, checks, batch.shards),
            "ts": pa.array(chunk.ts),
            "src": pa.array(np.full(len(chunk), chunk.src, np.int64)),
            "pos": pa.array(chunk.pos),
        }
        names = [n for n in chunk.table.column_names if op is None or n != op.column]
        columns = {f"{ROW}{name}": chunk.column(name) for name in names}
        if back is not None:
            marks["back"] = pa.array(back[good])
            if only:  # nobody will look at the others
                columns = {name: blanked(column, back[good]) for name, column in columns.items()}
        self.tables.append(marked(marks, chunk.table, columns))

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """The latest of each object; of a log all, since each is accounted for."""
        if self.tables:
            rows = concat(self.tables)
            yield "rows", _latest(rows) if self.operator.op is None else rows
