"""A table of PostgreSQL as a sink: another one beside it says which batch of which flow it has."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from millstream.api.tables import Postgres
from millstream.io.writers import json_text
from millstream.run.tables.writing import required


class PostgresWriter:
    """A table of PostgreSQL; another one beside it says which batch of which flow it has."""

    PROGRESS = "millstream_progress"

    def __init__(self, spec: Postgres, owner: str) -> None:
        self._pg = required("psycopg", "postgres", "ms.Postgres")
        self._sql = importlib.import_module("psycopg.sql")
        self.spec, self._owner = spec, owner
        self._connection = self._pg.connect(**_parameters(self._pg, spec))
        with self._connection.transaction():
            # Two runs that make it at once: the second waits for the first, and finds it.
            self._connection.execute("SELECT pg_advisory_xact_lock(7236411)")
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.PROGRESS} (sink TEXT PRIMARY KEY, "
                "batch BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now())"
            )

    def reached(self) -> int:
        with self._connection.transaction():
            return self._reached("")

    def _reached(self, how: str) -> int:
        found = self._connection.execute(
            f"SELECT batch FROM {self.PROGRESS} WHERE sink = %s {how}", (self._owner,)
        ).fetchone()
        return -1 if found is None else int(found[0])

    def write(self, rows: pa.Table, gone: pa.Table | None, batch: int) -> None:
        execute, identifier = self._connection.execute, self._name
        with self._connection.transaction():
            execute(
                f"INSERT INTO {self.PROGRESS} (sink, batch) VALUES (%s, -1) "
                "ON CONFLICT (sink) DO NOTHING",
                (self._owner,),
            )
            if self._reached("FOR UPDATE") >= batch:
                return
            self._make(rows.schema)
            if gone is not None and len(gone):
                same = self._sql.SQL(" AND ").join(
                    self._sql.SQL("{} IS NOT DISTINCT FROM %s").format(identifier(name))
                    for name in self.spec.columns
                )
                delete = self._sql.SQL("DELETE FROM {} WHERE {}").format(
                    identifier(self.spec.table), same
                )
                with self._connection.cursor() as cursor:
                    cursor.executemany(delete, _tuples(gone))
            if len(rows):
                self._upsert(rows, keyed=gone is not None)
            execute(
                f"UPDATE {self.PROGRESS} SET batch = %s, at = now() WHERE sink = %s",
                (batch, self._owner),
            )

    def _name(self, name: str) -> Any:
        return (
            self._sql.Identifier(*name.split("."))
            if name == self.spec.table
            else (self._sql.Identifier(name))
        )

    def _make(self, schema: pa.Schema) -> None:
        columns = [
            self._sql.SQL("{} {}").format(self._name(one.name), self._sql.SQL(_pg_type(one.type)))
            for one in schema
        ]
        if self.spec.columns:
            keys = self._sql.SQL(", ").join(map(self._name, self.spec.columns))
            columns.append(self._sql.SQL("PRIMARY KEY ({})").format(keys))
        self._connection.execute(
            self._sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                self._name(self.spec.table), self._sql.SQL(", ").join(columns)
            )
        )

    def _upsert(self, rows: pa.Table, *, keyed: bool) -> None:
        sql = self._sql.SQL
        names = sql(", ").join(map(self._name, rows.column_names))
        target, staged = self._name(self.spec.table), self._name("millstream_rows")
        self._connection.execute(
            sql("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                staged, names, target
            )
        )
        copy = sql("COPY {} ({}) FROM STDIN").format(staged, names)
        with self._connection.cursor() as cursor, cursor.copy(copy) as out:
            for row in _tuples(rows):
                out.write_row(row)
        insert = sql("INSERT INTO {} ({}) SELECT {} FROM {}").format(target, names, names, staged)
        if keyed:
            others = [name for name in rows.column_names if name not in self.spec.columns]
            sets = sql(", ").join(
                sql("{} = EXCLUDED.{}").format(self._name(one), self._name(one)) for one in others
            )
            then = sql("UPDATE SET {}").format(sets) if others else sql("NOTHING")
            insert += sql(" ON CONFLICT ({}) DO {}").format(
                sql(", ").join(map(self._name, self.spec.columns)), then
            )
        self._connection.execute(insert)

    def close(self) -> None:
        self._connection.close()


def _parameters(pg: Any, spec: Postgres) -> dict[str, Any]:
    """What to connect with: no password that libpq would find by itself and send elsewhere."""
    given: dict[str, Any] = pg.conninfo.conninfo_to_dict(spec.url)
    if spec.password is not None:
        given["password"] = spec.password
    given.setdefault("password", "")  # else PGPASSWORD
    return {"connect_timeout": 15, **given, "passfile": os.devnull}


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as a client of PostgreSQL takes them; what has parts as JSON."""
    nested = [pa.types.is_nested(one.type) for one in table.schema]
    for row in table.to_pylist():
        yield tuple(
            json_text(value) if parts and value is not None else value
            for value, parts in zip(row.values(), nested, strict=True)
        )


def _pg_type(kind: pa.DataType) -> str:
    is_ = pa.types
    simple: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (is_.is_boolean, "BOOLEAN"),
        (is_.is_int8, "SMALLINT"),
        (is_.is_int16, "SMALLINT"),
        (is_.is_int32, "INTEGER"),
        (is_.is_integer, "BIGINT"),
        (is_.is_float32, "REAL"),
        (is_.is_floating, "DOUBLE PRECISION"),
        (is_.is_timestamp, "TIMESTAMPTZ"),
        (is_.is_date, "DATE"),
        (is_.is_binary, "BYTEA"),
        (is_.is_large_binary, "BYTEA"),
        (is_.is_nested, "JSONB"),
        (is_.is_duration, "INTERVAL"),
    ]
    if is_.is_decimal(kind):
        return f"NUMERIC({kind.precision}, {kind.scale})"
    return next((name for test, name in simple if test(kind)), "TEXT")
