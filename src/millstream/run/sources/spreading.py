"""Which task reads what: fast sources are spread over several tasks, slow ones share one.

How long a row of each source takes to read and to push through its steps is measured in every
batch, and smoothed. Pieces go to the task that has the least to do so far, the longest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.operators.batch import Control
from millstream.run.tasks.splits import AnySplit, Aside, SpoolSplit

if TYPE_CHECKING:
    from millstream.run.sources.tracking import Tracker

_NEW = 0.5  # weight of the last batch in what is known of a source
_GUESS = 1e-6  # seconds a row takes, before anything was measured


class Spreading:
    """The spread of a flow's sources over tasks, from what earlier batches took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # source -> what a row takes

    def spread(
        self,
        splits: Mapping[str, list[AnySplit]],
        sources: Mapping[str, Tracker],
        parts: int,
        ordered: Collection[str] = (),
    ) -> list[list[AnySplit]]:
        """Splits per task; as many tasks as there is something for.

        `ordered`: sources whose participants are each read by one task, from piece to piece.
        """
        known = self.seconds.values()
        usual = sum(known) / len(known) if known else _GUESS
        units: dict[tuple[int, int], tuple[float, list[AnySplit]]] = {}
        for name, taken in splits.items():
            for index, split in enumerate(taken):
                together = sources[name].together(split) if name in ordered else index
                cost, several = units.get((split.source, together), (0.0, []))
                cost += self.seconds.get(name, usual) * max(1.0, sources[name].weigh(split))
                units[split.source, together] = (cost, [*several, split])
        tasks: list[list[tuple[tuple[int, int], list[AnySplit]]]] = [
            [] for _ in range(max(1, min(parts, len(units))))
        ]
        load = [0.0] * len(tasks)
        for unit, (cost, several) in sorted(units.items(), key=lambda one: (-one[1][0], one[0])):
            least = load.index(min(load))
            load[least] += cost
            tasks[least].append((unit, several))
        return [
            [split for _, several in sorted(task, key=lambda one: one[0]) for split in several]
            for task in tasks
        ]

    def learn(self, controls: Iterable[Control]) -> None:
        """Take in what the tasks of a batch measured."""
        total: dict[str, list[float]] = {}
        for control in controls:
            for name, (rows, seconds) in control.read.items():
                into = total.setdefault(name, [0.0, 0.0])
                into[0] += rows
                into[1] += seconds
        for name, (count, spent) in total.items():
            if count:
                before = self.seconds.get(name, spent / count)
                self.seconds[name] = (1 - _NEW) * before + _NEW * spent / count


def readers(tasks: Iterable[list[AnySplit]], names: list[str]) -> dict[str, int]:
    """How many tasks read each source."""
    found = dict.fromkeys(names, 0)
    for task in tasks:
        for number in {split.source for split in task}:
            found[names[number]] += 1
    return found


def rows_of(split: AnySplit) -> int:
    """The rows of a piece that knows them."""
    if isinstance(split, Aside):
        return rows_of(split.piece)
    if isinstance(split, SpoolSplit):
        return split.rows
    return max(0, split.end - split.start)
