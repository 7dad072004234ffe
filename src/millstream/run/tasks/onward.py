"""What a task sends on: rows and results to those of the next level, and what they must know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.batch import Batch, Control, Heard, Seen
from millstream.operators.protocol import Inlet
from millstream.ops.chunks import Chunk, encode_block, numbers
from millstream.ops.keys.ordering import Sample, as_block, bounds_of, ranges
from millstream.ops.times.progress import merge_reached
from millstream.run.tasks.measuring import Meter
from millstream.run.tasks.splits import SENT, Item

Blocks = dict[str, dict[str, list[bytes]]]  # by operator and kind


class Onward:
    """What leaves one task for others."""

    def __init__(self, batch: Batch, control: Control, levels: int) -> None:
        self._batch, self._control = batch, control
        self._further = levels - control.level  # levels after this one
        self._items: list[Item] = []
        self._samples: dict[str, Sample] = {}  # keys of results that are to be sorted
        self._targets: set[int] = set()  # partitions that get rows from here
        self.arrived: list[tuple[str, str, pa.Table]] = []  # rows of operators made elsewhere

    def pass_on(self, item: Item) -> None:
        """Something that is not for this level."""
        self._items.append(item)

    # -- results in order -----------------------------------------------------------------------

    def to_be_sorted(self, operator: str, chunk: Chunk) -> None:
        """Results wait for the next level, which knows the keys of all tasks."""
        if len(chunk):
            block, self._samples[operator] = as_block(chunk)
            self._items.append((self._control.part, "results", operator, block))

    def part_results(self, operator: str, blocks: Iterable[bytes], heard: Heard) -> None:
        """Part results into ranges, each for a task of the next level."""
        bounds = bounds_of(heard.samples.get(operator, []), self._batch.parallelism)
        for block in blocks:
            for part, piece in ranges(block, bounds).items():
                self._items.append((part, "ordered", operator, piece))

    # -- the end of the task --------------------------------------------------------------------

    def sent(self, inlets: dict[str, Inlet], meter: Meter) -> Iterator[Item]:
        """Rows for the next level, each with who sends it."""
        mine = (item for item in self._items if item[1] in SENT)
        for part, tag, name, payload in chain(self._blocks(inlets, meter), mine):
            if not self._further:
                raise RunError(
                    f"rows for {name!r} came out of level {self._control.level} of batch "
                    f"{self._batch.number}, after which it has no other: this is a defect, and "
                    "nothing of the batch was committed; please report it with the plan"
                )
            self._targets.add(part)
            yield (part, tag, name, (self._control.attempt, payload))

    def _blocks(self, inlets: dict[str, Inlet], meter: Meter) -> Iterator[Item]:
        """Rows per partition of the next level: the partition owns the shards congruent to it."""
        parts = self._batch.parallelism
        own = ((n, kind, table) for n, one in inlets.items() for kind, table in one.rows())
        for name, kind, table in chain(own, self.arrived):
            meter.send(name, len(table), table.nbytes)
            if parts == 1:
                yield (0, "rows", name, (kind, encode_block(table)))
                continue
            part = numbers(table, "shard") % parts
            for number in np.unique(part).tolist():
                block = encode_block(table.take(pa.array(np.flatnonzero(part == number))))
                yield (number, "rows", name, (kind, block))

    def told(self, heard: Heard | None, counts: dict[str, int]) -> Iterator[Item]:
        """Say what the tasks of the next level must know: to each, or for all where it is gathered.

        What all tasks of a level have heard alike only the first repeats.
        """
        if self._further <= 0:
            return
        control, batch = self._control, self._batch
        repeated = heard if control.part == 0 else None
        seen = Seen(
            control.part,
            control.attempt,
            merge_reached((control.reached, repeated.reached if repeated else {})),
            counts,
            dict(repeated.counts) if repeated else {},
            dict(control.holds),
            self._samples,
            tuple(sorted(self._targets)) if batch.gathers else (),
        )
        for part in [batch.parallelism] if batch.gathers else range(batch.parallelism):
            yield (part, "seen", "", seen)

    def passed_on(self) -> Iterator[Item]:
        """What others sent beyond the next level."""
        return (item for item in self._items if item[1] not in SENT)
