"""A window over the whole input whose tasks also report what each block gave each group.

It computes what it would without: states per key are made chunk by chunk anyway, and a chunk never
reaches beyond its block, so the states are reported before they are merged. What was reported is
written before the manifest of its batch, under its number, and counts once that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.early.logs import Log
from millstream.operators.protocol import Done, Host, Known
from millstream.operators.windows.family import Panes, Windows
from millstream.ops.chunks import Chunk, concat, encode_block
from millstream.ops.estimating.answers import estimated, reported_columns
from millstream.ops.estimating.values import counts_values, quantile_of, reported_values
from millstream.ops.jobs import Family
from millstream.state.manifests import Manifest
from millstream.state.storage import open_storage


@dataclass(frozen=True)
class Sampled(Windows):
    """Windows that report blocks, results, or both."""

    blocks: bool = True
    results: bool = True

    @property
    def values(self) -> dict[str, str]:
        """Aggregates for which single values are reported, by the name they are kept under."""
        measures = self.family.jobs[0].measures
        wanted = [m.name for m in measures if counts_values(m) or quantile_of(m) is not None]
        return {f"values{number}": name for number, name in enumerate(wanted)}

    def inlet(self, host: Host) -> Panes:
        """Records are reduced to panes, and each block is reported."""
        if not self.blocks or not any(map(estimated, self.family.jobs[0].measures)):
            return Panes(self.family, host)
        return BlockPanes(self.family, host, self.values)

    def give(self, host: Host, step: str, chunk: Chunk) -> None:
        """Results go on, and are reported."""
        if self.results and len(chunk):
            report = host.control.reports.setdefault(f"{self.name}/exact", [])
            report.append(encode_block(chunk.table))
        super().give(host, step, chunk)

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """Keep what was reported under the number of the batch, which is not committed yet."""
        super().settle(known, done, manifest)
        log = Log(open_storage(done.batch.checkpoint), self.name)
        kinds = ["blocks", *self.values] if self.blocks else []
        for kind in [*kinds, "exact"] if self.results and done.ended else kinds:
            reports = done.reports(f"{self.name}/{kind}")
            log.write(done.batch.number, kind, [one for report in reports for one in report])


class BlockPanes(Panes):
    """Records on their way into a window, with what each block gave."""

    def __init__(self, family: Family, host: Host, values: dict[str, str]) -> None:
        super().__init__(family, host)
        self._at = 0  # a position in the block
        self._values = values
        self._given: dict[str, list[pa.Table]] = {}

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Remember which block the records are of: all of a chunk are of one."""
        self._at = int(chunk.pos.min()) if len(chunk) else 0
        found = reported_values(self.family.jobs[0], chunk)
        for kind, name in self._values.items():
            if name in found:
                self._given.setdefault(kind, []).append(found[name])
        super().take(step, before, chunk)

    def _hold(self, table: pa.Table) -> None:
        if len(table):
            given = table.select(reported_columns(self.family, table.column_names))
            at = pa.array(np.full(len(given), self._at, np.int64))
            self._given.setdefault("blocks", []).append(given.append_column("block", at))
        super()._hold(table)

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Panes go to the shards, what blocks gave to the driver."""
        for kind, tables in self._given.items():
            report = [encode_block(concat(tables))]
            self.host.control.reports[f"{self.family.name}/{kind}"] = report
        yield from super().rows()
