"""Looking at a stream while a flow is written, before anything runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.api.frames import plainly
from millstream.api.samples import Sample
from millstream.api.verbs.point import Point


@plainly
class Peeking(Point):
    """What a stream shows of itself."""

    def head(self, n: int = 5, *, records: int = 10_000) -> Sample:
        """The first rows, computed in this process from the first records of the sources.

        Neither Spark nor a checkpoint is used, and sinks get nothing.
        records: how many of each source; windows over them leave as at the end of the input.
        """
        return self.flow.sampled([self.name], n, records)[self.name]

    def show(self, n: int = 20, *, records: int = 10_000) -> None:
        """Print the first rows, and what they were made of."""
        print(self.head(n, records=records))

    @property
    def schema(self) -> pa.Schema:
        """The columns of this stream and their types, as the first records show them."""
        return self.head(1).schema

    def collect(self, **options: Any) -> pa.Table:
        """All rows over the whole of a bounded input, as an Arrow table; `.to_pandas()` of it.

        A small input is read in this process; a large one, or one run with options (the fields of
        `millstream.Settings`), on Spark. No checkpoint is left, and sinks get nothing.
        """
        return self.flow.collected(self.name, options)

    def to_frame(self, spark: Any, **options: Any) -> Any:
        """The same as a DataFrame of a Spark session."""
        return spark.createDataFrame(self.collect(**options))
