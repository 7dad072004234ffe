"""`Stream.intersect` and `Stream.difference`: rows that two streams have, or only the first.

Rows are compared whole, null with null, and counted on both sides. What is given of a row is how
often it is there by these counts: the lower of the two, or what the first has more; without `all`
at most once. Records of an intersection are looked at in the order of time, once the watermark has
passed them, so that the time of what is given does not depend on batches. Where rows may be taken
back, all of a batch count together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.graph.changing import gives_changes
from millstream.graph.nodes import Node
from millstream.operators.distinct import Comparer, whole_rows
from millstream.operators.protocol import Host, Inputs, KeyedStep, Operator, Row
from millstream.operators.stores import Table
from millstream.operators.waiting import Gathered, addressed, give, without_late
from millstream.ops.chunks import ROW, Chunk, Int64, numbers, own_columns
from millstream.ops.keys.hashing import blended, content_hash, distinct
from millstream.ops.keys.joins import keys_of, ranges
from millstream.ops.keys.names import SECOND_HASH
from millstream.ops.mixed import beside, differ, wider
from millstream.state.bags import Keys

_COLUMNS = ("count.0", "count.1", "latest", "ts", "since")
_LONG_AGO = -(2**62)


@dataclass(frozen=True, eq=False, kw_only=True)
class Compare(KeyedStep):
    """Rows of two streams, compared whole."""

    at_once: ClassVar[bool] = True
    keys: tuple[str, ...] = ()
    how: str  # intersect or difference
    all: bool = False

    @property
    def gives_changes(self) -> bool:
        """What only one stream has may come to the other later."""
        return self.how == "difference"

    def operator_over(self, number: int, inputs: Inputs) -> Operator:
        """Counts rows on both sides."""
        changes = self.gives_changes or any(one.changes for one in inputs)
        _, types = self.resolve(inputs)
        return Comparing(self.name, number, changes, self.how, self.all, types)

    def resolve(self, inputs: Inputs) -> tuple[tuple[str, ...] | None, dict[str, pa.DataType]]:
        """Both sides must have the same columns."""
        left, right = inputs
        if left.columns is None or right.columns is None:
            return left.columns or right.columns, {}
        if set(left.columns) != set(right.columns):
            alone = sorted(set(left.columns) ^ set(right.columns))
            raise ConfigError(
                f"{self.name}: rows are compared whole, but {left.name!r} and {right.name!r} do "
                f"not have the same columns; only one has: {', '.join(alone)}. Choose those to be "
                "compared with .select() on both"
            )
        types = dict(left.types)
        for name, kind in right.types.items():
            mine = types.setdefault(name, kind)
            if differ({mine, kind}):
                raise ConfigError(
                    f"{self.name}: {name!r} of {left.name!r} is {mine} and that of "
                    f"{right.name!r} is {kind}, so that no rows would be equal; make them one type "
                    f"first, for example with .select('*', 'CAST({name} AS ...) AS {name}')"
                )
            types[name] = _common(mine, kind)
        return left.columns, types

    def uses_of(self, number: int, wanted: set[str] | None, inputs: Inputs) -> set[str] | None:
        """Which rows are equal depends on all columns."""
        return None

    def words(self) -> str:
        """For the plan."""
        if self.how == "intersect":
            return f"rows of both, each {'as often as both have it' if self.all else 'once'}"
        often = "as often as the first has it more" if self.all else "once"
        return f"rows of the first only, each {often}"

    def details(self, inputs: Inputs) -> list[str]:
        """For the plan: what is kept."""
        return ["keeps: how often each side has every row"]

    def answers_over(self, inputs: list[list[tuple[int, Row]]]) -> list[tuple[int, Row]]:
        """Two bags, compared."""
        bags = [Counter(_told(row) for _, row in rows) for rows in inputs]
        both = bags[0] & bags[1] if self.how == "intersect" else bags[0] - bags[1]
        if not self.all:
            both = Counter(set(bags[0]) & set(bags[1]))
            if self.how == "difference":
                both = Counter(set(bags[0]) - set(bags[1]))
        out: list[tuple[int, Row]] = []
        rows = {_told(row): row for _, row in reversed(inputs[0])}
        for told, count in both.items():
            times = [sorted(ts for ts, row in side if _told(row) == told) for side in inputs]
            for copy in range(count):
                out.append((max(side[copy] for side in times if copy < len(side)), rows[told]))
        return out

    def remembered(self) -> dict[str, Any]:
        """What is counted."""
        inputs = ["changes" if gives_changes(one) else "records" for one in self.inputs]
        told = {"keys": [], "how": self.how, "all": self.all, "inputs": inputs}
        return told | ({"from the start": True} if "changes" in inputs else {})

    def described(self, inputs: Inputs) -> dict[str, Any]:
        """Also the columns that are compared."""
        return self.remembered() | whole_rows(inputs)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type in which two columns are compared, and given; one that holds all values of both."""
    for whole, exact in ((one, other), (other, one)):
        if pa.types.is_integer(whole) and pa.types.is_decimal(exact):
            digits = max(exact.precision - exact.scale, 19) + exact.scale
            return pa.decimal128(digits, exact.scale) if digits <= 38 else exact
    return wider(one, other)


