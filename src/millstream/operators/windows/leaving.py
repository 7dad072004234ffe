"""A family of keyed operators in one task: new rows meet stored ones, windows leave, changes stay.

Plain windows keep a bag of partial rows; rows of the same key and pane are merged when they are
read. So a batch writes only what it brought, and old rows are touched only when windows that need
them leave, or when segments are merged by size. Other kinds add tables with one row per key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.stores import Table
from millstream.operators.windows.bags import BAGS, PaneBag
from millstream.operators.windows.looking import (
    Look,
    Round,
    as_wanted,
    landmark_rounds,
    look_of,
    numbered_rounds,
    others,
    session_rounds,
)
from millstream.operators.windows.sliding import Slider, slider_of
from millstream.operators.windows.whole import whole
from millstream.operators.windows.work import Work
from millstream.ops.chunks import Chunk, Int64, numbers
from millstream.ops.keys.hashing import group_by
from millstream.ops.times.fidelity import joined
from millstream.ops.times.progress import END
from millstream.ops.windows.changes import lifted, still_open, unsigned
from millstream.ops.windows.closing import Outcome, close
from millstream.ops.windows.jobs import WindowJob
from millstream.ops.windows.kinds import close_landmarks, close_sessions
from millstream.ops.windows.numbered import Numbered, close_numbered, touched
from millstream.ops.windows.preparing import count_panes, in_pane_order, merge_panes
from millstream.ops.windows.rates import has_choice, longest


def leaving(work: Work, rows: dict[str, list[bytes]]) -> dict[str, Chunk]:
    """Process one family's share of a batch; segments and accounts go into its control."""
    family = work.family
    bags = {
        table: PaneBag(work, table, rows.pop(table, [])) for table in BAGS if family.users(table)
    }
    if family.span.whole:
        return {family.jobs[0].name: whole(work, family.jobs[0], bags)}
    if any(job.evicts for job in family.jobs):
        work.report.brought = joined(chain.from_iterable(bag.brought() for bag in bags.values()))
    if family.kind == "time":
        return _plain(work, bags)
    run = {"session": _sessions, "landmark": _landmarks}.get(family.kind, _numbered)
    job = family.jobs[0]
    return {job.name: run(work, job, bags)}


# -- plain windows over time ------------------------------------------------------------------


def _plain(work: Work, bags: dict[str, PaneBag]) -> dict[str, Chunk]:
    """Tumbling, sliding and hopping windows: every job slides over the family's panes."""
    family, strategies = work.family, work.report.strategies
    looks = {job.name: look_of(work, job) for job in family.jobs}
    slid: dict[str, Chunk] = {}
    sliders: dict[str, Slider] = {}
    for job in family.jobs:
        slider = slider_of(work, job, bags.get("panes"))
        if slider is not None:
            sliders[job.name] = slider
            chunk = None if looks[job.name].due else slider.slide()
            if chunk is not None:
                slid[job.name] = chunk
                strategies.update({job.name: slider.name} if len(chunk) else {})
    rest = [job for job in family.jobs if job.name not in slid]
    due = any(bag.due(work.all_closing(), rest) for bag in bags.values())
    due = due or any(look.due for look in looks.values())
    due = due or any(sliders[job.name].stale() for job in rest if job.name in sliders)
    rows = _Rows(work, bags, due)
    results: dict[str, Chunk] = {}
    for job in family.jobs:
        look, opened, rounds = looks[job.name], None, None
        if job.name in slid:
            chunk = slid[job.name]
        else:
            outcome = rows.close(job, work.closed(job), work.closing(job))
            chunk = work.account(job, outcome.last, outcome)
            strategies.update({job.name: rows.strategy(job)} if len(chunk) else {})
            if job.name in sliders:
                sliders[job.name].begin(rows.merged)
            if look.until is not None:
                opened = rows.close(job, work.closing(job), look.until)
            rounds = rows.rounds(job, look)
        if has_choice(family) and job is longest(family):
            entered = sliders[job.name].entered if job.name in slid else rows.entered(job)
            work.report.filled = (entered, _windows(job, chunk))
        chunk = _without_unknown(work, job, chunk)
        results[job.name] = as_wanted(work, job, look, chunk, opened, rounds or ())
    for bag in bags.values():
        bag.store(work.all_closing())
    return results


