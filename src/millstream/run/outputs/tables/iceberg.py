"""An Iceberg table as a sink: its properties say which batch of which flow it has."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pyarrow as pa

from millstream.api.tables import Iceberg
from millstream.run.outputs.tables.writing import Conflict, Noted, required


class IcebergWriter:
    """An Iceberg table; the commit with the rows of a batch notes its number as a property."""

    def __init__(self, spec: Iceberg, owner: str) -> None:
        catalogs = required("pyiceberg.catalog", "iceberg", "ms.Iceberg")
        self.spec, self._owner = spec, owner
        self._batch, self._sum = f"millstream.{owner}", f"millstream.{owner}.checksum"
        given = spec.catalog
        self._catalog = (
            catalogs.load_catalog(given)
            if isinstance(given, str)
            else catalogs.load_catalog(**{"name": "millstream", **given})
        )

    def _table(self) -> Any:
        known = self._catalog.table_exists(self.spec.table)
        return self._catalog.load_table(self.spec.table) if known else None

    def reached(self) -> Noted:
        """The batch that was noted last; snapshots may be expired, properties of a table stay."""
        return self._noted(self._table())

    def _noted(self, table: Any) -> Noted:
        found = {} if table is None else table.properties
        if self._batch not in found:
            return Noted()
        checksum = found.get(self._sum)
        return Noted(int(found[self._batch]), None if checksum is None else int(checksum))

    def write(self, rows: pa.Table, gone: pa.Table | None, before: Noted, noted: Noted) -> None:
        exceptions: Any = importlib.import_module("pyiceberg.exceptions")
        table = self._table()
        if self._noted(table) != before:
            raise Conflict("it has another batch by now")
        if table is None:
            self._catalog.create_namespace_if_not_exists(self.spec.table.rpartition(".")[0])
            table = self._catalog.create_table(self.spec.table, rows.schema)
        said = {"millstream.sink": self._owner, "millstream.batch": str(noted.batch)}
        try:
            with table.transaction() as changes:
                if set(rows.column_names) - {one.name for one in table.schema().fields}:
                    with changes.update_schema() as columns:
                        columns.union_by_name(rows.schema)
                changes.set_properties(
                    {self._batch: str(noted.batch), self._sum: str(noted.checksum or 0)}
                )
                if gone is not None:
                    keys = pa.concat_tables([rows.select(list(self.spec.columns)), gone])
                    if len(keys) and table.current_snapshot() is not None:
                        with warnings.catch_warnings():  # rows of new keys were not there before
                            warnings.simplefilter("ignore", UserWarning)
                            changes.delete(_any_of(keys), snapshot_properties=said)
                changes.append(rows, snapshot_properties=said)
        except exceptions.CommitFailedException as error:
            raise Conflict(str(error)) from error

    def close(self) -> None:
        """Nothing is held."""


def _any_of(keys: pa.Table) -> Any:
    """A condition on rows with one of these keys."""
    by: Any = importlib.import_module("pyiceberg.expressions")
    if keys.num_columns == 1:
        (name,), values = keys.column_names, keys.column(0).to_pylist()
        found = by.In(name, {one for one in values if one is not None})
        return by.Or(found, by.IsNull(name)) if None in values else found
    every = [
        _joined([by.IsNull(n) if v is None else by.EqualTo(n, v) for n, v in row.items()], by.And)
        for row in keys.to_pylist()
    ]
    return _joined(every, by.Or)


def _joined(parts: list[Any], how: Any) -> Any:
    return parts[0] if len(parts) == 1 else how(*parts)