def _told(row: Row) -> str:
    """Rows that are equal tell the same."""
    return repr(sorted((name, value) for name, value in row.items() if value is not None))


@dataclass(frozen=True)
class Comparing(Comparer):
    """The operator: how often each side has every row."""

    how: str
    all: bool
    types: dict[str, pa.DataType]

    def inlet(self, host: Host) -> SidedRows:
        """Rows of both sides by the hash of their content."""
        return SidedRows(self, host)

    def shown(self, counts: list[Int64]) -> Int64:
        """How often rows are given that each side has so often."""
        left, right = (np.maximum(count, 0) for count in counts)
        if self.how == "intersect":
            often = np.minimum(left, right)
        else:
            often = np.maximum(left - right, 0) if self.all else np.where(right > 0, 0, left)
        return often if self.all else np.minimum(often, 1)

    def compare(self, rows: pa.Table, table: Table, host: Host) -> None:
        """Count rows of both sides; give what changes."""
        work = _Counts(rows, table)
        was = self.shown([work.old[f"count.{side}"] for side in (0, 1)])
        now = self.shown([work.now[f"count.{side}"] for side in (0, 1)])
        work.begin((was == 0) & (now > 0), host.batch.number)
        low, high = np.minimum(was, now), np.maximum(was, now)
        copy, content = ranges(low, high)
        gone = now[content] < was[content]
        ts = np.where(gone, work.old["ts"][content], work.now["ts"][content])
        if not self.changes:
            ts = work.came(content, copy)
        given = own_columns(rows).take(pa.array(work.some[content]))
        chunk = Chunk(given, ts, blended(work.keys.hashes[content], copy), self.number)
        if self.changes:
            since = np.where(gone, work.old["since"][content], work.now["since"][content])
            chunk = replace(chunk, weight=np.where(gone, -1, 1), revision=since)
        table.put_counts(work.keys, {name: work.now[name] for name in _COLUMNS})
        give(host, self.name, chunk)


class _Counts:
    """Rows that are counted in a batch, by their content, and what is stored of each."""

    def __init__(self, rows: pa.Table, counts: Table) -> None:
        self.codes, self.some = distinct(keys_of(rows))
        self.keys = Keys.of(rows, self.some)
        self.side, self.time = numbers(rows, "side"), numbers(rows, "time")
        found = counts.find(self.keys)
        self.old = {
            name: found.numbers(name, _LONG_AGO if name == "latest" else 0) for name in _COLUMNS
        }
        self.now = dict(self.old)
        weight = numbers(rows, "weight")
        for side in (0, 1):
            more, mine = np.zeros(len(self.some), np.int64), self.side == side
            np.add.at(more, self.codes[mine], weight[mine])
            self.now[f"count.{side}"] = self.old[f"count.{side}"] + more
        latest = self.old["latest"].copy()
        np.maximum.at(latest, self.codes[weight > 0], self.time[weight > 0])
        self.now["latest"] = latest

    def begin(self, shown: Any, batch: int) -> None:
        """Rows that were not given before are so from now on."""
        self.now["ts"] = np.where(shown, self.now["latest"], self.old["ts"])
        self.now["since"] = np.where(shown, batch + 1, self.old["since"])

    def came(self, content: Int64, copy: Int64) -> Int64:
        """When copies of rows came to be there on both sides; rows are in the order of time."""
        found = np.full(len(content), _LONG_AGO)
        for side in (0, 1):
            mine = np.flatnonzero(self.side == side)
            mine = mine[np.lexsort((self.time[mine], self.codes[mine]))]
            start = np.searchsorted(self.codes[mine], np.arange(len(self.some)))
            nth = copy - self.old[f"count.{side}"][content]
            here = nth >= 0  # else it came before
            at = mine[(start[content] + nth)[here]]
            found[here] = np.maximum(found[here], self.time[at])
        return found


class SidedRows(Gathered[Comparing]):
    """Rows of both sides on their way to be counted, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Set late records aside; hash the others."""
        late = chunk.late()
        if not self.operator.changes:
            late |= chunk.ts < self.host.batch.orders[step.name]
        if chunk.weight is not None:
            late = np.zeros(len(chunk), np.bool_)
        chunk = without_late(self.host, step, chunk, late)
        for side, one in enumerate(step.inputs):
            if one is before and len(chunk):
                self._add(side, chunk)

    def _add(self, side: int, chunk: Chunk) -> None:
        table = chunk.table
        for at, name in enumerate(table.column_names):
            mine = table.schema.field(at).type
            kind = self.operator.types.get(name, mine)
            if mine != kind and not (pa.types.is_integer(mine) and pa.types.is_floating(kind)):
                table = table.set_column(at, name, table.column(at).cast(kind))
        hashes, checks = content_hash(table), content_hash(table, SECOND_HASH)
        marks = {
            **addressed(hashes, checks, self.host.batch.shards),
            "time": pa.array(chunk.ts),
            "side": pa.array(np.full(len(chunk), side, np.int8)),
            "weight": pa.array(chunk.weights()),
        }
        self.tables.append(beside(marks, table, ROW))
