"""Files as a source that is read in blocks, in random order, for early answers.

A batch takes the next blocks of the order and is committed as a whole, so at every commit what was
read is a random sample of all blocks, however long single ones take.
"""

from __future__ import annotations

import numpy as np

from millstream.api.sources import Files
from millstream.errors import ConfigError, RunError
from millstream.io.formats import Format
from millstream.ops.times.progress import Horizon
from millstream.run.sources.files.population import File, Population, draw
from millstream.run.sources.files.tracker import OfFiles
from millstream.run.sources.tracking import Probe, directly
from millstream.run.tasks.splits import AnySplit
from millstream.state.manifests import SourceState
from millstream.state.storage import Storage

_REST = 0.1  # of a batch: less than that is taken along


class BlocksTracker(OfFiles):
    """Stored files, read in a random order of their blocks."""

    def __init__(
        self,
        number: int,
        spec: Files,
        fmt: Format,
        sources: Storage,
        stem: str,
        state: SourceState,
        seed: int = 0,
        marks: tuple[float, ...] = (),
    ) -> None:
        self.number, self.spec, self.fmt, self.marks = number, spec, fmt, marks
        self.taken = state.extra.get("blocks", 0)
        self.ended = state.ended
        self.aim: int | None = None  # so many blocks should be enough
        self._seed, self._sources, self._name = seed, sources, f"{stem}.blocks"
        self._begun = "blocks" in state.extra
        self._population: Population | None = None
        self.files: list[File] = []  # known after the first look
        if not self._begun and (state.registry or state.files or state.open):
            raise ConfigError(
                "snapshots(): this checkpoint was begun by a plain run, which reads files from "
                "their beginning; that is no sample of them. Give another checkpoint="
            )

    @property
    def population(self) -> Population:
        """All blocks; known after the first look."""
        assert self._population is not None
        return self._population

    def poll(self, probe: Probe = directly) -> None:
        """Cut and draw once."""
        if self._population is not None:
            return
        found = Population.read(self._sources, self._name) if self._begun else None
        if found is None and self._begun:
            raise RunError(
                f"{self._sources.where(self._name)} is missing: which blocks were read cannot be "
                "known; begin again with a new checkpoint"
            )
        if found is None:
            found = draw(self.spec, self.fmt, self.number, self._seed, probe)
            found.write(self._sources, self._name)
        else:
            found.check(self.spec)
        self._population, self.files = found, found.files
        self.ended = self.taken == len(found.blocks)

    def pending(self) -> int:
        """Bytes (for parquet rows, times the bytes of a row) not yet taken."""
        if self._population is None:
            return 0
        scale = self.row_bytes if self.fmt.cut == "parquet" else 1
        return int(self.population.sizes[self.taken :].sum() * scale)

    def take(self, rows: int, size: int, parts: int) -> list[AnySplit]:
        """The next blocks, up to the next share of the input at which somebody looks."""
        parquet = self.fmt.cut == "parquet"
        budget = rows if parquet else min(size, rows * self.row_bytes)
        sizes = self.population.sizes
        read = np.concatenate([[0.0], np.cumsum(sizes)])
        end = int(np.searchsorted(read, read[self.taken] + budget, side="right")) - 1
        if read[-1] - read[end] < _REST * (read[end] - read[self.taken]):
            end = len(sizes)  # a batch more costs more, and all of it is exact
        for mark in self.marks:
            stop = int(np.searchsorted(read, mark * read[-1] * (1 - 1e-12)))
            if self.taken < stop < end:
                end = stop
        if self.aim is not None and self.taken < self.aim < end:
            end = self.aim
        end = min(len(sizes), max(end, self.taken + 1))
        some = self.population.blocks[self.taken : end]
        self._much = sum(block.size for block in some)
        self.taken = end
        self.ended = self.taken == len(sizes)
        splits = [self.population.split(self.number, block) for block in some]
        return [*sorted(splits, key=lambda split: (split.file, split.start))]

    def horizon(self, now: int, since: int = 0) -> Horizon:
        """Nothing leaves before all has been read."""
        return Horizon()

    def save(self, state: SourceState) -> None:
        """How many blocks were read: the first ones of the order."""
        state.extra = {"blocks": self.taken, "seed": self._seed}
