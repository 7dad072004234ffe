"""Windows that are still open: when a task looks at them, and what then leaves.

Between computing results (`leaving.py`) and the marks they get (`ops/emitting/modes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.windows.evicting import with_fidelity
from millstream.operators.windows.remembering import Remembered
from millstream.operators.windows.work import Work
from millstream.ops.chunks import Chunk, Int64, numbers
from millstream.ops.emitting.firing import Firing, crosses, fired, fires, multiples, passes
from millstream.ops.emitting.modes import EMISSIONS, ResultsSoFar, joined, refine
from millstream.ops.times.progress import END
from millstream.ops.windows.changes import lifted, still_open
from millstream.ops.windows.closing import Outcome
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.kinds import close_landmarks, close_sessions
from millstream.ops.windows.numbered import Numbered, close_numbered, times_held

Round = tuple[int, Outcome]  # a moment of event time, and results of windows that are open then


@dataclass(frozen=True)
class Look:
    """How a batch looks at the open windows of an operator."""

    until: int | None = None  # all there is, of windows that end by here
    stretch: tuple[int, int] | None = None  # at multiples of event time in (after, until]
    too: bool = False  # also at those that leave with this batch

    @property
    def due(self) -> bool:
        """Whether there is anything to look at."""
        return self.until is not None or self.stretch is not None

    def moments(self, job: WindowJob, times: Int64) -> list[int]:
        """The multiples to look at, given the times of records."""
        return [] if self.stretch is None else multiples(job.emission, times, *self.stretch)


def look_of(work: Work, job: WindowJob) -> Look:
    """Whether to look at windows of a job that are still open; the driver learns of it."""
    how = job.emission
    if how.mode == "delta":
        until = job.span.closes_at(work.clocks.on_time[job.name])
        return Look(until if until > work.closing(job) else None)
    if how.mode != "early":
        return Look()
    last = work.order.firing[job.name]
    rows, now, event = work.counts[job.name], work.batch.now, work.clocks.ends[job.name]
    if how.by_event:
        # Files that wait may have moved the watermark beyond all that was read; at the end of the
        # input event time stands where the latest record is.
        watermark = work.clocks.watermarks[job.name]
        reached = watermark if watermark < END else work.clocks.ends[job.name]
        reached = max(last.event, reached)
        work.report.firing[job.name] = Firing(now, reached)
        return Look(stretch=(last.event, reached) if passes(how, last, reached) else None)
    if fires(how, last, now, event, rows):
        work.report.firing[job.name] = fired(how, last, now, event, rows)
        return Look(job.span.closes_at(END), too=crosses(how, last, rows))
    begun = last if last.at else Firing(now, event, last.rows, last.over)
    work.report.firing[job.name] = Firing(begun.at, begun.event, last.rows + rows, last.over)
    return Look()


def as_wanted(
    work: Work,
    job: WindowJob,
    look: Look,
    final: Chunk,
    opened: Outcome | None = None,
    rounds: Iterable[Round] = (),
) -> Chunk:
    """Results as the operator's contract wants them: final as they are, others marked.

    `opened` are results of windows that are still open, if they were looked at; `rounds` the same
    at moments of event time, ascending. What leaves before such a moment leaves before it here.
    """
    final = with_fidelity(work, job, final)
    if job.emission.mode == "final":
        return final
    store = Remembered(work, job.name)
    known, given = store.known, []
    shards = 1 if job.over_stream else work.batch.shards
    stamp = since = work.batch.number * EMISSIONS
    for at, outcome in rounds:
        gone = final.ts < at
        looked = ResultsSoFar(final.take(gone), at, _so_far(work, job, outcome), END, job.kind)
        chunk, known = refine(job.emission, looked, known, shards, stamp)
        given.append(chunk)
        stamp += 2
        final = final.take(~gone)
    left = END if job.logical is not None else job.span.moment(work.closing(job))
    looked = ResultsSoFar(final, left, kind=job.kind, too=look.too)
    if opened is not None and look.until is not None:
        reach = END if job.logical is not None else job.span.moment(look.until)
        looked = ResultsSoFar(final, left, _so_far(work, job, opened), reach, job.kind, look.too)
    chunk, known = refine(job.emission, looked, known, shards, stamp)
    store.keep(known, since)
    return joined([*given, chunk]) if given else chunk


def _so_far(work: Work, job: WindowJob, outcome: Outcome) -> Chunk:
    """Results of windows that are still open, which say how much of their input has come."""
    return with_fidelity(work, job, work.count(job, outcome), left=False)


# -- moments of event time, per kind of window ----------------------------------------------------


def session_rounds(work: Work, job: WindowJob, look: Look, rows: pa.Table | None) -> list[Round]:
    """Sessions that are open at multiples of event time."""
    return [
        (at, close_sessions(job, *_made_of(work, job, open_then), END, work.numbers[job.name])[0])
        for at, before in _cut(job, look, rows)
        if (open_then := still_open(job, before, at)) is not None
    ]


def landmark_rounds(
    work: Work, job: WindowJob, look: Look, rows: pa.Table | None, totals: pa.Table | None
) -> list[Round]:
    """What there is so far, at multiples of event time."""
    found: list[Round] = []
    for at, before in _cut(job, look, rows):
        fresh = before.filter(pc.greater_equal(before.column("pane"), work.closed(job)))
        panes, values = lifted(work.family, fresh), before if job.lists else None
        bounds = job.span.closes_at(at), job.span.closes_at(END)
        made = close_landmarks(work.family, panes, values, totals, *bounds, work.numbers[job.name])
        found.append((at, made[0]))
    return found


def numbered_rounds(
    work: Work, job: WindowJob, look: Look, ready: pa.Table | None, known: Numbered, final: Chunk
) -> list[Round]:
    """Windows over rows or bytes that have begun and are not full at multiples of event time."""
    found: list[Round] = []
    times = times_held(known.held)  # rows that were numbered before the moment had come
    if ready is not None:
        times = np.concatenate((times, numbers(ready, "ts")))
    for at in look.moments(job, times):
        before = None if ready is None else ready.filter(pc.less(ready.column("ts"), at))
        made, _ = close_numbered(work.family, before, known, at - 1, work.numbers[job.name])
        left = final.take(final.ts < at)
        found.append((at, made._replace(chunk=others(made.chunk, left))))
    return found


def _cut(job: WindowJob, look: Look, rows: pa.Table | None) -> Iterator[tuple[int, pa.Table]]:
    """Every moment to look at, with the rows before it."""
    if rows is None or not len(rows) or look.stretch is None:
        return
    ts = numbers(rows, "ts")
    for at in look.moments(job, ts):
        yield at, rows.filter(pa.array(ts < at))


def _made_of(work: Work, job: WindowJob, rows: pa.Table) -> tuple[pa.Table | None, pa.Table | None]:
    """Kept rows as states, and as values if the job lists them."""
    return lifted(work.family, rows), rows if job.lists else None


def others(chunk: Chunk, left: Chunk) -> Chunk:
    """Results of windows that have not left."""
    assert chunk.window is not None and left.window is not None
    gone = set(zip(left.pos.tolist(), left.window.tolist(), strict=True))
    names = zip(chunk.pos.tolist(), chunk.window.tolist(), strict=True)
    return chunk.take(np.array([name not in gone for name in names], np.bool_))
