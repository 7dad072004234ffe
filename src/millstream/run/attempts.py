"""The tasks of a batch: who reads what, and all of it again if they did not agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from millstream.operators.batch import Batch, Control
from millstream.run import fitting
from millstream.run.agreeing import disagreement, jumbled_sources, same_attempts
from millstream.run.splits import AnySplit, Item
from millstream.run.spreading import Spreading, readers
from millstream.run.tracking import Tracker

TRIES = 8  # times a batch is run whose tasks do not agree
_ORDERED = 8  # batches for which a source that was jumbled is read in order

Run = Callable[[Batch, list[list[AnySplit]]], list[Item]]


class Attempts:
    """Runs batches until their tasks agree, and remembers which sources must be read in order."""

    def __init__(self) -> None:
        self.spreading = Spreading()
        self.readers: dict[str, int] = {}  # tasks that read each source in the last batch
        self._ordered: dict[str, int] = {}  # sources read in order, up to which batch

    def run(
        self,
        run: Run,
        batch: Batch,
        splits: dict[str, list[AnySplit]],
        trackers: Mapping[str, Tracker],
        discard: Callable[[Batch], None],
    ) -> list[Item]:
        """Run the tasks; again as a whole if they differ in what they saw, judged or wrote.

        discard: removes what they wrote.
        """
        for _ in range(TRIES + len(trackers)):  # each source may once be found out of order
            ordered = {name for name, until in self._ordered.items() if batch.number <= until}
            tasks = self.spreading.spread(splits, trackers, batch.parallelism, ordered)
            self.readers = readers(tasks, list(trackers))
            items = run(batch, tasks)
            controls = controls_of(items)
            written, agree = fitting.agreed(batch.written, controls)
            jumbled = jumbled_sources(batch, controls) - ordered
            counts = same_attempts(controls) and not jumbled
            if counts and agree:
                return items
            self._ordered.update(dict.fromkeys(jumbled, batch.number + _ORDERED))
            discard(batch)
            if counts:  # else its results are others next time, and so may be their columns
                batch = replace(batch, written=written)
        raise disagreement(batch.number, TRIES, counts)


def controls_of(items: list[Item]) -> list[Control]:
    """What tasks told the driver."""
    return [payload for _, tag, _, payload in items if tag == "control"]
