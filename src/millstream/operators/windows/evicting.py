"""Windows that leave before they are complete: the driver asks, and tasks say what they stand on.

The policy of a step is asked before every batch about its oldest open window, and, if that leaves,
about the next. What it says is part of the batch's order, so all tasks agree whatever the policy
looks at. The records of that batch still count; the figures are those after it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.operators.protocol import Known
from millstream.operators.windows.work import Report, Work
from millstream.ops.chunks import Chunk
from millstream.ops.records import describe
from millstream.ops.times.fidelity import (
    COLUMNS,
    OpenWindow,
    Participant,
    Ranges,
    fidelity_of,
    joined,
    open_ends,
    standings,
    still_needed,
)
from millstream.ops.times.progress import END
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.zones import timestamp
from millstream.state.manifests import Left, Manifest, Opened


def evicted_now(family: Family, known: Known, closed: dict[str, int]) -> dict[str, dict[int, str]]:
    """Per step the ends of windows that leave now although they are not complete, and why."""
    opened = known.manifest.opened.get(family.name)
    jobs = [job for job in family.jobs if job.evicts]
    if opened is None or known.times is None:
        return {}
    found = {}
    for job in jobs:
        ask = partial(_asked, job, known, closed[job.name], opened)
        assert job.closing is not None
        found[job.name] = known.ask(f"{job.name}: its closing policy {job.closing.policy!r}", ask)
    return {name: ends for name, ends in found.items() if ends}


def _asked(job: WindowJob, known: Known, closed: int, opened: Opened) -> dict[int, str]:
    assert job.closing is not None and job.closing.policy is not None and known.times is not None
    times, span = known.times, job.span
    complete = max(closed, span.closes_at(times.inputs[job.name]))
    oldest, since = opened.oldest.get(job.name, (None, known.now))
    all_of = standings(job.closing.feeding, times.progress, times.outputs, times.heard)
    leaving: dict[int, str] = {}
    for end in open_ends(span, _ranges(opened), complete):
        start, until = span.moment(end - span.panes), span.moment(end)
        begun = max(since, times.started) if until == oldest else known.now
        window = OpenWindow(
            None if job.kind == "landmark" else timestamp(start),
            timestamp(until),
            (known.now - begun) / 1e6,
            tuple(
                Participant(
                    one.source,
                    known.name_of(one.source, one.who),
                    one.share(start, until),
                    one.passed >= until,
                    # What somebody sent may still wait to be read: until then it is not silent.
                    max(0, times.until.get(one.source, 0) - max(one.heard, times.started)) / 1e6,
                )
                for one in all_of
            ),
        )
        try:
            why = job.closing.policy.closes(window)
        except BaseException as error:  # a user's policy may raise anything
            raise RunError(
                f"{job.name}: its closing policy {job.closing.policy!r} failed for the window that "
                f"ends {window.end}: {describe(error)}; nothing of this batch was committed"
            ) from error
        if not why:
            break
        leaving[end] = str(why)
    return leaving


def _ranges(opened: Opened) -> Ranges:
    return [(low, high) for low, high in opened.panes]


def note_opened(
    family: Family, known: Known, reached: dict[str, int], reports: list[Report], manifest: Manifest
) -> None:
    """Write into a manifest which windows are open, since when, and whose records were late."""
    jobs = [job for job in family.jobs if job.evicts]
    if not jobs:
        return
    before = known.manifest.opened.get(family.name, Opened())
    needed = min(still_needed(job.span, reached[job.name]) for job in jobs)
    panes = joined([*_ranges(before), *(one for report in reports for one in report.brought)])
    panes = [(max(low, needed), high) for low, high in panes if high >= needed]
    oldest: dict[str, list[int]] = {}
    for job in jobs:
        end = next(open_ends(job.span, panes, reached[job.name]), None)
        if end is not None:
            until, was = job.span.moment(end), before.oldest.get(job.name)
            oldest[job.name] = was if was and was[0] == until else [until, known.now]
    if panes:
        manifest.opened[family.name] = Opened([[low, high] for low, high in panes], oldest)
    for report in reports:
        for step, senders in report.late.items():
            account = Counter(manifest.late.get(step, {}))
            for (source, who), count in senders.items():
                account[known.name_of(source, who)] += count
            manifest.late[step] = dict(account)


def with_fidelity(work: Work, job: WindowJob, chunk: Chunk, *, left: bool = True) -> Chunk:
    """Results with the share of their input they stand on, who took part, and why they left.

    left: else their windows are still open, and were only looked at.
    """
    if job.closing is None:
        return chunk
    span, watermark = job.span, work.clocks.watermarks[job.name]
    complete = max(work.closed(job), span.closes_at(watermark))
    evicted = work.order.evicted.get(job.name, {})
    all_of = standings(job.closing.feeding, work.clocks.progress, work.clocks.outputs)
    ends, windows = np.unique(chunk.ts + 1, return_inverse=True)
    figures = []
    for at in ends.tolist():
        end = span.pane_at(at)
        # A window over which an older one was evicted has left with it: none stays behind.
        why = "watermark" if end <= complete else evicted.get(end) or _next(evicted, end)
        known_of = work.clocks.progress, work.clocks.shares
        share, who = fidelity_of(span, end, all_of, job.closing, *known_of)
        figures.append((share, who, why if left else None))
    if figures and left:
        share, who, why = figures[-1]
        work.report.left[job.name] = Left(int(ends[-1]), share, who, why or "")
    table, at = chunk.table, pa.array(windows)
    kinds = (pa.float64(), pa.string(), pa.string())
    for number, (name, kind) in enumerate(zip(COLUMNS, kinds, strict=True)):
        column = pa.array([one[number] for one in figures], kind).take(at)
        known = table.schema.get_field_index(name)
        if name == "fidelity" and known >= 0 and job.reducer is None:
            column = _times(column, table.column(known))
        table = table.drop_columns([name]) if known >= 0 else table
        table = table.append_column(name, column)
    return chunk.with_table(table)


def _next(evicted: dict[int, str], end: int) -> str | None:
    return evicted.get(min((one for one in evicted if one > end), default=END))


def _times(own: pa.Array, inherited: pa.ChunkedArray) -> pa.Array:
    """The share that is there of records which themselves stand on a part of their input."""
    shares = [1.0 if one is None else one for one in inherited.to_pylist()]
    return pa.array(np.asarray(own) * np.array(shares, np.float64))
