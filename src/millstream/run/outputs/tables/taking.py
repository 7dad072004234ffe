"""Committed batches into tables of other systems: each in one transaction that says which it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.sources import Delta
from millstream.api.tables import Iceberg, Postgres, TableSink
from millstream.errors import ConfigError, MillstreamError, RunError
from millstream.io.writers import json_text
from millstream.ops.emitting.edges import MARKS, last_of_each
from millstream.ops.mixed import holds_mixed
from millstream.run.outputs.tables.delta import DeltaWriter
from millstream.run.outputs.tables.iceberg import IcebergWriter
from millstream.run.outputs.tables.kinds import as_stored
from millstream.run.outputs.tables.postgres import PostgresWriter
from millstream.run.outputs.tables.writing import Conflict, Gave, Lost, Noted, TableWriter

PATIENCE = 60.0  # seconds for which a system that went away, or is changed by others, is asked
_PAUSE = 0.25
_LOOKS = 4  # at a table before a run begins


class Tabled:
    """A table as the sink of a stream."""

    def __init__(self, name: str, spec: TableSink, owner: str, *, deltas: bool) -> None:
        self.name, self.spec, self.deltas = name, spec, deltas
        self._owner = owner
        self._writer: TableWriter | None = None
        self._known: Noted | None = None  # what the table was seen to have

    def _opened(self) -> TableWriter:
        if self._writer is None:
            self._writer = _WRITERS[type(self.spec)](self.spec, self._owner)
        return self._writer

    def check(self, newest: int, gave: Gave) -> None:
        """See whether it can be reached, and has no batch that the checkpoint does not have."""
        with self._told("cannot be used", ConfigError):
            found = self._reached()
        ours = None if found.checksum is None else gave(self.name, found.batch)
        if found.batch > newest or ours not in (None, found.checksum):
            raise RunError(
                f"sink {self.name!r}: {self.spec.shown} has a batch {found.batch} of this flow "
                f"that the checkpoint, which ends with batch {newest}, does not have: it is an "
                "older copy. Go on with the one that is ahead, or begin with a new checkpoint (and "
                "a new table)"
            )
        self._known = found

    def _reached(self) -> Noted:
        """The newest batch there; one failed answer of a store is none, of a database it is."""
        looks = 1 if isinstance(self.spec, Postgres) else _LOOKS
        for _ in range(looks - 1):
            try:
                return self._opened().reached()
            except MillstreamError:
                raise
            except Exception:  # whatever the client of that system raises
                self.close()
                time.sleep(_PAUSE)
        return self._opened().reached()

    def deliver(self, table: pa.Table, batch: int, checksum: int) -> None:
        """Write the rows of a batch, unless it is there already."""
        noted = Noted(batch, checksum)
        with self._told(f"did not take batch {batch}, which is committed: it is written", RunError):
            rows, gone = self._changes(table)
            begun = time.monotonic()
            while True:
                try:
                    writer = self._opened()
                    found = writer.reached()
                    other = found.batch == batch and found.checksum not in (None, checksum)
                    if other or found not in (self._known or found, noted):
                        raise RunError(
                            f"{self.spec.shown} has batch {found.batch} of another run of this "
                            f"flow, and here is batch {batch}; this one ends"
                        )
                    self._known = found
                    if found.batch < batch:
                        writer.write(rows, gone, found, noted)
                        self._known = noted
                    return
                except (Lost, Conflict) as error:
                    self.close()
                    if time.monotonic() - begun > PATIENCE:
                        if isinstance(error, Lost):
                            raise
                        raise RunError(
                            f"{self.spec.shown} is changed by others all the time; stop them and "
                            "run again"
                        ) from None
                    time.sleep(_PAUSE)

    def _changes(self, table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """What a batch comes to: rows to put in, and keys of those to take out."""
        table = _plain(table)
        if not isinstance(self.spec, Postgres):
            table = as_stored(table, times=isinstance(self.spec, Iceberg))
        key = list(self.spec.columns)
        if not key:
            return table, None
        names = zip(*(table.column(name).to_pylist() for name in key), strict=True)
        places = sorted(last_of_each(table, names, self.deltas).values())
        last = table.take(pa.array(places, pa.int64()))
        taken = pc.equal(last.column("op"), "-") if self.deltas else None
        marks = [name for name in MARKS if name in last.column_names and self.deltas]
        if taken is None:
            return last, last.slice(0, 0).select(key)
        rows = last.filter(pc.invert(taken)).drop_columns(marks)
        return rows, last.filter(taken).select(key)

    @contextlib.contextmanager
    def _told(self, what: str, kind: type[MillstreamError]) -> Iterator[None]:
        """Errors of other systems in one line, without secrets."""
        try:
            yield
        except MillstreamError as error:
            raise type(error)(f"sink {self.name!r}: {error}") from None
        except Exception as error:  # whatever the client of that system raises
            line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            again = " at the next start" if kind is RunError else ""
            raise kind(f"sink {self.name!r}: {self.spec.shown} {what}{again} ({line})") from None

    def close(self) -> None:
        """Let go of the connection."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with contextlib.suppress(Exception):  # it may be what is broken
                writer.close()


def _plain(table: pa.Table) -> pa.Table:
    """Columns that other systems know: texts as such, and what has no one type as JSON."""
    for at, field in enumerate(table.schema):
        column = table.column(at)
        if holds_mixed(field.type):
            texts = [None if one is None else json_text(one) for one in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.string())])
        elif pa.types.is_dictionary(field.type):
            column = column.cast(field.type.value_type)
        table = table.set_column(at, field.name, column)
    known = [field.name for field in table.schema if not pa.types.is_null(field.type)]
    return table.select(known) if known else table  # a column comes with its first value


_WRITERS: dict[type, Callable[[Any, str], TableWriter]] = {
    Delta: DeltaWriter,
    Postgres: PostgresWriter,
    Iceberg: IcebergWriter,
}
