"""A group of updaters as an operator: those of one cycle, or just one."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from millstream.operators.filing import FUNCTION, Filed, Tables
from millstream.operators.protocol import Backlog, Done, Host, Known, Share
from millstream.operators.published import as_chunk, publish
from millstream.operators.updates.applying import run_group
from millstream.operators.updates.arriving import Events
from millstream.operators.updates.parting import parted_events, parted_slates
from millstream.operators.updates.relieving import note_relief, relief_of, throttles, without_relief
from millstream.operators.updates.work import Arrival, Order, Origins, Relief, Report, Work
from millstream.operators.waiting import backlog_by_time
from millstream.ops.times.progress import END
from millstream.ops.times.spans import NOTHING_CLOSED
from millstream.ops.updates.cells import Outcome
from millstream.ops.updates.job import UpdateGroup, UpdateJob
from millstream.state.manifests import Hot, Manifest
from millstream.state.segments import time_of
from millstream.state.unflushed import BATCH, LOG, WHEN, is_ahead_of_flush

_HOTTEST = 10  # keys that are shown
_LOGGED = 256  # batches after which slates are flushed, so that a crash costs no more than these
_EVENTS = 250_000  # per core that a batch works off of those that wait: functions take their time


@dataclass(frozen=True)
class Updates:
    """Updaters that run together."""

    group: UpdateGroup
    origins: Origins
    cycle: frozenset[str] = frozenset()  # all steps that are part of it, if it is one

    @property
    def name(self) -> str:
        """The group's."""
        return self.group.name

    @property
    def steps(self) -> tuple[str, ...]:
        """One per updater."""
        return tuple(job.name for job in self.group.jobs)

    @property
    def counted(self) -> tuple[str, ...]:
        """Nothing here goes by the number of records."""
        return ()

    # -- in tasks -------------------------------------------------------------------------------

    def inlet(self, host: Host) -> Events:
        """Events by key."""
        return Events(self.group, self.cycle, host, self.origins.names)

    def run(self, share: Share) -> None:
        """Apply what is due, then push what came of it."""
        host = share.host
        if self.group.cyclic and host.control.part:
            return  # all of a cycle is in the first shard, and that in the first task
        report = Report()
        work = Work(
            self.group,
            host.batch.orders[self.name],
            report,
            host.batch,
            host.control,
            share.clocks,
            self.origins,
            _Around(self, host).route,
        )
        collecting = gc.isenabled()
        gc.disable()  # many objects and no garbage: looking for it takes a third of the time
        try:
            outcomes = run_group(work, share.rows.pop("events", []))
        finally:
            if collecting:
                gc.enable()
        host.control.reports[self.name] = report
        for updater, out in outcomes.items():
            host.control.results += len(out.rows)
            if any(node.name not in self.cycle for node in host.consumers(updater)):
                _give(host, updater, out, slice(None), self._is_outside)
        published = [one for out in outcomes.values() for one in out.published]
        publish(host, published, self.cycle)

    def _is_outside(self, step: str) -> bool:
        return step not in self.cycle

    # -- in the driver --------------------------------------------------------------------------

    def order(self, known: Known) -> Order:
        """How far updaters and their timers have come."""
        manifest, settings = known.manifest, known.settings
        return Order(
            {name: _closed(name, known) for name in self.steps},
            {name: manifest.rung[name] for name in self.steps if name in manifest.rung},
            {name: manifest.worked[name] for name in self.steps if name in manifest.worked},
            settings.cycle_events,
            settings.cycle_hops,
            self._relief(known),
            frozenset(job.name for job in self.group.jobs if self._keeps(job, known)),
        )

    def _keeps(self, job: UpdateJob, known: Known) -> bool:
        """Whether changed slates stay in memory until a later batch flushes them."""
        if job.flush is None or known.ending or self.group.cyclic:
            return False
        logged = known.manifest.segments.get(job.name, {}).get(LOG[0], {})
        if any(len(segments) >= _LOGGED for segments in logged.values()):
            return False
        since = known.manifest.memos.get(job.name, {}).get(WHEN)
        return since is None or known.now - since < job.flush

    def holds(self, known: Known) -> dict[str, int]:
        """How far to go if more events wait than a batch should have."""
        first = self.group.jobs[0]
        if first.order != "event":
            return {}
        tables = known.manifest.segments.get(first.name, {}).get("waiting", {})
        waiting = [segment for segments in tables.values() for segment in segments]
        worked = self._worked(known)
        at = time_of(waiting, worked, self._most(known))
        kept = [one.before for one in self._relief(known).values() if one.before is not None]
        if at is not None and kept:  # what is dropped takes no time
            at = time_of(waiting, max(worked, *kept), self._most(known))
        return {} if at is None else dict.fromkeys(self.steps, at)

    def backlog(self, known: Known) -> Backlog | None:
        """Events that wait for the watermark; those taken in the order of arrival do not."""
        first = self.group.jobs[0]
        if first.order != "event":
            return None
        return backlog_by_time(first.name, ("waiting",), self._worked(known))

    def _most(self, known: Known) -> int:
        return min(known.settings.batch_rows, _EVENTS) * known.cores

    def _relief(self, known: Known) -> dict[str, Relief]:
        if self.group.jobs[0].merge is not None:
            return {}  # partial slates never wait
        return relief_of(self.group, known, self._worked(known), self._most(known))

    def relieved(self) -> tuple[str, ...]:
        """Updaters whose policies may keep events from them."""
        return tuple(job.name for job in self.group.jobs if job.overload.sheds)

    def throttles(self, known: Known) -> bool:
        """Whether the sources above are to wait."""
        return throttles(self.group, known, self._relief(known), self._worked(known))

    def _worked(self, known: Known) -> int:
        first = self.group.jobs[0].name
        return known.manifest.worked.get(first, _closed(first, known))

    def wakes(self, known: Known, watermarks: dict[str, int]) -> bool:
        """Whether an event, a timer or an alarm has come due, or a cycle is not done."""
        for name in self.steps:
            event, alarm = known.manifest.due.get(name, (END, END))
            if event < watermarks[name] or alarm <= known.now or known.manifest.carried.get(name):
                return True
        return any(
            is_ahead_of_flush(known.manifest.segments.get(job.name, {}))
            and not self._keeps(job, known)
            for job in self.group.jobs
        )

    def settle(self, known: Known, done: Done, manifest: Manifest) -> None:
        """How far updaters came, what they wait for, and their most frequent keys."""
        reports: list[Report] = done.reports(self.name)
        for name in self.steps:
            manifest.rung[name] = done.batch.now + 1
            if not reports:  # its level was left out: nothing is stored of it, and nothing came
                continue
            reached = min(one.last_end[name] for one in reports)
            if reached > NOTHING_CLOSED:
                manifest.closed[name] = max(reached, _closed(name, known))
            due = zip(*(one.due[name] for one in reports), strict=True)
            manifest.due[name] = [min(times) for times in due]
            manifest.hot.update(_hottest(name, reports))
        for job in self.group.jobs:
            if job.flush is not None:
                manifest.memos[job.name] = self._flushed(job, known, done)
        relief = done.batch.orders[self.name].relief
        note_relief(self.group, relief, known, self._worked(known), manifest)
        for report in reports:
            manifest.worked.update(report.worked)
            manifest.carried.update(report.carried)

    def _flushed(self, job: UpdateJob, known: Known, done: Done) -> dict[str, int]:
        """When slates were flushed last, and what they are of."""
        before, batch = without_relief(known.manifest.memos.get(job.name, {})), done.batch
        if job.name not in batch.orders[self.name].keeping:
            return {WHEN: batch.now, BATCH: batch.number}
        return before or {WHEN: batch.now, BATCH: batch.number - 1}

    def stored(self) -> Tables:
        """Slates and what waits, by key; those of a cycle are all in one shard."""
        return {job.name: self._stored(job) for job in self.group.jobs}

    def _stored(self, job: UpdateJob) -> dict[str, Filed]:
        dealt = "first" if self.group.cyclic else "half"
        slates, events = Filed("newest", "expires", dealt), Filed("spans", "time", dealt)
        if job.partition is not None and not self.group.cyclic:
            slates = replace(slates, dealt=FUNCTION, function=partial(parted_slates, job.partition))
            events = replace(events, dealt=FUNCTION, function=partial(parted_events, job.partition))
        tables = {"slates": slates, "timers": events, "alarms": events}
        return tables | ({"waiting": events} if job is self.group.jobs[0] else {})


