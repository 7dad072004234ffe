"""Updaters at work in one task: the function, and what is stored of its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from millstream.operators.stores import Queue
from millstream.operators.updates.flushing import Moment
from millstream.operators.updates.slates import Slates
from millstream.operators.updates.work import Order, Work
from millstream.ops.chunks import flat
from millstream.ops.times.progress import BEGIN, END
from millstream.ops.updates.cells import Cell, blank_cell
from millstream.ops.updates.job import UpdateJob
from millstream.ops.updates.machine import Machine


@dataclass
class Member:
    """One updater at work."""

    job: UpdateJob
    order: Order
    machine: Machine
    slates: Slates
    timers: Queue
    alarms: Queue
    cells: dict[tuple[int, int], Cell] = field(default_factory=dict)
    loaded: int = 0  # of these, the first that have what is stored

    def cell(self, key_hash: int, check: int, packed: bytes, shard: int) -> Cell:
        """The slate of a key; loaded alone if no other way brought it here."""
        known = self.cells.get((key_hash, check))
        if known is None:
            known = self.cells[key_hash, check] = blank_cell(packed, key_hash, check, shard)
            self.slates.load([known])
        return known

    def load(self) -> None:
        """Give every cell that is new what is stored of its slate."""
        self.slates.load(list(islice(self.cells.values(), self.loaded, None)))
        self.loaded = len(self.cells)

    def timers_due(self) -> pa.Table | None:
        """Timers by event time that are due."""
        return self.timers.due(self.order.worked_to(self.job.name), self.machine.limit)

    def alarms_due(self) -> pa.Table | None:
        """The same by the wall clock."""
        rung = self.order.rung.get(self.job.name, BEGIN)
        return self.alarms.due(rung, self.alarms.batch.now + 1)

    def times(self, rows: pa.Table | None) -> dict[tuple[int, int], list[int]]:
        """Timers or alarms by key; their cells are made on the way."""
        found: dict[tuple[int, int], list[int]] = {}
        if rows is None:
            return found
        names = ("hash", "check", "key", "shard", "time")
        for key_hash, check, packed, shard, at in zip(
            *(flat(rows.column(name)).to_pylist() for name in names), strict=True
        ):
            found.setdefault((key_hash, check), []).append(at)
            if (key_hash, check) not in self.cells:
                self.cells[key_hash, check] = blank_cell(packed, key_hash, check, shard)
        return found


def member_of(work: Work, job: UpdateJob) -> Member:
    """An updater with what is stored of it."""
    batch, control = work.batch, work.control
    watermark = work.clocks.watermarks[job.name]
    moment = Moment(
        work.order.closed[job.name],
        min(watermark, batch.holds.get(job.name, watermark)),
        batch.now,
        work.clocks.ends[job.name] if watermark >= END else None,
    )
    return Member(
        job,
        work.order,
        machine_at(work, job, moment),
        Slates(job.name, batch, control),
        Queue(job.name, "timers", None, batch, control),
        Queue(job.name, "alarms", None, batch, control),
    )


def machine_at(work: Work, job: UpdateJob, moment: Moment) -> Machine:
    """What calls the functions of an updater, at some time."""
    return Machine(
        job,
        closed=moment.closed,
        limit=moment.limit,
        now=moment.now,
        latest=moment.latest,
        streams=work.origins.publishes.get(job.name, frozenset()),
        declared=work.origins.declared,
        names=work.origins.names,
        longest=work.batch.max_key,
    )


def behind(rows: pa.Table) -> list[int]:
    """Of late events how much earlier than when applied their time is, else 0."""
    if "behind" not in rows.column_names:  # waiting since an older version
        return [0] * len(rows)
    found: list[int] = pc.fill_null(flat(rows.column("behind")), 0).to_pylist()  # beside newer ones
    return found