class _Rows:
    """All rows of a family, for windows that are computed from them."""

    def __init__(self, work: Work, bags: dict[str, PaneBag], due: bool) -> None:
        self.work, self.family = work, work.family
        self.single = work.order.single
        loaded = {table: bag.all_rows() if due else None for table, bag in bags.items()}
        self.panes, self.values = loaded.get("panes"), loaded.get("values")
        if self.family.changes:
            self.panes = lifted(self.family, self.values)
        elif self.panes is not None and len(self.panes):
            ordered = in_pane_order if self.single else merge_panes
            self.panes = ordered(self.family, self.panes)

    def merged(self) -> pa.Table | None:
        """Panes, each once per key."""
        if self.single and self.panes is not None and len(self.panes):
            return merge_panes(self.family, self.panes)
        return self.panes

    def close(self, job: WindowJob, closed: int, closing: int) -> Outcome:
        """The windows of a job that end in (closed, closing]."""
        panes, values = self.panes if job.lifts else None, self.values if job.lists else None
        merge = partial(merge_panes, self.family) if self.single else None
        return close(job, panes, values, closed, closing, self.work.numbers[job.name], merge)

    def rounds(self, job: WindowJob, look: Look) -> Iterator[Round]:
        """The windows of a job that are open at multiples of event time."""
        if look.stretch is None:
            return
        whole, everything = (self.panes, self.values), job.span.closes_at(END)
        for at in look.moments(job, self._times(job)):
            if self.values is not None:
                self.values = self.values.filter(pc.less(self.values.column("ts"), at))
            if self.family.changes:
                self.panes = lifted(self.family, self.values)
            elif self.panes is not None:
                until = job.span.pane_at(at)
                self.panes = self.panes.filter(pc.less(self.panes.column("pane"), until))
            yield at, self.close(job, job.span.closes_at(at), everything)
            self.panes, self.values = whole

    def _times(self, job: WindowJob) -> Int64:
        """When there are records, as exactly as is known."""
        if job.lifts and self.panes is not None:
            return job.span.moments(numbers(self.panes, "pane"))
        if self.values is not None:
            return numbers(self.values, "ts")
        return np.zeros(0, np.int64)

    def strategy(self, job: WindowJob) -> str:
        """How windows are computed here."""
        if not job.lifts:
            return "kept values"
        return "single values" if self.single else "blocks"

    def entered(self, job: WindowJob) -> int:
        """Panes that enter windows of a job in this batch, of all keys."""
        low, high = self.work.closed(job), self.work.closing(job)
        if not self.single and self.panes is not None and len(self.panes):
            panes = self.panes.column("pane")
            inside = pc.and_(pc.greater_equal(panes, low), pc.less(panes, high))
            return int(pc.sum(inside).as_py() or 0)
        return count_panes(self.family, self.panes, low, high)


def _windows(job: WindowJob, chunk: Chunk) -> int:
    """How many windows some results are of; a reduce may give several rows for one."""
    if job.reducer is None:
        return len(chunk)
    _, keys, _ = group_by(chunk.pos, chunk.ts)
    return len(keys)


def _without_unknown(work: Work, job: WindowJob, chunk: Chunk) -> Chunk:
    """Null for aggregates added later, in windows with panes that were computed without them."""
    since = work.order.since
    if not since or not len(chunk) or job.reducer is not None:
        return chunk
    table = chunk.table
    start = table.column("window_start") if "window_start" in table.column_names else None
    for measure in job.measures:
        begun = since.get(measure.state)
        if begun is not None and start is not None:
            known = pc.greater_equal(start.cast(pa.int64()), begun)
            at = table.schema.get_field_index(measure.name)
            column = pc.if_else(
                known, table.column(at), pa.scalar(None, table.schema.field(at).type)
            )
            table = table.set_column(at, measure.name, column)
    return chunk.with_table(table)


# -- other kinds --------------------------------------------------------------------------------


def _sessions(work: Work, job: WindowJob, bags: dict[str, PaneBag]) -> Chunk:
    """Sessions are looked at when the oldest could be over; otherwise new pieces are only added."""
    gap, watermark, src = job.span.size, work.closing(job), work.numbers[job.name]
    look = look_of(work, job)
    reach = watermark if look.until is None else look.until
    rows: dict[str, pa.Table | None] = {}
    if look.due or any(bag.lowest() + gap <= reach for bag in bags.values()):
        rows = {table: bag.every_row() for table, bag in bags.items()}
    panes, values = rows.get("panes"), rows.get("values")
    if job.changes:
        panes = lifted(work.family, values)
    rounds = session_rounds(work, job, look, values)
    outcome, panes, listed = close_sessions(
        job, panes, values if job.lists else None, watermark, src
    )
    values = listed if job.lists else still_open(job, values, watermark)
    chunk = work.account(job, outcome.last, outcome)
    for table, still in (("panes", panes), ("values", values)):
        if table in bags and _size(still) < _size(rows.get(table)):
            bags[table].replace(still)
        elif table in bags:
            bags[table].append()
    opened = None
    if look.until is not None:
        opened, _, _ = close_sessions(job, panes, listed, look.until, src)
    return as_wanted(work, job, look, chunk, opened, rounds)