def _closed(updater: str, known: Known) -> int:
    """The time before which everything has been applied."""
    at = known.reached(updater)
    return NOTHING_CLOSED if at is None else at


def _hottest(updater: str, reports: list[Report]) -> dict[str, Hot]:
    """The keys that had the most events in this batch, if it had any."""
    events, keys = 0, Counter[str]()
    for count, top in (one.hot[updater] for one in reports if updater in one.hot):
        events += count
        keys.update(top)
    return {updater: Hot(events, keys.most_common(_HOTTEST))} if events else {}


def _give(host: Host, updater: str, out: Outcome, which: slice, to: Callable[[str], bool]) -> None:
    """Records an updater returned, to some of the steps after it."""
    if out.rows[which]:
        chunk = as_chunk(host, updater, out.rows[which], out.row_ts[which], out.row_pos[which])
        host.push(updater, chunk, to)


class _Around:
    """Sends what a call gave around its cycle, and gives what arrives at updaters of it."""

    def __init__(self, operator: Updates, host: Host) -> None:
        self.cycle, self.host, self.group = operator.cycle, host, operator.group

    def route(self, updater: str, out: Outcome) -> list[Arrival]:
        sent, published = out.sent, out.published[out.sent[1] :]
        out.sent = (len(out.rows), len(out.published))
        if len(out.rows) == sent[0] and not published:
            return []
        host, cycle = self.host, self.cycle
        inlet = host.inlet(self.group.jobs[0].name)
        assert isinstance(inlet, Events)
        with inlet.turning() as arrivals:
            if any(node.name in cycle for node in host.consumers(updater)):
                _give(host, updater, out, slice(sent[0], None), cycle.__contains__)
            publish(host, published, cycle, inside=True)
        return arrivals
