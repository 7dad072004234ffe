"""A family of keyed operators in one task: new rows meet stored ones, windows leave, changes stay.

Plain windows keep a bag of partial rows; rows of the same key and pane are merged when they are
read. So a batch writes only what it brought, and old rows are touched only when windows that need
them leave, or when segments are merged by size. Other kinds add tables with one row per key.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from millstream.ops.chunks import Chunk
from millstream.ops.closing import close
from millstream.ops.closing import results as results_of
from millstream.ops.jobs import Family, WindowJob
from millstream.ops.kinds import close_landmarks, close_numbered, close_sessions
from millstream.ops.preparing import merge_panes
from millstream.ops.progress import END
from millstream.ops.records import DeadLetter
from millstream.ops.running import advance, can_run, recompute
from millstream.run.batch import Batch, Control
from millstream.run.stores import BAGS, Bag, Running, Table

Blocks = dict[str, list[bytes]]
_MOST_STEPS = 64  # windows per batch: a backlog with more is faster in blocks
_REFRESH = 256  # slides after which running values are recomputed, so that rounding stays bounded
_GAIN = 4  # panes per key from which on running values are cheaper


def run_keyed(
    family: Family,
    rows: Blocks,
    watermarks: dict[str, int],
    batch: Batch,
    control: Control,
    numbers: dict[str, int],
) -> dict[str, Chunk]:
    """Process one family's share of a batch; segments and accounts go into `control`."""
    closing = {
        job.name: max(batch.closed[job.name], job.span.closes_at(watermarks[job.name]))
        for job in family.jobs
    }
    bags = {
        table: Bag(family, table, rows.get(table, []), batch, control)
        for table in BAGS
        if family.users(table)
    }
    if family.kind == "time":
        return _plain(family, bags, closing, batch, control, numbers)
    job = family.jobs[0]
    if family.kind == "session":
        chunk, last, dead = _sessions(job, bags, closing[job.name], numbers[job.name])
    elif family.kind == "landmark":
        chunk, last, dead = _landmarks(family, bags, closing, batch, control, numbers[job.name])
    else:
        ended = watermarks[job.name] >= END
        chunk, last, dead = _numbered(
            family, bags["values"], closing[job.name], ended, batch, control, numbers[job.name]
        )
    _account(control, job, last, dead)
    return {job.name: chunk}


def _account(control: Control, job: WindowJob, last: int, dead: list[DeadLetter]) -> None:
    control.last_end[job.name] = last
    control.dead.extend(dead)
    if dead:
        control.ledger.setdefault(job.name, Counter())["failed"] += len(dead)


def _plain(
    family: Family,
    bags: dict[str, Bag],
    closing: dict[str, int],
    batch: Batch,
    control: Control,
    numbers: dict[str, int],
) -> dict[str, Chunk]:
    """Tumbling, sliding and hopping windows: every job slides over the family's panes."""
    results: dict[str, Chunk] = {}
    stores = {
        job.name: Running(family, job.name, batch, control) for job in family.jobs if can_run(job)
    }
    for job in family.jobs:
        if job.name in stores:
            chunk = _advance(job, bags["panes"], stores[job.name], closing, batch, control, numbers)
            if chunk is not None:
                results[job.name] = chunk
    rest = [job for job in family.jobs if job.name not in results]
    due = any(bag.due(closing, rest) for bag in bags.values())
    loaded = {table: bag.all_rows() if due else None for table, bag in bags.items()}
    panes, values = loaded.get("panes"), loaded.get("values")
    if panes is not None and len(panes):
        panes = merge_panes(family, panes)
    for job in rest:
        name = job.name
        results[name], last, dead = close(
            job,
            panes if job.combines else None,
            values if job.holds else None,
            batch.closed[name],
            closing[name],
            numbers[name],
        )
        _account(control, job, last, dead)
        if name in stores:
            _recompute(job, bags["panes"], panes, stores[name], closing[name], batch)
        if len(results[name]):
            control.strategies[name] = "blocks" if job.combines else "kept values"
    for bag in bags.values():
        bag.store(closing)
    return {job.name: results[job.name] for job in family.jobs}


def _steps(job: WindowJob, closed: int, closing: int) -> int:
    return (closing - closed) // job.span.step


