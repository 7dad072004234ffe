"""A Delta table as a sink: its log says which batch of which flow it has."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pyarrow as pa

from millstream.api.sources import Delta
from millstream.run.outputs.tables.writing import Conflict, Lost, Noted, required
from millstream.state.buckets import without_tls

_GONE = "__millstream_gone"  # marks the keys of rows that are taken out


class DeltaWriter:
    """A Delta table; its log says which batch of which flow it has (application transactions)."""

    def __init__(self, spec: Delta, owner: str) -> None:
        self._lake = required("deltalake", "delta", "ms.Delta")
        self.spec, self._app, self._sum = spec, owner, f"{owner}:checksum"
        self._options = store_options(spec.location)

    def _table(self) -> Any:
        exceptions = importlib.import_module("deltalake.exceptions")
        try:
            return self._lake.DeltaTable(self.spec.location, storage_options=self._options)
        except exceptions.TableNotFoundError:
            return None
        except (exceptions.DeltaError, OSError) as error:
            raise _lost(error) from None

    def reached(self) -> Noted:
        return self._noted(self._table())

    def _noted(self, table: Any) -> Noted:
        batch = None if table is None else table.transaction_version(self._app)
        return Noted() if batch is None else Noted(batch, table.transaction_version(self._sum))

    def write(self, rows: pa.Table, gone: pa.Table | None, before: Noted, noted: Noted) -> None:
        lake = self._lake
        exceptions = importlib.import_module("deltalake.exceptions")
        properties = lake.CommitProperties(
            app_transactions=[
                lake.Transaction(self._app, noted.batch),
                lake.Transaction(self._sum, noted.checksum or 0),
            ],
            custom_metadata={"millstream.batch": str(noted.batch)},
        )
        try:
            table = self._table()
            if self._noted(table) != before:
                raise Conflict("it has another batch by now")
            if gone is None or table is None:
                lake.write_deltalake(
                    self.spec.location if table is None else table,
                    rows,
                    mode="append",
                    schema_mode=None if table is None else "merge",
                    commit_properties=properties,
                    storage_options=self._options if table is None else None,
                )
                return
            self._merge(table, rows, gone, properties)
        except (exceptions.DeltaError, OSError) as error:
            if isinstance(error, exceptions.CommitFailedError) or "oncurrent" in str(error):
                raise Conflict(str(error)) from error
            raise _lost(error) from None

    def _merge(self, table: Any, rows: pa.Table, gone: pa.Table, properties: Any) -> None:
        """All that changed as one table, with a mark on what is gone: one merge, one commit."""
        nothing = {name: pa.nulls(len(gone), rows.field(name).type) for name in rows.column_names}
        keys = {name: gone.column(name) for name in gone.column_names}
        absent = pa.table({**nothing, **keys}).cast(rows.schema)
        changed = pa.concat_tables(
            [
                rows.append_column(_GONE, pa.repeat(pa.scalar(False), len(rows))),
                absent.append_column(_GONE, pa.repeat(pa.scalar(True), len(gone))),
            ]
        )
        quoted = {name: '"' + name.replace('"', '""') + '"' for name in rows.column_names}
        same = (f"t.{quoted[k]} IS NOT DISTINCT FROM s.{quoted[k]}" for k in self.spec.columns)
        values = {name: f"s.{name}" for name in quoted.values()}
        merge = table.merge(
            changed,
            " AND ".join(same),
            source_alias="s",
            target_alias="t",
            merge_schema=True,
            commit_properties=properties,
        )
        merge = merge.when_matched_delete(f"s.{_GONE}")
        merge = merge.when_matched_update(values, predicate=f"NOT s.{_GONE}")
        merge.when_not_matched_insert(values, predicate=f"NOT s.{_GONE}").execute()

    def close(self) -> None:
        """Nothing is held."""


def _lost(error: Exception) -> Exception:
    """An error of the store, after which the table says whether it has the batch; or another.

    Its client draws a tree of reasons in colours, with what was asked for: here it is one line.
    """
    reasons = re.sub(r"\x1b\[\d+m|\?\S+", "", str(error)).split("↳")
    text = ": ".join(" ".join(one.split()) for one in reasons)
    return Lost(text) if "object store" in text or "Generic" in text else OSError(text)


def store_options(location: str) -> dict[str, str] | None:
    """What a store in the environment needs to be told besides."""
    scheme, there, _ = location.partition("://")
    return {"allow_http": "true"} if there and without_tls(scheme) else None
