"""The receiver of a generator's records, which become Arrow files."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from millstream.io.formats import parse_schema
from millstream.ops.mixed import together
from millstream.ops.records import as_json, given_table
from millstream.run.sources.received.spool import SEAL_BYTES, Receiver
from millstream.run.tasks.splits import ERROR, RAW
from millstream.state.storage import Storage

_FEW = 1_000  # records before it is known how large they are
_MANY = 20_000  # records that are sealed together at most, unless they come as a table


class GeneratorReceiver(Receiver):
    """Records of a Python generator, as Arrow files."""

    suffix = "arrow"

    def __init__(self, name: str, spec: Any, spool: Storage) -> None:
        super().__init__(name, spec, spool)
        self._rows: list[Any] = []
        self._before: list[list[Any] | pa.Table] = []  # rows and tables that came before these
        self._size = 0.0
        self._row = SEAL_BYTES / _FEW  # about the bytes of a row
        self._schema = None if spec.schema is None else parse_schema(spec.schema)
        self.sent_again = bool(spec.replayable)
        self._asked = time.monotonic()  # when it was asked for the next record

    def silent(self) -> float:
        """For how many seconds the generator has not given what it was asked for."""
        return 0.0 if self.finished or not self.is_alive() else time.monotonic() - self._asked

    def receive(self) -> None:
        skip = self.already if self.spec.replayable else 0
        self._asked = time.monotonic()
        for item in self.spec.fn():
            table = _as_table(item)
            size = 1 if table is None else len(table)
            if skip >= size:
                skip -= size
                self._asked = time.monotonic()
                continue
            if table is not None:
                self._put_table(table.slice(skip), table.nbytes * (size - skip) / size)
            else:
                self._put_row(item)
            skip = 0
            if self._stopping.is_set():  # not before: what was drawn cannot be put back
                return
            self._asked = time.monotonic()

    def _put_row(self, row: Any) -> None:
        with self._lock:
            self._rows.append(row)
            self._size += self._row
            if self._size >= self.enough:
                self._arrived()

    def _put_table(self, table: pa.Table, size: float) -> None:
        with self._lock:
            self._before += [self._rows, table]
            self._rows = []
            self._size += size
            if self._size >= self.enough:
                self._arrived()

    def amount(self) -> int:
        return int(self._size)

    def cut(self) -> list[list[Any] | pa.Table] | None:
        if not self._before and not self._rows:
            return None
        content = [*self._before, self._rows]
        self._before, self._rows, self._size = [], [], 0.0
        return content

    def encode(self, content: list[list[Any] | pa.Table]) -> tuple[pa.Buffer, int]:
        tables: list[pa.Table] = []
        for part in content:
            tables += [part] if isinstance(part, pa.Table) else self._folded(part)
        table = together(tables)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        if len(content) == 1:
            self._row = max(len(data) / len(table), SEAL_BYTES / _MANY)
        return data, len(table)

    def _folded(self, rows: list[Any]) -> list[pa.Table]:
        """Rows as tables; what fits no column is kept as text, to become a dead letter."""
        wrong = {
            i: f"a generator must yield dicts or Arrow tables, got {type(row).__name__}"
            for i, row in enumerate(rows)
            if not isinstance(row, dict)
        }
        every = range(len(rows))
        table, kept = given_table(rows, self._schema, every, wrong, self.spec.zone)
        tables = [table] if len(kept) else []
        if wrong:
            raws = [as_json(rows[i]) for i in wrong]
            tables.append(pa.table({RAW: raws, ERROR: list(wrong.values())}))
        return tables


def _as_table(item: Any) -> pa.Table | None:
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    return item if isinstance(item, pa.Table) else None
