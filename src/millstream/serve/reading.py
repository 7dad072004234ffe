"""`ms.views`: the rows of a view as Arrow, pandas, DuckDB or Spark tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.api.frames import plainly
from millstream.serve.bulk import Tabular
from millstream.serve.following import Follower
from millstream.serve.views import read_all


@plainly
class View(Tabular):
    """The rows of one view, as the last committed batch left them.

    Every call reads the newest batch. The flow may be running; nothing is locked.
    """

    def __init__(self, checkpoint: str | Path, name: str) -> None:
        self._follower = Follower(checkpoint)
        self.name = self._follower.current.view(name).view

    @property
    def batch(self) -> int:
        """The last committed batch; -1 if there is none."""
        self._follower.advance()
        return self._follower.current.batch

    def arrow(self) -> pa.Table:
        """All rows, in no particular order; all of one batch."""
        return self._follower.read(lambda now: read_all(now, now.view(self.name)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for piece in self.arrow().to_batches(1000):
            yield from piece.to_pylist()


@plainly
def query(checkpoint: str | Path, sql: str) -> pa.Table:
    """The answer of a query over the views of a flow, as the last committed batch left them.

    The SQL is that of `flow.sql`, and ORDER BY, LIMIT and OFFSET may stand by themselves. It is
    computed in this process, without Spark.
    """
    from millstream.run.asking import query_views

    return query_views(Follower(checkpoint), sql)


@plainly
def views(checkpoint: str | Path, name: str) -> View:
    """A view of a flow, read from its checkpoint: while it runs, or when it has ended."""
    return View(checkpoint, name)
