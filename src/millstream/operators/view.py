"""`Stream.view`: the rows of a stream kept as a table that others can read while the flow runs.

A row is known by what gave it (its operator, key and window, or its place in a source) and by what
it holds; of each there is how often it is there. A batch looks up and writes the rows it changes,
and no others. `serve/views.py` reads the table from committed segments, without the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millstream.graph.changing import changes_of
from millstream.graph.nodes import Node
from millstream.operators.filing import Filed, Tables
from millstream.operators.protocol import Host, Inputs, KeyedStep, Row, Share
from millstream.operators.stores import Table
from millstream.operators.waiting import Gathered, Immediate, addressed, rows_for
from millstream.ops.chunks import ROW, Chunk, Int64, begins, concat, numbers, with_column
from millstream.ops.keys.hashing import blended, content_hash
from millstream.ops.mixed import beside
from millstream.ops.sql.types import type_name
from millstream.ops.updates.job import NEVER
from millstream.state.bags import Keys

TABLE = "rows"


@dataclass(frozen=True, eq=False, kw_only=True)
class Kept(KeyedStep):
    """The rows of the step before, as a table that is read from outside."""

    at_once: ClassVar[bool] = True
    keys: tuple[str, ...] = ()
    view: str  # the name it is read by
    query: str = ""  # of SQL: what its rows are the answer to
    schema: pa.Schema | None = None  # as far as SQL knows it

    def operator(self, number: int, changes: bool) -> Keeping:
        """Counts rows."""
        return Keeping(self.name, changes)

    def words(self) -> str:
        """For the plan."""
        return f"kept to be read as view {self.view}"

    def answers(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """It gives nothing on."""
        return []

    def remembered(self) -> dict[str, Any]:
        """What its rows are; those of a changed query would stand beside those of the old one."""
        over = changes_of(self) is not None
        return {"keys": [], "view": self.view, "query": self.query, "from the start": over}

    def described(self, inputs: Inputs) -> dict[str, Any]:
        """Also its columns, so that they are known before there is a row."""
        (one,) = inputs
        if self.schema is not None:
            columns = [[field.name, type_name(field.type)] for field in self.schema]
        else:
            types = one.types
            columns = [
                [name, type_name(types[name]) if name in types else None]
                for name in one.columns or ()
            ]
        return {**self.remembered(), "columns": columns}


@dataclass(frozen=True)
class Keeping(Immediate):
    """The operator: how often each row is there."""

    name: str
    changes: bool  # its input takes back what it gave

    def inlet(self, host: Host) -> ViewRows:
        """Rows by what they are known by."""
        return ViewRows(self, host)

    def run(self, share: Share) -> None:
        """Add what came to what is stored of the same rows."""
        host = share.host
        table = Table(self.name, TABLE, host.batch, host.control)
        new = rows_for(share, TABLE)
        if new is not None:
            rows = _added_up(new)
            before = self._before(rows, table)
            count = before + numbers(rows, "count")
            never = int(-count[count < 0].sum())
            if never:  # only of a view that came later: it would have been given before
                host.ledger(self.name)["unmatched"] += never
            _put(table, rows, before, np.maximum(count, 0), host.batch.number)
        table.store()

    def _before(self, rows: pa.Table, table: Table) -> Int64:
        """How often each row is stored; records come once, and need not be looked up."""
        if not self.changes:
            return np.zeros(len(rows), np.int64)
        return table.find(Keys.of(rows)).numbers("count")

    def stored(self) -> Tables:
        """Rows, by what they are known by."""
        return {self.name: {TABLE: Filed("newest", "expires", "hash")}}


def _put(table: Table, rows: pa.Table, before: Int64, count: Int64, batch: int) -> None:
    """Store how often rows are there now; those that are gone stay for a while, to be told of."""
    changed = np.flatnonzero(count != before)
    if not len(changed):
        return
    rows, count = rows.take(pa.array(changed)), count[changed]
    table.put_hashed(
        with_column(rows, "count", count)
        .append_column("gone", pa.array(count == 0))
        .append_column("expires", pa.array(np.full(len(rows), NEVER)))
        .append_column("batch", pa.array(np.full(len(rows), batch, np.int64)))
    )


def _added_up(rows: pa.Table) -> pa.Table:
    """Equal rows as one, in the order of what they are known by."""
    hashes, checks = numbers(rows, "hash"), numbers(rows, "check")
    order = np.lexsort((checks, hashes))
    starts = np.flatnonzero(begins(hashes[order], checks[order]))
    count = np.add.reduceat(numbers(rows, "count")[order], starts)
    rows = rows.take(pa.array(order[starts]))
    return with_column(rows, "count", count)


class ViewRows(Gathered[Keeping]):
    """Rows on their way to the table, in one task."""

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """All of them, late ones too: they are what a sink would get."""
        self.host.count(step.name, len(chunk), 0)
        src = np.full(len(chunk), chunk.src, np.int64)
        # Records come once, also two that are known by the same thing at different times.
        times = () if self.operator.changes else (chunk.ts,)
        hashes = blended(src, chunk.pos, chunk.mark("window"), *times).astype(np.uint64)
        marks = {
            **addressed(hashes, content_hash(chunk.table), self.host.batch.shards),
            "ts": pa.array(chunk.ts),
            "count": pa.array(chunk.weights()),
        }
        self.tables.append(beside(marks, chunk.table, ROW))

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """All of them, one each."""
        if self.tables:
            yield TABLE, _added_up(concat(self.tables))
