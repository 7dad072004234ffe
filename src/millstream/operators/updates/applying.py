"""A group of updaters in one task: events that are due are applied, the rest waits.

Updaters outside cycles work key by key. Those of a cycle are simulated together: the next call is
always the earliest of all that are known, so that what a call publishes is seen by every later one,
whatever the batches are.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import RunError
from millstream.operators.stores import Queue, in_order
from millstream.operators.updates.cycles import Item, event_rows, simulate
from millstream.operators.updates.flushing import Applied, Moment
from millstream.operators.updates.members import Member, behind, machine_at, member_of
from millstream.operators.updates.relieving import withhold
from millstream.operators.updates.work import Work
from millstream.ops.chunks import concat, decode_block, flat, numbers
from millstream.ops.codec import decode_key
from millstream.ops.keys.names import key_text
from millstream.ops.records import DeadLetter
from millstream.ops.times.progress import BEGIN, END
from millstream.ops.updates.cells import Cell, Outcome, blank_cell
from millstream.ops.updates.cells import Item as Event
from millstream.ops.updates.machine import run_key

_HOTTEST = 10  # keys that are reported
_MOST_CARRIED = 50  # batches' worth of events a cycle may leave over

Times = dict[tuple[int, int], list[int]]  # of timers, by key


def run_group(work: Work, blocks: list[bytes]) -> dict[str, Outcome]:
    """Apply what is due to all updaters of a group; segments and accounts go into the control."""
    group, batch, control = work.group, work.batch, work.control
    members = [member_of(work, job) for job in group.jobs]
    first = members[0]
    if first.slates.lost:
        _apply_again(work, first)
    tables = [decode_block(block) for block in blocks]
    waiting = Queue(first.job.name, "waiting", concat(tables) if tables else None, batch, control)
    at_once = first.job.order == "arrival"
    planned = until = END if at_once else first.machine.limit
    ready = waiting.due(BEGIN if at_once else work.order.worked_to(first.job.name), until)
    ready, withheld = withhold(work, ready)
    rest: list[Item] = []
    applied = Applied(Moment.of(first.machine))
    if group.cyclic:
        until, rest = simulate(work, members, ready, until)
    else:
        applied.add(ready, first.timers_due(), first.alarms_due())
        _apply(first, applied)
    if withheld is not None:
        withheld.forget(work, until)
    if at_once:
        waiting.forget()
    next_event = waiting.store(until, event_rows(rest))
    for number, member in enumerate(members):
        _settle(work, member, until, next_event, applied)
        _account(work, member, ready, number)
        if until < planned:
            control.holds[member.job.name] = until
            work.report.carried[member.job.name] = sum(1 for item in rest if item.to == number)
            again = sum(1 for item in rest if item.hops)  # the others have just come
            if again > _MOST_CARRIED * work.order.cycle_events:
                raise RunError(
                    f"the cycle of {group.name!r} sets off more than it handles: {again:,} events "
                    f"wait by now, over {_MOST_CARRIED} times the {work.order.cycle_events:,} of a "
                    "batch (cycle_events). If every event sets off more of them it never settles: "
                    "let an updater publish less. If so many are meant, raise cycle_events; this "
                    "batch was not committed"
                )
    return {member.job.name: member.machine.out for member in members}


# -- key by key ---------------------------------------------------------------------------------


def _apply(member: Member, applied: Applied) -> None:
    """Call the functions for what is due."""
    events, timers, alarms = applied.parts()
    if member.job.merge is not None:
        _merge(member, events)
    else:
        _by_key(member, events, member.times(timers), member.times(alarms))


def _apply_again(work: Work, member: Member) -> None:
    """Make slates again that were lost before they were flushed; what calls give has left."""
    machine = member.machine
    for applied in member.slates.log.since_flush(member.slates.lost):
        member.machine = machine_at(work, member.job, applied.moment)
        _apply(member, applied)
    member.machine = machine


def _by_key(member: Member, ready: pa.Table | None, timers: Times, alarms: Times) -> None:
    """The calls of every key in turn: keys do not see each other."""
    keys: list[tuple[int, int]] = []
    starts: list[int] = [0]
    items: list[Event] = []
    if ready is not None:
        rows = in_order(ready)
        hashes, checks = (numbers(rows, name) for name in ("hash", "check"))
        bounds = np.flatnonzero((np.diff(hashes) != 0) | (np.diff(checks) != 0)) + 1
        starts = [0, *bounds.tolist()]
        at = pa.array(starts)
        shards = flat(rows.column("shard")).take(at).to_pylist()
        packed = flat(rows.column("key")).take(at).to_pylist()
        keys = list(zip(hashes[starts].tolist(), checks[starts].tolist(), strict=True))
        for key, shard, name in zip(keys, shards, packed, strict=True):
            if key not in member.cells:
                member.cells[key] = blank_cell(name, *key, shard)
        columns = [flat(rows.column(name)).to_pylist() for name in ("time", "src", "pos", "value")]
        items = list(zip(*columns, behind(rows), strict=True))
    member.load()
    machine = member.machine
    cells = map(member.cells.__getitem__, keys)
    of_key = map(slice, starts, [*starts[1:], len(items)])
    calls = zip(cells, map(items.__getitem__, of_key), strict=False)
    if machine.is_plain:
        machine.call_plain(calls)
        return
    if member.job.on_timer is None:
        for cell, mine in calls:
            for us, src, pos, value, late_by in mine:
                machine.call(cell, us, src, pos, value, late_by)
        return
    for key, (cell, mine) in zip(keys, calls, strict=True):
        alarm = alarms.pop(key, None) is not None
        run_key(machine, cell, mine, timers.pop(key, []), alarm)
    for key in {**timers, **alarms}:
        run_key(machine, member.cells[key], (), timers.get(key, []), key in alarms)


def _merge(member: Member, ready: pa.Table | None) -> None:
    """Partial slates, built where records were read, into those that are stored."""
    if ready is None:
        return
    names = ("hash", "check", "key", "shard", "time", "src", "pos", "value", "hops")
    rows = list(
        zip(*(flat(in_order(ready).column(name)).to_pylist() for name in names), strict=True)
    )
    for key_hash, check, packed, shard, *_ in rows:
        member.cells.setdefault((key_hash, check), blank_cell(packed, key_hash, check, shard))
    member.load()
    keeper, out = member.machine.keeper, member.machine.out
    for key_hash, check, _, _, *at, partial, events in rows:
        keeper.merge(member.cells[key_hash, check], (at[0], at[1], at[2]), partial, events, out)


# -- leaving ------------------------------------------------------------------------------------


def _settle(work: Work, member: Member, until: int, next_event: int, applied: Applied) -> None:
    """Store slates, timers and alarms; say how far the updater came and when it is due next."""
    job, machine = member.job, member.machine
    reached = min(machine.limit, until)
    next_timer = member.timers.store(reached, _time_rows(machine.out.timers))
    next_alarm = member.alarms.store(work.batch.now + 1, _time_rows(machine.out.alarms))
    stands = work.clocks.stands(job.name, reached, machine.closed)
    if stands < reached < END:  # what timers set off beyond the end of input takes several batches
        work.report.worked[job.name] = reached
    reached = stands
    member.slates.put_cells([cell for cell in member.cells.values() if cell.wrote])
    keeping = job.name in work.order.keeping and not work.group.cyclic
    if keeping and member.slates.keep():
        member.slates.log.append(applied)
    else:
        member.slates.flush(gone_by=work.batch.now if job.clock == "wall" else reached)
    work.report.last_end[job.name] = reached
    work.report.due[job.name] = (min(next_event, next_timer), next_alarm)


def _time_rows(times: list[tuple[int, Cell]]) -> pa.Table | None:
    if not times:
        return None
    unique = {(at, cell.hash, cell.check): cell for at, cell in times}
    cells = list(unique.values())
    return pa.table(
        {
            "shard": pa.array([cell.shard for cell in cells], pa.int32()),
            "time": pa.array([at for at, _, _ in unique], pa.int64()),
            "hash": pa.array([cell.hash for cell in cells], pa.uint64()),
            "check": pa.array([cell.check for cell in cells], pa.uint64()),
            "key": pa.array([cell.packed for cell in cells], pa.binary()),
        }
    )


def _account(work: Work, member: Member, ready: pa.Table | None, number: int) -> None:
    """Dead letters, and which keys had the most events."""
    control, name = work.control, member.job.name
    ledger = control.ledger.setdefault(name, Counter())
    if member.machine.out.fired:
        ledger["answered"] += member.machine.out.fired
    for failure in member.machine.out.failures:
        control.dead.append(DeadLetter(name, failure.src, failure.pos, failure.raw, failure.error))
        if failure.timer:
            ledger["failed"] += 1
            ledger["answered"] -= 1
        else:
            ledger["late" if failure.late else "aggregated"] -= failure.events
            ledger["dead"] += failure.events
    if ready is None:
        return
    mine = ready.filter(pc.equal(ready.column("to"), number))
    if not len(mine):
        return
    # An event is one; a partial slate is as many as were put into it where they were read.
    events = ("hops", "sum") if member.job.merge is not None else ("key", "count")
    keys = mine.select(["key", "hops"]).group_by("key", use_threads=False).aggregate([events])
    counts = numbers(keys, "_".join(events))
    top = np.argsort(-counts, kind="stable")[:_HOTTEST].tolist()
    work.report.hot[name] = (
        int(counts.sum()),
        {key_text(decode_key(keys.column("key")[i].as_py()))[0]: int(counts[i]) for i in top},
    )
