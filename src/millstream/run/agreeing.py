"""Whether the tasks of a batch worked on the same: a batch in which they did not is run again."""

from __future__ import annotations

from itertools import chain

from millstream.errors import RunError
from millstream.operators.batch import Batch, Control, digest_of
from millstream.ops.lateness import Extent, out_of_order


def jumbled_sources(batch: Batch, controls: list[Control]) -> set[str]:
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


def disagreement(batch: int, tries: int, columns: bool) -> RunError:
    """What is said when they differ however often they try; `columns`: only in those of files."""
    why = (
        "files of one sink got other columns from each"
        if columns
        else "workers were lost while others had begun to work on what they gave"
    )
    return RunError(
        f"the tasks of batch {batch} did not agree, {tries} times in a row: {why}. The "
        "batch was not committed and nothing is lost; look at Spark's log for executors that "
        "die, and let functions give the same for the same record. Then run the same command "
        "again"
    )
