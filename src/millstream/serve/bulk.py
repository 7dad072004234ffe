"""Slates in bulk: as Arrow, pandas, DuckDB or Spark tables.

A table has the key, one column per top-level field of the slates, and the event time of the last
write. A field that holds values of one kind gets that type; one that does not is told as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.frames import plainly
from millstream.ops.codec import as_key
from millstream.serve.columns import to_table
from millstream.serve.following import Follower
from millstream.serve.keys import value_of
from millstream.serve.slates import Snapshot


class Tabular:
    """What can be read as one table, and so by other programs."""

    name: str

    def arrow(self) -> pa.Table:
        """All of it, as the last committed batch left it."""
        raise NotImplementedError

    def pandas(self) -> Any:
        """The same as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def duckdb(self, connection: Any, name: str | None = None) -> Any:
        """Register the table with a DuckDB connection, and give it as a relation."""
        table = name or self.name
        connection.register(table, self.arrow())
        return connection.table(table if table.isidentifier() else _quoted(table))

    def spark(self, session: Any) -> Any:
        """The same as a DataFrame of a Spark session."""
        return session.createDataFrame(self.arrow())


@plainly
class Slates(Tabular):
    """The slates of one updater, as the last committed batch left them.

    Every call reads the newest batch. The flow may be running; nothing is locked.
    """

    def __init__(self, checkpoint: str | Path, updater: str, *, codec: Any = None) -> None:
        """`codec`: that of the updater, if it has one; else such slates are told as bytes."""
        decoders = {} if codec is None else {updater: codec.decode}
        self._follower = Follower(checkpoint, decoders)
        self._follower.current.updater(updater)
        self.updater = self.name = updater

    def __repr__(self) -> str:
        where = self._follower.current.batch
        return f"Slates of {self.updater!r}, as of batch {where}: get(key), arrow(), pandas()"

    @property
    def batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        self._follower.advance()
        return self._follower.current.batch

    def get(self, key: Any, default: Any = None) -> Any:
        """The slate of a key (several key columns: a tuple), or the default."""
        found = self._follower.read(lambda snapshot: snapshot.get(self.updater, key))
        return default if found is None else found.slate

    def __contains__(self, key: Any) -> bool:
        return self._follower.read(lambda now: now.get(self.updater, key)) is not None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Keys (several columns: a tuple) and slates, in no particular order; all of one batch."""
        snapshot, tables = self._follower.read(self._scan)
        about = snapshot.updater(self.updater)
        for table in tables:
            columns = (table.column(name).to_pylist() for name in ("key", "plain", "slate"))
            for text, plain, data in zip(*columns, strict=True):
                yield as_key(value_of(text, plain)), snapshot.decode(about, data)

    def arrow(self) -> pa.Table:
        """All slates as one table: key, one column per field, ts."""
        snapshot, tables = self._follower.read(self._scan)
        about = snapshot.updater(self.updater)
        return to_table(tables, lambda data: snapshot.decode(about, data))

    def looked_up(self, texts: Sequence[str]) -> pa.Table | None:
        """The same of some keys, given as text, without reading others; None if there is none."""
        snapshot, tables = self._follower.read(
            lambda now: (now, list(now.rows_of(self.updater, texts)))
        )
        about = snapshot.updater(self.updater)
        return to_table(tables, lambda data: snapshot.decode(about, data)) if tables else None

    def _scan(self, snapshot: Snapshot) -> tuple[Snapshot, list[pa.Table]]:
        return snapshot, list(snapshot.scan(self.updater))


@plainly
def slates(checkpoint: str | Path, updater: str, *, codec: Any = None) -> Slates:
    """The slates of an updater, read from the checkpoint of its flow: running, or ended."""
    return Slates(checkpoint, updater, codec=codec)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
