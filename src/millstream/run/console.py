"""What a run tells people: how far it is, what it did, and what they should look at.

The command line prints it; `flow.run()` in Python shows a bar (on a terminal or in a notebook) and
gives the rest to the logger `millstream`. The setting `quiet` silences both.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.run import notebook
from millstream.run.batches.letters import errors_in, letters_in
from millstream.showing import visible
from millstream.state.storage import Storage

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from millstream.run.handle import Handle
    from millstream.run.handles import Handles
    from millstream.run.reporting import Progress
    from millstream.state.manifests import Manifest

_MANY_LATE = 0.01  # share of late records that is worth a word
_LETTERS = 10_000  # dead letters that are looked at for the most frequent reason
_LONGEST = 160  # characters of one as an example
_LOOK = 0.2  # seconds
_AGAIN = (
    "windows that left with an earlier run do not come back; where more may come for them, group "
    "by a column, like the day, instead. Within a run, "
)
logger = logging.getLogger("millstream")


def told_work(progress: Progress) -> str:
    """What this run did, and all of them if there were others before it."""
    batches = progress.batch + 1
    total = _counted(batches, progress.rows, progress.windows)
    if progress.new_batches == batches:
        return total
    if not progress.new_batches:
        return f"nothing new; {total} in earlier runs"
    new = _counted(progress.new_batches, progress.new_rows, progress.new_windows)
    return f"{new}; {total} with earlier runs"


def _counted(batches: int, rows: int, results: int) -> str:
    return f"{batches:,} batch{'es' * (batches != 1)}, {rows:,} records, {results:,} results"


# -- what to look at -------------------------------------------------------------------------------


def warnings_of(
    progress: Progress | Manifest, steps: list[str], dead: Storage, *, kept: bool = True
) -> Iterator[str]:
    """What somebody should know who only sees that a run has ended.

    kept: the dead letters can still be read afterwards.
    """
    if progress.dead:
        where = (
            f"are in {_near(dead.where())}"
            if kept
            else "would be kept if checkpoint= named a place"
        )
        yield _told_dead(progress.dead, dead, where)
    for step in (name for name in steps if name in progress.ledger):
        account = progress.ledger[step]
        if ahead := account.get("future", 0):
            yield (
                f"{ahead:,} record{'s' * (ahead != 1)} of {step!r} {'are' if ahead != 1 else 'is'} "
                "further ahead of the clock than max_future_skew: kept in their windows, but they "
                "move no watermark; look at the clock of whoever sent them, and at that of this "
                "machine"
            )
        if account["offered"] and account.get("lacking") == account["offered"]:
            yield (
                f"no record that came to {step!r} has every column that it names, and what nobody "
                "has is null there; look at the names that the function before it gives"
            )
        if account.get("failed"):
            yield _told_failed(step, account, dead)
        offered, overflow = account["offered"], account.get("overflow", 0)
        for number, what in ((account.get("shed", 0), "dropped"), (overflow, "diverted")):
            if number:
                yield (
                    f"{number:,} of {offered:,} records ({number / offered:.0%}) were too many for "
                    f"{step!r} and {what}, as overload= of it says; the log in shed/ of the "
                    "checkpoint says which"
                )
        late = account.get("late", 0) + account.get("diverted", 0) - overflow
        if late > _MANY_LATE * offered:
            yield (
                f"{late:,} of {offered:,} records ({late / offered:.0%}) came too late for "
                f"{step!r}: {_AGAIN if _has_gone_on(progress) else ''}a larger lateness= of the "
                "source would let it wait for them"
            )


def _has_gone_on(progress: Progress | Manifest) -> bool:
    """Whether there were runs before this one."""
    batches = getattr(progress, "new_batches", None)  # which a manifest does not tell
    return batches is not None and batches < progress.batch + 1


def _near(path: str) -> str:
    """A path as somebody would write it who stands here."""
    here = f"{Path.cwd()}{os.sep}"
    return path.removeprefix(here)


def _told_dead(count: int, dead: Storage, where: str) -> str:
    """How many dead letters there are, the most frequent reason, and one that has it."""
    told = f"{count:,} dead letter{'s' * (count != 1)} (with reasons, they {where})"
    letters = list(islice(letters_in(dead), _LETTERS))
    if not letters:
        return told
    reasons = Counter((letter["operator"], letter["error"]) for letter in letters)
    (step, error), times = reasons.most_common(1)[0]
    one = next(x for x in letters if (x["operator"], x["error"]) == (step, error))
    raw = str(one.get("raw", ""))
    shown = raw if len(raw) <= _LONGEST else f"{raw[:_LONGEST]}…"
    often = f"{times:,} times " if times > 1 else ""
    return f"{told}; {often}in {step!r}: {visible(error)}, for example {visible(shown)}"


def _told_failed(step: str, account: dict[str, int], dead: Storage) -> str:
    """Results nobody got: how many of how many, and the first error."""
    failed = account["failed"]
    asked = failed + account.get("answered", 0)
    first = visible(next(errors_in(dead, step, failed=True), ""))
    why = f"; the first error: {first}" if first else ""
    return f"{failed:,} of {asked:,} results of {step!r} failed, and are missing in its output{why}"


# -- a run in Python -------------------------------------------------------------------------------


def follow(handle: Handle, flow: str, *, quiet: bool) -> Progress:
    """Wait for a run to end, and tell meanwhile how far it is; raises what went wrong."""
    if quiet:
        return handle.wait()
    noted = 0
    with _bars([flow]) as shown:
        while not handle.ended_within(_LOOK):
            noted = _tell_notes(handle, noted)
            shown(flow, handle.progress)
        _tell_notes(handle, noted)
    progress = handle.wait()
    _tell_end(flow, handle)
    return progress


def follow_all(handles: Handles, *, quiet: bool) -> dict[str, Progress]:
    """The same of several; that one failed is said at once, and raised when all have ended."""
    if quiet:
        return handles.wait()
    noted, ended = dict.fromkeys(handles, 0), set[str]()
    with _bars(list(handles)) as shown:
        over = False
        while not over:
            over = handles.ended_within(_LOOK)
            for flow, handle in handles.items():
                noted[flow] = _tell_notes(handle, noted[flow], f"{flow}: ")
                shown(flow, handle.progress)
                if not handle.running and flow not in ended:
                    ended.add(flow)
                    _tell_end(flow, handle)
    return handles.wait()


def _tell_end(flow: str, handle: Handle) -> None:
    """What to know of a run that has ended."""
    progress = handle.progress
    for warning in handle.warnings:
        logger.warning("%s: %s", flow, warning)
    if handle.error is not None:
        logger.error("%s failed: %s", flow, handle.error)
    elif progress.done and not progress.new_batches:
        logger.warning(
            "%s: %s. Everything there is was read before; checkpoint=None begins anew",
            flow,
            told_work(progress),
        )
    else:
        logger.info("%s: %s in %.1f s", flow, told_work(progress), progress.elapsed)


def _tell_notes(handle: Handle, noted: int, whose: str = "") -> int:
    notes = handle.progress.notes
    for note in notes[noted:]:
        logger.warning("%s%s", whose, note)
    return len(notes)


@contextmanager
def _bars(flows: list[str]) -> Iterator[Callable[[str, Progress], None]]:
    """Bars where somebody looks at them; nothing in a pipe or a log."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if notebook.shell_here() is not None:
        with notebook.moving_bars(flows) as move:
            yield lambda flow, progress: _moved(partial(move, flow), progress)
        return
    console = Console()
    if not console.is_terminal:
        yield lambda flow, progress: None
        return
    columns = (
        TextColumn("{task.description}", style="bold cyan", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as bar:
        tasks = {flow: bar.add_task(flow, total=None, told="starting Spark") for flow in flows}
        yield lambda flow, progress: _moved(partial(_move, bar, tasks[flow]), progress)


def _moved(move: Callable[[float | None, str], None], progress: Progress) -> None:
    if progress.batch < 0 and not progress.paused:
        return
    told = progress.paused or f"{progress.new_rows:,} records, {progress.new_windows:,} results"
    move(progress.fraction, told)


def _move(bar: Bar, task: TaskID, fraction: float | None, told: str) -> None:
    total = None if fraction is None else 1.0
    bar.update(task, total=total, completed=fraction or 0.0, told=told)
