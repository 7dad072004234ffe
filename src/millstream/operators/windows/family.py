"""A family of windows as an operator: one exchange and one set of panes for all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Node
from millstream.operators.filing import AGAIN, FUNCTION, Filed, Tables, key_columns, sure
from millstream.operators.protocol import Backlog, Done, Host, Known, Senders, Share, Shipped
from millstream.operators.windows.bags import BAGS, SETTLED
from millstream.operators.windows.choosing import measure, single_values
from millstream.operators.windows.combining import measure_combining, merges_chunks
from millstream.operators.windows.evicting import evicted_now, note_opened
from millstream.operators.windows.leaving import leaving
from millstream.operators.windows.work import Order, Report, Work
from millstream.ops.chunks import Chunk, Int64, concat, numbers
from millstream.ops.emitting.edges import given
from millstream.ops.emitting.firing import Firing, fires, passes
from millstream.ops.keys.hashing import factorize, key_arrays
from millstream.ops.keys.partitioning import Shards, shards_of_columns
from millstream.ops.pairs import unpacked
from millstream.ops.records import as_json
from millstream.ops.times.progress import END
from millstream.ops.times.spans import NOTHING_CLOSED
from millstream.ops.updates.cells import Publication
from millstream.ops.windows.jobs import Family, WindowJob
from millstream.ops.windows.preparing import Account, Prepared, merge_panes, prepare
from millstream.state.manifests import Manifest
from millstream.state.segments import Segment

_MERGE_ROWS = 1_000_000  # partial rows a task holds before it merges them


@dataclass(frozen=True)
class Windows:
    """Windows over the same stream and key."""

    family: Family
    numbers: dict[str, int]  # operator -> its number in the identity of records
    lasting: bool = False  # over the whole input, and what is given of it can be taken back

    @property
    def name(self) -> str:
        """The family's."""
        return self.family.name

    @property
    def steps(self) -> tuple[str, ...]:
        """One per window."""
        return tuple(job.name for job in self.family.jobs)

    @property
    def counted(self) -> tuple[str, ...]:
        """Windows with early results may fire by the number of records."""
        return tuple(job.name for job in self.family.jobs if job.emission.mode == "early")

    # -- in tasks -------------------------------------------------------------------------------

    def inlet(self, host: Host) -> Panes:
        """Records are reduced to panes where they are read."""
        return Panes(self.family, host)

    def run(self, share: Share) -> None:
        """New rows meet stored ones, and windows leave."""
        host, report = share.host, Report()
        order: Order = host.batch.orders[self.name]
        work = Work(
            self.family,
            order,
            report,
            host.batch,
            host.control,
            self.numbers,
            share.clocks,
            share.counts,
        )
        begun = time.thread_time()
        results = leaving(work, share.rows)
        report.took = time.thread_time() - begun
        host.control.reports[self.name] = report
        for job in self.family.jobs:
            step, chunk = job.name, results[job.name]
            count = len(given(chunk))
            host.control.results += count
            if count:
                host.ledger(step)["results"] += count
            self.give(host, step, chunk)

    def give(self, host: Host, step: str, chunk: Chunk) -> None:
        """Let results go on."""
        host.push(step, chunk)

    # -- with agents ----------------------------------------------------------------------------

    def shipped(self, report: Report) -> Shipped:
        """Late records, and those of every pane."""
        late = {step: sum(senders.values()) for step, senders in report.late.items()}
        return Shipped(late, {step: dict(counts) for step, counts in report.panes.items()})

    def merged(self, table: str, rows: pa.Table) -> pa.Table:
        """States of the same pane and key are one; pieces of sessions have bounds as well."""
        plain = table == "panes" and self.family.kind in ("time", "landmark")
        return merge_panes(self.family, rows) if plain else rows

    # -- in the driver --------------------------------------------------------------------------

    def order(self, known: Known) -> Order:
        """How far windows have left, and what their last looks were."""
        closed = {job.name: _closed(job, known) for job in self.family.jobs}
        return Order(
            closed,
            self._firing(known),
            known.since.get(self.name, {}),
            single_values(self.family, known.manifest),
            merges_chunks(self.family, known.manifest),
            self.lasting,
            self.lasting and not known.settings.incremental and self.has_given(known.manifest),
            evicted_now(self.family, known, closed),
        )

    def has_given(self, manifest: Manifest) -> bool:
        """Whether the whole input has ended before, and is remembered."""
        return any(segment.low == SETTLED for segment in self._segments(manifest))

    def _segments(self, manifest: Manifest) -> Iterator[Segment]:
        tables = (manifest.segments.get(self.name, {}).get(table, {}) for table in BAGS)
        return (one for shards in tables for found in shards.values() for one in found)

    def _has_open(self, known: Known) -> bool:
        """Whether anything is stored of which no result was given."""
        if not self.family.span.whole:
            return known.has_state(self.name)
        return any(segment.high != SETTLED for segment in self._segments(known.manifest))

    def has_concluded(self, manifest: Manifest) -> bool:
        """Whether their input has ended before, though other sources went on or were killed."""
        if not self.family.span.whole:
            return False
        accounts = [manifest.ledger.get(step, {}) for step in self.steps]
        if manifest.complete:
            return bool(accounts[0].get("aggregated"))
        return self.gives_at_the_end and any(account.get("results") for account in accounts)

    @property
    def gives_at_the_end(self) -> bool:
        """Whether a result is a sign that the input has ended."""
        return all(job.emission.mode == "final" for job in self.family.jobs)

    def cannot_resume(self, manifest: Manifest) -> str | None:
        """What was given has to be taken back, and what it was made of to be there."""
        if not self.lasting:
            return (
                "what was given of it went into other steps with a key, or into sorted output, "
                "where it cannot be taken back"
            )
        if not self.has_given(manifest):
            return "an earlier version did not remember what its totals were made of"
        return None

    def leaves(self, order: Order) -> dict[str, int]:
        """How far windows have left or leave now, where that may be further than their input."""
        return {
            job.name: job.span.moment(order.evicts_to(job.name))
            for job in self.family.jobs
            if job.evicts and order.evicts_to(job.name) > NOTHING_CLOSED
        }

    def holds(self, known: Known) -> dict[str, int]:
        """Windows take all that came."""
        return {}

    def backlog(self, known: Known) -> Backlog:
        """Panes of which no window has left. A window that may be evicted is never held back."""
        jobs, span = self.family.jobs, self.family.span
        return Backlog(
            self.name,
            BAGS,
            min(_closed(job, known) for job in jobs),
            lambda at: max(job.span.closes_at(at) for job in jobs),
            span.moment,
            lambda pane: min(job.span.moment(job.span.next_end(pane)) for job in jobs),
            holdable=not span.whole and not any(job.evicts for job in jobs),
            timed=not span.whole,
        )

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Whether windows leave by a watermark that moved alone, or are looked at."""
        firing = self._firing(known)
        for job in self.family.jobs:
            at, last = watermarks[job.name], firing.get(job.name)
            leaves = job.span.closes_at(at) > _closed(job, known)
            if (leaves or passes(job.emission, last, at)) and self._has_open(known):
                return True
            if last is not None and fires(job.emission, last, known.now, last.event, 0):
                return True
        closed = {job.name: _closed(job, known) for job in self.family.jobs}
        return bool(evicted_now(self.family, known, closed))

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """Window ends that have left, how windows slid, and what is kept from now on."""
        reports: list[Report] = done.reports(self.name)
        for report in reports:
            manifest.strategies.update(report.strategies)
            for step, left in report.left.items():
                known_left = manifest.left.get(step)
                if known_left is None or known_left.end <= left.end:
                    manifest.left[step] = left
            for step, firing in report.firing.items():
                manifest.firing[step] = list(msgspec.structs.astuple(firing))
        order: Order = done.batch.orders[self.name]
        reached = {
            job.name: max(
                order.evicts_to(job.name), _reached(job, known, done.watermarks[job.name], reports)
            )
            for job in self.family.jobs
        }
        for job in self.family.jobs:
            if reached[job.name] > NOTHING_CLOSED and not job.span.whole:
                manifest.closed[job.name] = job.span.moment(reached[job.name])
        note_opened(self.family, known, reached, reports, manifest)
        measure(self.family, order, done, manifest)
        measure_combining(self.family, known.manifest, done, manifest)

    def stored(self) -> Tables:
        """Rows by key. Stacks are of a whole shard, and are begun anew from its panes."""
        job = self.family.jobs[0]
        dealt, function = "first" if job.over_stream else "key", None
        if job.partition is not None and self.family.keys and not job.over_stream:
            dealt, function = FUNCTION, partial(_parted, job)
        tables = {one: Filed("spans", "pane", dealt, function=function) for one in BAGS}
        for table in ("tails", "totals"):
            tables[table] = Filed("newest", "expires", dealt, function=function)
        results = "first" if job.over_stream else "name"
        for name in self.steps:
            tables[f"running {name}"] = Filed("spans", "pane", dealt, function=function)
            tables[f"given {name}"] = Filed("newest", "pane", results)
            for table in ("tops", "front"):
                tables[f"{table} {name}"] = Filed("spans", "pane", AGAIN)
        return {self.name: tables}

    def _firing(self, known: Known) -> dict[str, Firing]:
        """When operators with early results gave some last."""
        return {name: Firing(*known.manifest.firing.get(name, ())) for name in self.counted}


def _parted(job: WindowJob, rows: pa.Table, shards: int) -> Shards:
    """Where a user's partition puts stored rows."""
    assert job.partition is not None
    codes, uniques = factorize(key_arrays(rows, key_columns(rows)))
    return sure(*shards_of_columns(job.partition, uniques, shards, job.packed))[codes]