def _advance(
    job: WindowJob,
    bag: Bag,
    store: Running,
    closing: dict[str, int],
    batch: Batch,
    control: Control,
    numbers: dict[str, int],
) -> Chunk | None:
    """Slide by running values if that is possible, cheaper and exact enough; None if not."""
    closed, until = batch.closed[job.name], closing[job.name]
    steps = _steps(job, closed, until)
    refresh = closed // (job.span.step * _REFRESH) != until // (job.span.step * _REFRESH)
    if not 0 < steps <= _MOST_STEPS or refresh or bag.first_new() < closed:
        return None
    if bag.size() < _GAIN * store.size():
        return None
    running = store.rows(closed)
    if running is None:
        return None
    panes = bag.rows_in((closed - job.span.panes, until - job.span.panes), (closed, until))
    if panes is None:
        panes = running.slice(0, 0)
    advanced = advance(job, running, panes, closed, until)
    if not advanced.sure:
        return None
    chunk, dead = results_of(job, numbers[job.name], advanced.found, advanced.outputs)
    _account(control, job, until, dead)
    store.replace(advanced.running)
    control.strategies[job.name] = "running values"
    return chunk


def _recompute(
    job: WindowJob, bag: Bag, panes: pa.Table | None, store: Running, until: int, batch: Batch
) -> None:
    """Begin running values anew where the next batch is likely to gain from them."""
    steps = _steps(job, batch.closed[job.name], until)
    if steps == 0 and bag.first_new() >= until:
        store.keep()  # nothing left, and nothing came for panes the values already hold
    elif 0 < steps <= _MOST_STEPS and panes is not None and len(panes):
        store.replace(recompute(job, panes, until))
    else:
        store.replace(None)


def _sessions(
    job: WindowJob, bags: dict[str, Bag], watermark: int, src: int
) -> tuple[Chunk, int, list[DeadLetter]]:
    """Sessions are looked at when the oldest could be over; otherwise new pieces are only added."""
    gap = job.span.size
    if not any(bag.lowest() + gap <= watermark for bag in bags.values()):
        for bag in bags.values():
            bag.append()
        outcome, _, _ = close_sessions(job, None, None, watermark, src)
        return outcome
    rows = {table: bag.every_row() for table, bag in bags.items()}
    outcome, panes, values = close_sessions(
        job, rows.get("panes"), rows.get("values"), watermark, src
    )
    for table, left in (("panes", panes), ("values", values)):
        if table in bags:
            bags[table].replace(left)
    return outcome


def _landmarks(
    family: Family,
    bags: dict[str, Bag],
    closing: dict[str, int],
    batch: Batch,
    control: Control,
    src: int,
) -> tuple[Chunk, int, list[DeadLetter]]:
    """Panes that close go into the totals of their keys; only keys with new records are touched."""
    job = family.jobs[0]
    due = any(bag.due(closing) for bag in bags.values())
    panes = bags["panes"].all_rows() if due and "panes" in bags else None
    values = bags["values"].every_row() if due and "values" in bags else None
    totals, table = None, Table(family, "totals", batch, control)
    if panes is not None and len(panes):
        panes = merge_panes(family, panes)
        leaving = panes.filter(pc.less(panes.column("pane"), closing[job.name]))
        totals = table.rows_of(family.keys, leaving)
    outcome, grown = close_landmarks(
        family, panes, values, totals, batch.closed[job.name], closing[job.name], src
    )
    if grown is not None:
        table.put(family.keys, grown)
    table.store()
    if "panes" in bags:
        bags["panes"].store(closing)
    if "values" in bags:
        bags["values"].append()
    return outcome


def _numbered(
    family: Family,
    bag: Bag,
    watermark: int,
    ended: bool,
    batch: Batch,
    control: Control,
    src: int,
) -> tuple[Chunk, int, list[DeadLetter]]:
    """Rows whose order is settled get their numbers; windows that are full leave."""
    tails = Table(family, "tails", batch, control)
    ready = None
    rows = bag.every_row() if bag.lowest() < watermark else None
    if rows is None:
        bag.append()
    else:
        settled = pc.less(rows.column("ts"), watermark)
        ready = rows.filter(settled)
        bag.replace(rows.filter(pc.invert(settled)))
    known = tails.every_row() if ended else tails.rows_of(family.keys, ready)
    (chunk, _, dead), held = close_numbered(family, ready, known, ended, src)
    if ended:
        tails.clear()
    elif held is not None and ready is not None:
        tails.put(family.keys, held)
    tails.store()
    return chunk, watermark, dead
