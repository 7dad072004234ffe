"""Updaters under overload: more events are due than were applied, and more come.

What is due and was not applied lies in the queue of a group: a batch applies so many events and no
more, and a cycle goes round so often. Events that wait for the watermark are not too many, only
early. In the driver a policy looks at what is due. While it holds, `throttle` has the sources above
read nothing, `drop` and `divert` turn away what comes (or `drop` the oldest of what is due). Only
what enters a group is ever turned away, never what its cycle publishes; so a cycle always settles.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millstream.graph.nodes import Update
from millstream.operators.batch import Control
from millstream.operators.protocol import Host, Known
from millstream.operators.updates.work import Relief, Work
from millstream.ops.chunks import Chunk, Int64, flat, numbers
from millstream.ops.codec import decode_key
from millstream.ops.keys.names import key_text
from millstream.ops.overload import Shed, Standing
from millstream.ops.times.progress import END, Reached
from millstream.ops.times.shares import remembered, spells_of
from millstream.ops.updates.events import keys_of
from millstream.ops.updates.job import UpdateGroup, UpdateJob
from millstream.state.manifests import OVERLOADED, Manifest
from millstream.state.segments import Segment, rows_between, time_of

_log = logging.getLogger("millstream")

_WORKED = "overload_worked"  # in the memo of an updater that throttles: how far it was
_ROWS = "overload_rows"  # and how many events were due
_RANGES = 8  # of keys, in which the log of a task tells what it turned away


@dataclass(frozen=True)
class Due:
    """Events of a group that could have been applied: how many, and where they lie."""

    rows: int
    size: int  # in bytes
    worked: int  # events before it were applied
    segments: tuple[Segment, ...]

    @property
    def head(self) -> int | None:
        """The time of the first."""
        return min((max(one.low, self.worked) for one in self.segments), default=None)


def due_of(group: UpdateGroup, known: Known, worked: int) -> Due:
    """What of a group waits only for its turn; at the end of the input nothing is too much."""
    first, times = group.jobs[0], known.times
    tables = known.manifest.segments.get(first.name, {}).get("waiting", {})
    segments = tuple(one for several in tables.values() for one in several)
    watermark = END if times is None else min(times.inputs[job.name] for job in group.jobs)
    if not segments or watermark >= END:
        return Due(0, 0, worked, ())
    in_time = first.order == "event"
    rows = rows_between(list(segments), worked, watermark) if in_time else _rows(segments)
    stored = sum(known.manifest.files[name].size for name in {one.file for one in segments})
    return Due(rows, round(rows * stored / max(1, _rows(segments))), worked, segments)


def _rows(segments: Iterable[Segment]) -> int:
    return sum(one.rows for one in segments)


def relief_of(group: UpdateGroup, known: Known, worked: int, most: int) -> dict[str, Relief]:
    """What is done about too many events in the next batch, which applies at most so many."""
    due = due_of(group, known, worked)
    found = {}
    for job in group.jobs:
        policy, memo = job.overload, known.manifest.memos.get(job.name, {})
        lag = None if due.head is None else max(0, known.now - due.head)
        pressure = policy.pressure(due.size, lag) if due.rows > most else 0.0
        standing = Standing(memo.get(OVERLOADED, 0)).moved(policy, pressure, known.now)
        if standing.on:
            found[job.name] = Relief(standing.since, _first_kept(job, due, pressure), due.rows)
    return found


def _first_kept(job: UpdateJob, due: Due, pressure: float) -> int | None:
    """From which time on events are applied if the newest are kept."""
    if job.overload.kind != "drop" or job.overload.keep != "newest" or job.order != "event":
        return None
    return time_of(
        list(due.segments), due.worked, int(due.rows * (1 - job.overload.until / pressure))
    )


def throttles(group: UpdateGroup, known: Known, relief: dict[str, Relief], worked: int) -> bool:
    """Whether the sources above wait: not if nothing was gained by that in the last batch."""
    for job in group.jobs:
        memo, mine = known.manifest.memos.get(job.name, {}), relief.get(job.name)
        if mine is None or job.overload.sheds:
            continue
        stuck = memo.get(_WORKED) == worked and mine.rows >= memo.get(_ROWS, 0)
        if not stuck:
            return True
    return False


def note_relief(
    group: UpdateGroup, relief: dict[str, Relief], known: Known, worked: int, manifest: Manifest
) -> None:
    """Write down that an updater is overloaded, and say when that changes."""
    for job in group.jobs:
        before, now = known.manifest.memos.get(job.name, {}), relief.get(job.name)
        if now is not None:
            memo = {OVERLOADED: now.since, _WORKED: worked, _ROWS: now.rows}
            manifest.memos[job.name] = {**manifest.memos.get(job.name, {}), **memo}
            if OVERLOADED not in before:
                _log.warning(
                    "%r is overloaded: %s events are due and wait, more than %s allows",
                    job.name,
                    f"{now.rows:,}",
                    job.overload,
                )
        elif OVERLOADED in before:
            _log.warning("%r is no longer overloaded", job.name)


def without_relief(memo: dict[str, int]) -> dict[str, int]:
    """What else an updater remembers."""
    return {name: at for name, at in memo.items() if name not in (OVERLOADED, _WORKED, _ROWS)}


# -- in tasks -----------------------------------------------------------------------------------


def turn_away(host: Host, node: Update, keys: tuple[str, ...], chunk: Chunk) -> None:
    """Records that an updater would get: counted, or pushed to the stream they are diverted to."""
    stream, rows = node.job.overload.stream, len(chunk)
    counts = host.ledger(node.name)
    counts["offered"] += rows
    counts["dropped" if stream is None else "diverted"] += rows
    counts["shed" if stream is None else "overflow"] += rows
    due = chunk.ts if chunk.due is None else np.maximum(chunk.ts, chunk.due)
    note_ways(host.control, node.name, due, **{"dropped" if stream is None else "diverted": 1})
    packed = Counter(keys_of(chunk, keys).packed.to_pylist())
    host.control.shed.extend(_by_keys(node.name, packed, stream))
    if stream is not None:
        host.count(stream, rows, 0)
        host.push(stream, chunk)


def note_ways(control: Control, updater: str, times: Int64, **ways: int) -> None:
    """Which way each event of these times goes, for the figures of windows after the updater."""
    if len(times):
        reached = control.reached.setdefault(updater, Reached())
        reached.spells = remembered((*reached.spells, *spells_of(times, **ways)))


def _by_keys(updater: str, packed: Counter[bytes], stream: str | None) -> Iterator[Shed]:
    """How many events of which keys, in a few ranges."""
    keys = sorted((key_text(decode_key(key))[0], count) for key, count in packed.items())
    step = max(1, -(-len(keys) // _RANGES))
    for at in range(0, len(keys), step):
        some = keys[at : at + step]
        rows = sum(count for _, count in some)
        yield Shed(updater, rows, stream, keys=(some[0][0], some[-1][0]))


@dataclass(frozen=True)
class Withheld:
    """Due events that are not applied, because newer ones are kept."""

    rows: pa.Table

    def forget(self, work: Work, until: int) -> None:
        """They are gone, as far as the group came; they were counted when they entered."""
        times = numbers(self.rows, "time")
        gone = self.rows.filter(pa.array(times < until))
        for number, job in enumerate(work.group.jobs):
            mine = gone.filter(pa.array(numbers(gone, "to") == number))
            if not len(mine):
                continue
            counts = work.control.ledger.setdefault(job.name, Counter())
            late = 0
            if "behind" in mine.column_names:
                late = int(np.count_nonzero(numbers(mine, "behind") > 0))
            counts.update({"late": -late, "aggregated": late - len(mine)})
            counts.update({"dropped": len(mine), "shed": len(mine)})
            times = numbers(mine, "time")
            note_ways(work.control, job.name, times, kept=-1, dropped=1)
            packed = Counter(flat(mine.column("key")).to_pylist())
            work.control.shed.extend(_by_keys(job.name, packed, None))


def withhold(work: Work, ready: pa.Table | None) -> tuple[pa.Table | None, Withheld | None]:
    """Due events without those that are given up for newer ones; only what entered is."""
    before = {name: one.before for name, one in work.order.relief.items() if one.before is not None}
    if ready is None or not before:
        return ready, None
    to, times, hops = (numbers(ready, name) for name in ("to", "time", "hops"))
    gone = np.zeros(len(ready), np.bool_)
    for number, job in enumerate(work.group.jobs):
        if job.name in before:
            gone |= (to == number) & (times < before[job.name]) & (hops == 0)
    if not gone.any():
        return ready, None
    return ready.filter(pa.array(~gone)), Withheld(ready.filter(pa.array(gone)))