def _size(rows: pa.Table | None) -> int:
    return 0 if rows is None else len(rows)


def _landmarks(work: Work, job: WindowJob, bags: dict[str, PaneBag]) -> Chunk:
    """Panes that close go into the totals of their keys; only keys with new records are touched."""
    family, closed, closing = work.family, work.closed(job), work.closing(job)
    look, src = look_of(work, job), work.numbers[job.name]
    due = look.due or any(bag.due(work.all_closing()) for bag in bags.values())
    panes = bags["panes"].all_rows() if due and "panes" in bags else None
    values = bags["values"].every_row() if due and "values" in bags else None
    kept, totals, table = values, None, Table(family.name, "totals", work.batch, work.control)
    if job.changes and values is not None:
        panes = lifted(family, values.filter(pc.greater_equal(values.column("pane"), closed)))
        values = values if job.lists else None
    elif panes is not None and len(panes):
        panes = merge_panes(family, panes)
    if panes is not None and len(panes):
        reach = job.span.closes_at(END) if look.due else closing
        totals = table.rows_of(family.keys, panes.filter(pc.less(panes.column("pane"), reach)))
    outcome, grown = close_landmarks(family, panes, values, totals, closed, closing, src)
    chunk = work.account(job, outcome.last, outcome)
    opened = None
    if look.until is not None:
        opened, _ = close_landmarks(family, panes, values, totals, closing, look.until, src)
    rounds = landmark_rounds(work, job, look, kept, totals)
    if grown is not None:
        table.put(family.keys, grown)
    table.store()
    if "panes" in bags:
        bags["panes"].store(work.all_closing())
    if "values" in bags and job.lists:
        bags["values"].append()
    elif "values" in bags:
        bags["values"].store(work.all_closing())
    return as_wanted(work, job, look, chunk, opened, rounds)


def _numbered(work: Work, job: WindowJob, bags: dict[str, PaneBag]) -> Chunk:
    """Rows whose order is settled get their numbers; windows that are full leave."""
    family, bag, watermark = work.family, bags["values"], work.closing(job)
    number, end = work.numbers[job.name], work.clocks.ends[job.name]
    ended = work.clocks.watermarks[job.name] >= END
    look = look_of(work, job)
    until, early = look.until, job.emission.mode == "early"
    stored = _Tails(work)
    ready = None
    rows = bag.every_row() if bag.lowest() < (watermark if until is None else until) else None
    if rows is None:
        bag.append()
    else:
        settled = pc.less(rows.column("ts"), watermark)
        ready = unsigned(rows.filter(settled))
        bag.replace(rows.filter(pc.invert(settled)))
    known = stored.all() if ended else stored.of(ready)
    outcome, kept = close_numbered(family, ready, known, end if ended else None, number)
    chunk = work.account(job, watermark, outcome)
    opened = None
    if until is not None and early:  # all that have begun, with records whose order is settled
        opened, _ = close_numbered(family, ready, stored.all(), end, number)
    elif until is not None:  # as if nothing could still come in between
        soon = None if rows is None else rows.filter(pc.less(rows.column("ts"), until))
        soon = unsigned(soon)
        opened, _ = close_numbered(family, soon, stored.of(soon), None, number)
    rounds: list[Round] = []
    if look.stretch is not None:
        rounds = numbered_rounds(work, job, look, ready, stored.all(), chunk)
    stored.keep(kept if ready is not None else Numbered(None), ended)
    if opened is not None:
        opened = opened._replace(chunk=others(opened.chunk, chunk))
    return as_wanted(work, job, look, chunk, opened, rounds)


class _Tails:
    """What is stored of windows over rows or bytes: rows of open ones, and totals of landmarks."""

    def __init__(self, work: Work) -> None:
        self.family, self.job = work.family, work.family.jobs[0]
        self.tails = Table(self.family.name, "tails", work.batch, work.control)
        self.totals = Table(self.family.name, "totals", work.batch, work.control)

    def all(self) -> Numbered:
        """Everything."""
        return Numbered(self.tails.every_row(), self.totals.every_row())

    def of(self, ready: pa.Table | None) -> Numbered:
        """What is stored of those who count some rows."""
        held = self.tails.rows_of(self.job.counted_by, ready)
        if not self.job.growing:
            return Numbered(held)
        keys = touched(self.family, ready, held)
        return Numbered(held, self.totals.rows_of(self.family.keys, keys))

    def keep(self, now: Numbered, ended: bool) -> None:
        """Store what has changed; after the end of the input nothing is left."""
        if ended:
            self.tails.clear()
            self.totals.clear()
        if now.held is not None:
            self.tails.put(self.job.counted_by, now.held)
        if now.totals is not None:
            self.totals.put(self.family.keys, now.totals)
        self.tails.store()
        if self.job.growing:
            self.totals.store()