def _closed(job: WindowJob, known: Known) -> int:
    """The last window end that has left, in panes; the manifest has it in microseconds."""
    at = known.reached(job.name)
    return NOTHING_CLOSED if at is None else job.span.pane_at(at)


def _reached(job: WindowJob, known: Known, watermark: int, reports: list[Report]) -> int:
    """The last window end that has left after a batch, in panes."""
    reached = job.span.closes_at(watermark)
    if watermark >= END:  # the end of input closes what there is, not all time to come
        ends = (one.last_end[job.name] for one in reports if job.name in one.last_end)
        reached = max(ends, default=NOTHING_CLOSED)
    return max(_closed(job, known), reached)


class Panes:
    """Records on their way into the windows of a family, in one task."""

    def __init__(self, family: Family, host: Host) -> None:
        self.family, self.host = family, host
        self.order: Order = host.batch.orders[family.name]
        self.telling = {job.name for job in family.jobs if job.evicts}  # whose records are late
        self.panes: list[pa.Table] = []
        self.values: list[pa.Table] = []

    def take(self, step: Node, before: Node, chunk: Chunk) -> None:
        """Reduce records to panes on this side, once for all operators that share them."""
        family, host, batch = self.family, self.host, self.host.batch
        if family.jobs[0].name != step.name:
            return  # the first of the family does it for all
        order = self.order
        prepared = prepare(family, chunk, order.closed, batch.shards, order.single, batch.max_key)
        if prepared.panes is not None:
            self._hold(prepared.panes)
        if prepared.values is not None:
            self.values.append(prepared.values)
        for operator, account in prepared.accounts.items():
            host.control.dead.extend(account.dead)
            counts = host.ledger(operator)
            counts["offered"] += len(chunk)
            counts["aggregated"] += account.accepted
            counts["late"] += len(account.late)
            counts["dead"] += len(account.dead)
            counts["dropped"] += account.dropped
            if (operator in self.telling or batch.ships) and len(account.late):
                self._note_late(operator, host.senders(account.late))
            if batch.ships:
                self._note_panes(operator, chunk.ts[account.took], prepared, account)
            self._push_late(operator, account.late)

    def _note_panes(
        self, operator: str, times: Int64, prepared: Prepared, account: Account
    ) -> None:
        """How many records an operator took of every pane, in each tree of agents."""
        trees = self.host.batch.trees
        tree = prepared.shards_of(account.took) % trees
        both, counts = np.unique(self.family.span.pane_of(times) * trees + tree, return_counts=True)
        found = zip((both % trees).tolist(), (both // trees).tolist(), strict=True)
        into = self._report().panes.setdefault(operator, Counter())
        into.update(dict(zip(found, counts.tolist(), strict=True)))

    def take_partial(self, rows: pa.Table) -> pa.Table:
        """Rows that were made elsewhere, without those whose windows have all left meanwhile."""
        panes = numbers(rows, "pane")
        needed = np.zeros(len(rows), np.bool_)
        for job in self.family.jobs:
            needed |= job.span.last_end(panes) > self.order.closed[job.name]
        return rows.filter(pa.array(needed))

    def note_sent(
        self, counts: dict[str, dict[int, int]], late: dict[str, int], sender: tuple[str, str]
    ) -> None:
        """Put accounts right that came with rows: what is too late now was not when they were made.

        counts: how many records each step took there, per pane. late: how many were late already.
        """
        for job in self.family.jobs:
            mine = counts.get(job.name, {})
            known = np.fromiter(mine, np.int64, len(mine))
            gone = known[job.span.last_end(known) <= self.order.closed[job.name]].tolist()
            missed = sum(mine[pane] for pane in gone)
            if missed:
                account = self.host.ledger(job.name)
                account["aggregated"] -= missed
                account["late"] += missed
            told = missed + (late.get(job.name, 0) if job.name in self.telling else 0)
            if told:
                self._note_late(job.name, Counter({sender: told}))

    def _note_late(self, operator: str, senders: Senders) -> None:
        self._report().late.setdefault(operator, Counter()).update(senders)

    def _report(self) -> Report:
        report: Report = self.host.control.reports.setdefault(self.family.name, Report())
        return report

    def _push_late(self, operator: str, late: Chunk) -> None:
        """Late records to those who asked for them; pairs of a MapReduce job in JSON."""
        if len(late) and self.family.jobs[0].packed:
            pairs = {
                name: pa.array([as_json(one) for one in unpacked(late.column(name))])
                for name in ("key", "value")
            }
            late = late.with_table(pa.table(pairs))
        self.host.push_late(operator, late)

    def take_published(self, step: Node, stream: Node, events: list[Publication]) -> bool:
        """Windows take published events as records."""
        return False

    def _hold(self, table: pa.Table) -> None:
        self.panes.append(table)
        if self._can_merge and sum(map(len, self.panes)) > _MERGE_ROWS:
            self.panes = [self._merged()]

    @property
    def _can_merge(self) -> bool:
        """Whether rows of several chunks may fall together."""
        return len(self.panes) > 1 and not self.order.single

    def _merged(self) -> pa.Table:
        """All panes so far, each once per key."""
        return merge_panes(self.family, concat(self.panes))

    def _sent(self) -> pa.Table:
        """All panes as they go to the shards: merged once more if that has paid off."""
        before, begun = sum(map(len, self.panes)), time.thread_time()
        merges = self.order.merges and self._can_merge
        table = self._merged() if merges else concat(self.panes)
        seconds = time.thread_time() - begun if merges else 0.0
        self._report().merged = (before, len(table), seconds)
        return table

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Panes, and values that are kept."""
        if self.panes:
            yield "panes", self._sent()
        if self.values:
            yield "values", concat(self.values)
