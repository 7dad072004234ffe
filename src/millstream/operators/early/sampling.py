"""A window over the whole input whose tasks also report what each block gave each group.

It computes what it would without: states per key are made chunk by chunk anyway, and a chunk never
reaches beyond its block, so the states are reported before they are merged. What was reported is
written before the manifest of its batch, under its number, and counts once that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.batch import Control
from millstream.operators.early.logs import Log
from millstream.operators.protocol import Backlog, Done, Host, Known
from millstream.operators.windows.family import Panes, Windows
from millstream.ops.chunks import Chunk, concat, decode_block, encode_block
from millstream.ops.estimating.answers import estimated, reported_columns
from millstream.ops.estimating.values import (
    counts_values,
    quantile_of,
    reported_tails,
    reported_values,
    tailed,
)
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.state.manifests import Manifest
from millstream.state.storage import open_storage


@dataclass(frozen=True)
class Sampled(Windows):
    """Windows that report what blocks gave one of their steps, its results, or both."""

    step: str = ""  # the one that is looked at
    blocks: bool = True
    results: bool = True
    held: bool = False  # its results do not go on: who looks gives them, with all that came before

    def backlog(self, known: Known) -> Backlog:
        """What is looked at goes as far as its input."""
        return replace(super().backlog(known), holdable=False)

    @property
    def job(self) -> WindowJob:
        """What the step that is looked at computes."""
        return next(job for job in self.family.jobs if job.name == self.step)

    @property
    def values(self) -> dict[str, str]:
        """Aggregates for which single values are reported, by the name they are kept under."""
        wanted = [
            m.name for m in self.job.measures if counts_values(m) or quantile_of(m) is not None
        ]
        tails = tailed(self.job).values()
        return {
            **{f"values{number}": name for number, name in enumerate(wanted)},
            **{f"tails{number}": name for number, name in enumerate(tails)},
        }

    @property
    def gives_at_the_end(self) -> bool:
        """Its snapshots are results too, and come before."""
        return False

    def inlet(self, host: Host) -> Panes:
        """Records are reduced to panes, and each block is reported."""
        if not self.blocks or not any(map(estimated, self.job.measures)):
            return Panes(self.family, host)
        return BlockPanes(self.family, host, self.job, self.values)

    def give(self, host: Host, step: str, chunk: Chunk) -> None:
        """Results go on, and are reported."""
        looked_at = self.results and step == self.step
        if looked_at and len(chunk):
            report = host.control.reports.setdefault(f"{self.name}/exact", [])
            report.append(encode_block(chunk.table))
        if not looked_at or not self.held:
            super().give(host, step, chunk)

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """Keep what was reported under the number of the batch, which is not committed yet."""
        super().settle(known, done, manifest)
        log = Log(open_storage(done.batch.checkpoint), self.name)
        kinds = ["blocks", *self.values] if self.blocks else []
        for kind in [*kinds, "exact"] if self.results and done.ended else kinds:
            log.write(done.batch.number, kind, self.reported(done.controls, kind))

    def reported(self, controls: list[Control], kind: str) -> pa.Table | None:
        """What the tasks of a batch said of blocks, single values or results."""
        reports = (one.reports.get(f"{self.name}/{kind}", ()) for one in controls)
        tables = [decode_block(block) for report in reports for block in report]
        return concat(tables) if tables else None


class BlockPanes(Panes):
    """Records on their way into a window, with what each block gave."""

    def __init__(self, family: Family, host: Host, job: WindowJob, values: dict[str, str]) -> None:
        super().__init__(family, host)
        self._at = 0  # a position in the block
        self._job, self._values = job, values
        self._given: dict[str, list[pa.Table]] = {}

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Remember which block the records are of: all of a chunk are of one."""
        self._at = int(chunk.pos.min()) if len(chunk) else 0
        if step.name == self.family.jobs[0].name:  # the others of the family get the same
            found = reported_values(self._job, chunk) | reported_tails(self._job, chunk)
            for kind, name in self._values.items():
                if name in found:
                    self._given.setdefault(kind, []).append(found[name])
        super().take(step, before, chunk)

    def _hold(self, table: pa.Table) -> None:
        if len(table):
            given = table.select(reported_columns(self._job, table.column_names))
            at = pa.array(np.full(len(given), self._at, np.int64))
            self._given.setdefault("blocks", []).append(given.append_column("block", at))
        super()._hold(table)

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Panes go to the shards, what blocks gave to the driver."""
        for kind, tables in self._given.items():
            report = [encode_block(concat(tables))]
            self.host.control.reports[f"{self.family.name}/{kind}"] = report
        yield from super().rows()
