"""A table of PostgreSQL as a sink: another one beside it says which batch of which flow it has."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.api.tables import Postgres
from millstream.io.writers import json_text
from millstream.ops.mixed import holds_mixed
from millstream.run.outputs.tables.writing import Conflict, Lost, Noted, required


class PostgresWriter:
    """A table of PostgreSQL; another one beside it says which batch of which flow it has."""

    PROGRESS = "millstream_progress"

    def __init__(self, spec: Postgres, owner: str) -> None:
        self._pg = required("psycopg", "postgres", "ms.Postgres")
        self._sql = importlib.import_module("psycopg.sql")
        self.spec, self._owner = spec, owner
        self._columns: set[str] = set()  # that the table is known to have
        try:
            self._connection = self._pg.connect(**_parameters(self._pg, spec))
        except self._pg.OperationalError as error:
            raise Lost(str(error)) from None
        with self._transaction():
            # Two runs that make it at once: the second waits for the first, and finds it.
            self._connection.execute("SELECT pg_advisory_xact_lock(7236411)")
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.PROGRESS} (sink TEXT PRIMARY KEY, "
                "batch BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now(), checksum BIGINT)"
            )
            there = self._connection.execute(f"SELECT * FROM {self.PROGRESS} LIMIT 0").description
            if "checksum" not in {one.name for one in there}:  # of an earlier release
                self._connection.execute(f"ALTER TABLE {self.PROGRESS} ADD COLUMN checksum BIGINT")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing; whether a connection that breaks at its end was in time, the table
        of progress says."""
        try:
            with self._connection.transaction():
                yield
        except (self._pg.OperationalError, self._pg.InterfaceError) as error:
            if self._connection.closed:
                raise Lost(str(error)) from None
            raise

    def reached(self) -> Noted:
        with self._transaction():
            return self._reached("")

    def _reached(self, how: str) -> Noted:
        found = self._connection.execute(
            f"SELECT batch, checksum FROM {self.PROGRESS} WHERE sink = %s {how}", (self._owner,)
        ).fetchone()
        return Noted() if found is None else Noted(*found)

    def write(self, rows: pa.Table, gone: pa.Table | None, before: Noted, noted: Noted) -> None:
        execute, identifier = self._connection.execute, self._name
        with self._transaction():
            execute(
                f"INSERT INTO {self.PROGRESS} (sink, batch) VALUES (%s, -1) "
                "ON CONFLICT (sink) DO NOTHING",
                (self._owner,),
            )
            if self._reached("FOR UPDATE") != before:
                raise Conflict("it has another batch by now")
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
                f"UPDATE {self.PROGRESS} SET batch = %s, checksum = %s, at = now() WHERE sink = %s",
                (*noted, self._owner),
            )

    def _name(self, name: str) -> Any:
        parts = name.split(".") if name == self.spec.table else [name]
        return self._sql.Identifier(*parts)

    def _make(self, schema: pa.Schema) -> None:
        """The table with all columns of rows: those that it lacks are added."""
        if self._columns.issuperset(schema.names):
            return
        target, made = self._name(self.spec.table), self._sql.SQL
        kinds = {
            one.name: made("{} {}").format(self._name(one.name), made(_pg_type(one.type)))
            for one in schema
        }
        columns = list(kinds.values())
        if self.spec.columns:
            keys = made(", ").join(map(self._name, self.spec.columns))
            columns.append(made("PRIMARY KEY ({})").format(keys))
        self._connection.execute(
            made("CREATE TABLE IF NOT EXISTS {} ({})").format(target, made(", ").join(columns))
        )
        known = self._connection.execute(made("SELECT * FROM {} LIMIT 0").format(target))
        there = {one.name for one in known.description}
        for column in (kinds[name] for name in schema.names if name not in there):
            self._connection.execute(
                made("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}").format(target, column)
            )
        self._columns = there.union(schema.names)

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
    return {"connect_timeout": 15, **given, "passfile": f"{os.devnull}/none"}  # which cannot be


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as a client of PostgreSQL takes them; what has parts as JSON."""
    nested = [pa.types.is_nested(one.type) for one in table.schema]
    for row in table.to_pylist():
        yield tuple(
            json_text(value) if parts and value is not None else value
            for value, parts in zip(row.values(), nested, strict=True)
        )


def refused_rows(key: tuple[str, ...], table: pa.Table) -> dict[int, str]:
    """Rows that no table of PostgreSQL takes, by number, and why.

    Tasks ask, because a batch that is committed can leave out none of its rows.
    """
    found: dict[int, str] = {}
    for name in key:
        if name in table.column_names and table.column(name).null_count:
            for row in np.flatnonzero(table.column(name).is_null().to_numpy()).tolist():
                found[row] = f"column {name!r} of its key is null, and a primary key may not be"
    for one in table.schema:
        texts = table.column(one.name)
        if pa.types.is_string(one.type) or pa.types.is_large_string(one.type):
            bad = pc.fill_null(pc.match_substring(texts, "\0"), False).to_numpy()
        elif pa.types.is_nested(one.type) or holds_mixed(one.type):
            bad = np.fromiter(map(_has_nul, texts.to_pylist()), bool, len(table))
        else:
            continue
        for row in np.flatnonzero(bad).tolist():
            found.setdefault(row, f"column {one.name!r} has the character 0, which no text may")
    return found


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(one) for pair in value.items() for one in pair)
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_nul, value))


def _pg_type(kind: pa.DataType) -> str:
    is_ = pa.types
    simple: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (is_.is_boolean, "BOOLEAN"),
        (is_.is_int8, "SMALLINT"),
        (is_.is_int16, "SMALLINT"),
        (is_.is_int32, "INTEGER"),
        (is_.is_uint64, "NUMERIC(20)"),
        (is_.is_integer, "BIGINT"),
        (is_.is_float32, "REAL"),
        (is_.is_floating, "DOUBLE PRECISION"),
        (is_.is_timestamp, "TIMESTAMPTZ" if getattr(kind, "tz", None) else "TIMESTAMP"),
        (is_.is_date, "DATE"),
        (is_.is_binary, "BYTEA"),
        (is_.is_large_binary, "BYTEA"),
        (is_.is_nested, "JSONB"),
        (is_.is_duration, "INTERVAL"),
    ]
    if is_.is_decimal(kind):
        return f"NUMERIC({kind.precision}, {kind.scale})"
    return next((name for test, name in simple if test(kind)), "TEXT")
