"""A checkpoint as a data source of Spark: slates, views, and the files of sinks batch by batch.

    spark.read.format("millstream").option("checkpoint", "ck/").option("slates", "counts").load()

What is asked for with the option `key` is looked up. Conditions of a query are left to Spark: it
would give a reader that has taken some to every query of the DataFrame, also to those without them.
`readStream` has batches as its offsets; what a batch gave is known of sinks that write files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.io.writers import json_text
from millstream.ops.mixed import holds_mixed
from millstream.serve.bulk import slates
from millstream.serve.reading import views
from millstream.state.checkpoint import Checkpoint
from millstream.state.storage import Storage, open_storage

_PART = re.compile(r"(?:.*/)?part-(\d{8,18})-\d+-\d+[^/]*\.parquet", re.ASCII)


class MillstreamSource(DataSource):
    """What Spark asks of the format "millstream"."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def _asked(self) -> Asked:
        options = {name.lower(): value for name, value in self.options.items()}
        checkpoint = options.get("checkpoint") or options.get("path")
        if not checkpoint:
            raise ConfigError('format("millstream"): say option("checkpoint", ...)')
        named = [kind for kind in ("slates", "stream") if options.get(kind)]
        if len(named) != 1:
            both = "; both were given: a reader keeps its options, begin with spark.read anew"
            raise ConfigError(
                'format("millstream"): say one of option("slates", UPDATER) and '
                'option("stream", VIEW_OR_SINK)' + (both if named else "")
            )
        columns = tuple(one.strip() for one in options.get("columns", "").split(",") if one.strip())
        keys = _keys(options.get("key"), options.get("keys"))
        if keys is not None and named[0] != "slates":
            raise ConfigError('format("millstream"): keys can be looked up among slates only')
        return Asked(checkpoint, named[0], options[named[0]], columns, keys)

    def schema(self) -> StructType:
        asked = self._asked()
        return from_arrow_schema(plain(asked.sample().schema))

    def reader(self, schema: StructType) -> CheckpointReader:
        return CheckpointReader(self._asked(), schema)

    def streamReader(self, schema: StructType) -> BatchesReader:
        return BatchesReader(self._asked(), schema)


def _keys(one: str | None, several: str | None) -> tuple[str, ...] | None:
    """The keys that are asked for, as texts; None: all."""
    if several is None:
        return None if one is None else (one,)
    try:
        found = json.loads(several)
    except ValueError:
        found = None
    if not isinstance(found, list) or one is not None:
        raise ConfigError(
            f'format("millstream"): option keys is a list as JSON, like ["a", "b"], and stands '
            f"without key; got {several!r}"
        )
    return tuple(key if isinstance(key, str) else json.dumps(key) for key in found)


@dataclass(frozen=True)
class Asked:
    """What is read of which checkpoint."""

    checkpoint: str
    kind: str
    name: str
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None

    def files(self) -> Storage | None:
        """The directory of a sink that writes parquet; None if the name is that of no sink."""
        program = Checkpoint(self.checkpoint, create=False).read_program() or {}
        where = program.get("sinks", {}).get(self.name)
        return None if where is None or self.kind == "slates" else open_storage(where)

    def parts(self, after: int, until: int | None = None) -> list[str]:
        """The files of batches after one, up to another."""
        directory = self.files()
        if directory is None:
            raise ConfigError(
                f"{self.name!r} is no sink of {self.checkpoint} that writes files; readStream "
                "reads those of ms.Parquet"
            )
        found = [(int(at[1]), one) for one in directory.walk() if (at := _PART.fullmatch(one))]
        if not found and not any(one.endswith(".parquet") for one in directory.walk()):
            others = [one for one in directory.walk() if "/." not in f"/{one}"]
            if others:
                raise ConfigError(f"{self.name!r} writes {others[0]}; only parquet files are read")
        return [one for n, one in sorted(found) if n > after and (until is None or n <= until)]

    def newest(self) -> int:
        """The last batch whose results are published."""
        published = Checkpoint(self.checkpoint, create=False).published()
        return -1 if published is None else published.batch

    def sample(self) -> pa.Table:
        """Something with the columns there are."""
        directory = self.files()
        if directory is None:
            found = self.looked_up()
            return self.chosen(self.whole() if found is None else found)
        parts = self.parts(-1)
        if not parts:
            raise ConfigError(f"sink {self.name!r} has written nothing yet: columns are unknown")
        return self.chosen(pq.read_schema(BytesIO(directory.read(parts[-1]))).empty_table())

    def whole(self) -> pa.Table:
        """All slates, or all rows of a view."""
        if self.kind == "slates":
            return slates(self.checkpoint, self.name).arrow()
        return views(self.checkpoint, self.name).arrow()

    def looked_up(self) -> pa.Table | None:
        """The slates of the keys that are asked for; None: there is none, or all are asked for."""
        if self.keys is None:
            return None
        return slates(self.checkpoint, self.name).looked_up(self.keys)

    def chosen(self, table: pa.Table) -> pa.Table:
        if not self.columns:
            return table
        missing = [one for one in self.columns if one not in table.column_names]
        if missing:
            raise ConfigError(
                f"option columns: there is no {missing[0]!r} in {', '.join(table.column_names)}"
            )
        return table.select(list(self.columns))


def plain(schema: pa.Schema) -> pa.Schema:
    """Types that Spark has."""
    fields = []
    for one in schema:
        kind = one.type
        if holds_mixed(kind):
            kind = pa.string()
        elif pa.types.is_dictionary(kind):
            kind = kind.value_type
        fields.append(pa.field(one.name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields)


def fitted(table: pa.Table, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows in the columns that Spark was told of; by now there may be others."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = []
    for one in wanted:
        if one.name not in table.column_names:
            columns.append(pa.nulls(len(table), one.type))
            continue
        column = table.column(one.name)
        if holds_mixed(column.type):
            texts = [None if value is None else json_text(value) for value in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.string())])
        columns.append(column.cast(one.type))
    yield from pa.table(columns, schema=wanted).combine_chunks().to_batches()


@dataclass
class Piece(InputPartition):
    """A file of a sink; None: all there is, in one task."""

    name: str | None = None


class CheckpointReader(DataSourceReader):
    """What a checkpoint holds now."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self.asked, self.schema = asked, schema

    def partitions(self) -> Sequence[Piece]:
        if self.asked.files() is not None:
            return [Piece(name) for name in self.asked.parts(-1)] or [Piece()]
        return [Piece()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        asked, directory = self.asked, self.asked.files()
        name = partition.name if isinstance(partition, Piece) else None
        if asked.keys is not None:
            found = asked.looked_up()
            yield from [] if found is None else fitted(found, self.schema)
        elif directory is None:
            yield from fitted(asked.whole(), self.schema)
        elif name is not None:
            yield from fitted(pq.read_table(BytesIO(directory.read(name))), self.schema)


class BatchesReader(DataSourceStreamReader):
    """The files of a sink, batch by batch."""

    def __init__(self, asked: Asked, schema: StructType) -> None:
        self.asked, self.schema = asked, schema
        asked.parts(-1)  # says what cannot be followed

    def initialOffset(self) -> dict[str, int]:
        return {"batch": -1}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": self.asked.newest()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Piece]:
        return [Piece(name) for name in self.asked.parts(start["batch"], end["batch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from CheckpointReader(self.asked, self.schema).read(partition)
