"""The tasks of a batch: who reads what, and all of it again if they did not agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

from millstream.errors import RunError
from millstream.operators.batch import Batch, Control, digest_of
from millstream.ops.times.lateness import Extent, out_of_order
from millstream.run.sources.spreading import Spreading, readers
from millstream.run.sources.tracking import Tracker
from millstream.run.tasks import fitting
from millstream.run.tasks.splits import AnySplit, Item

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
        tries = 0
        while tries < TRIES:
            ordered = {name for name, until in self._ordered.items() if batch.number <= until}
            tasks = self.spreading.spread(splits, trackers, batch.parallelism, ordered)
            self.readers = readers(tasks, list(trackers))
            items = run(batch, tasks)
            controls = controls_of(items)
            written, agree = fitting.agreed(batch.written, controls)
            jumbled = _jumbled_sources(batch, controls) - ordered
            counts = same_attempts(controls) and not jumbled
            if counts and agree:
                return items
            self._ordered.update(dict.fromkeys(jumbled, batch.number + _ORDERED))
            tries += not jumbled  # each source may once be found out of order
            discard(batch)
            if counts:  # else its results are others next time, and so may be their columns
                batch = replace(batch, written=written)
        raise _disagreement(batch.number, counts)


def controls_of(items: list[Item]) -> list[Control]:
    """What tasks told the driver."""
    return [payload for _, tag, _, payload in items if tag == "control"]


def _jumbled_sources(batch: Batch, controls: list[Control]) -> set[str]:
    """Sources of which some record is late, or one participant too many, by what others read."""
    found: dict[str, list[list[Extent]]] = {}
    who: dict[str, set[str]] = {}
    for control in controls:
        for name, extents in control.extents.items():
            found.setdefault(name, []).append(extents)
            known = who.setdefault(name, set(batch.progress[name].latest))
            known.update(control.reached[name].latest)
    several = {name for name, parts in found.items() if len(parts) > 1}
    return {
        name
        for name in several
        if len(who[name]) > batch.max_participants
        or out_of_order(chain(*found[name]), batch.progress[name])
    }


def same_attempts(controls: list[Control]) -> bool:
    """Whether all tasks of a level worked on the output of the same attempts.

    After an executor is lost Spark may run some tasks again; if a function is not deterministic,
    its neighbours would have seen something else. Such a batch is run again as a whole.
    """
    attempts: dict[int, list[str]] = {}
    for control in controls:
        attempts.setdefault(control.level, []).append(control.attempt)
    wanted = {level + 1: digest_of(several) for level, several in attempts.items()}
    return all(control.upstream == wanted.get(control.level, "") for control in controls)


def _disagreement(batch: int, columns: bool) -> RunError:
    """What is said when they differ however often they try; `columns`: only in those of files."""
    why = (
        "files of one sink got other columns from each"
        if columns
        else "workers were lost while others had begun to work on what they gave"
    )
    return RunError(
        f"the tasks of batch {batch} did not agree, {TRIES} times in a row: {why}. The "
        "batch was not committed and nothing is lost; look at Spark's log for executors that "
        "die, and let functions give the same for the same record. Then run the same command "
        "again"
    )
