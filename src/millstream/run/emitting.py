"""Between updaters and the rest of a task: running a group, and sending on what it gave."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millstream.errors import RunError
from millstream.graph import nodes
from millstream.ops.chunks import Chunk, Int64
from millstream.ops.codec import decode_row
from millstream.ops.events import Keys, event_rows, keys_of_values
from millstream.ops.records import DeadLetter, Row, as_json, to_table
from millstream.ops.updates import Cell, Machine, Outcome, Publication, UpdateGroup
from millstream.run.updating import Arrival, Surroundings, run_group
from millstream.run.work import Clocks

if TYPE_CHECKING:
    from millstream.run.tasks import Task


class Emitting:
    """The updaters of one task, and their outgoing records."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.arrivals: list[Arrival] | None = None  # while a cycle is simulated: what comes round
        self.cycle: frozenset[str] = frozenset()
        self.partials: dict[str, tuple[Machine, dict[tuple[int, int], Cell]]] = {}

    # -- running a group ------------------------------------------------------------------------

    def run(self, group: UpdateGroup, blocks: list[bytes], time_now: Clocks) -> None:
        """Apply what is due, then push what came of it."""
        task, plan = self.task, self.task.plan
        if group.cyclic and task.control.part:
            return  # all of a cycle is in the first shard, and that in the first task
        if group.cyclic:
            self.cycle = frozenset(plan.cycle_of(group.jobs[0].name))
        around = Surroundings(
            group,
            task.batch,
            task.control,
            time_now.watermarks,
            time_now.latest,
            time_now.furthest,
            {plan.number(node): node.name for node in plan.origins()},
            plan.publishes,
            frozenset(n.name for n in plan.nodes if isinstance(n, nodes.Published)),
            self._around,
        )
        collecting = gc.isenabled()
        gc.disable()  # many objects and no garbage: looking for it takes a third of the time
        try:
            outcomes = run_group(around, blocks)
        finally:
            if collecting:
                gc.enable()
        for updater, out in outcomes.items():
            node = plan.node(updater)
            outside = [n for n in plan.consumers(node) if n.name not in self.cycle]
            task.control.windows += len(out.rows)
            self._emit(node, out.rows, out.row_ts, out.row_pos, outside)
        self.publish([one for out in outcomes.values() for one in out.published], inside=False)
        self.cycle = frozenset()

    def _around(self, updater: str, out: Outcome) -> list[Arrival]:
        """Send what the last call gave around its cycle; gives what arrives at updaters of it."""
        sent, published = out.sent, out.published[out.sent[1] :]
        rows = slice(sent[0], None)
        out.sent = (len(out.rows), len(out.published))
        if len(out.rows) == sent[0] and not published:
            return []
        self.arrivals = []
        node = self.task.plan.node(updater)
        inside = [n for n in self.task.plan.consumers(node) if n.name in self.cycle]
        if inside:
            self._emit(node, out.rows[rows], out.row_ts[rows], out.row_pos[rows], inside)
        self.publish(published, inside=True)
        found, self.arrivals = self.arrivals, None
        return found

    # -- records that leave ---------------------------------------------------------------------

    def _emit(
        self,
        node: nodes.Node,
        rows: list[Row],
        ts: list[int],
        pos: list[int],
        consumers: list[nodes.Node],
    ) -> None:
        """Records an updater returned, to some of the steps after it."""
        if rows and consumers:
            chunk = self._chunk(node, rows, ts, pos)
            for consumer in consumers if len(chunk) else ():
                self.task.step(consumer, chunk, node)

    def _chunk(self, node: nodes.Node, rows: list[Row], ts: list[int], pos: list[int]) -> Chunk:
        """Records as columns; what does not fit the others is a dead letter."""
        number = self.task.plan.number(node)
        table, bad = to_table(rows, None)
        while bad:
            for index, why in bad.items():
                letter = DeadLetter(node.name, number, pos[index], as_json(rows[index]), why)
                self.task.control.dead.append(letter)
                self.task.ledger(node.name)["failed"] += 1
            good = [index for index in range(len(rows)) if index not in bad]
            rows, ts, pos = ([column[i] for i in good] for column in (rows, ts, pos))  # type: ignore[assignment]
            table, bad = to_table(rows, None)
        for figure in ("results", "answered"):
            self.task.ledger(node.name)[figure] += len(rows)
        return Chunk(table, np.array(ts, np.int64), np.array(pos, np.int64), number)

    def publish(self, events: list[Publication], *, inside: bool) -> None:
        """Events to the consumers of their streams, inside or outside the cycle at hand."""
        plan = self.task.plan
        by_stream: dict[str, list[Publication]] = {}
        for one in events:
            by_stream.setdefault(one.stream, []).append(one)
        for name, several in by_stream.items():
            stream = plan.node(name)
            in_cycle = name in self.cycle
            if inside == in_cycle:  # each is counted once, where it arrives
                self.task.count(stream, len(several), 0)
            chunk: Chunk | None = None
            for consumer in plan.consumers(stream):
                if (consumer.name in self.cycle and in_cycle) != inside:
                    continue
                if isinstance(consumer, nodes.Update) and _by_key(consumer, stream):
                    self._direct(stream, several, consumer)
                    continue
                if chunk is None:
                    chunk = self._chunk(
                        stream,
                        [{"key": one.key, "value": decode_row(one.value)} for one in several],
                        [one.us for one in several],
                        [one.pos for one in several],
                    )
                if len(chunk):
                    self.task.step(consumer, chunk, stream)

    def _direct(self, stream: nodes.Node, events: list[Publication], node: nodes.Update) -> None:
        """Events to an updater by their key, as they are."""
        number = self.task.plan.number(stream)
        for nulls, one in zip(node.null_keys, node.inputs, strict=True):
            if one is not stream:
                continue
            mine = self._on_time(stream, events, node)
            if nulls == "dead":
                mine = self._with_key(number, mine, node)
            if mine:
                keys = keys_of_values([one.key for one in mine])
                ts = np.array([one.us for one in mine], np.int64)
                pos = np.array([one.pos for one in mine], np.int64)
                values = pa.array([one.value for one in mine], pa.binary())
                self._place(keys, node)
                self.deliver(node, keys, ts, number, pos, values)

    def _on_time(
        self, stream: nodes.Node, events: list[Publication], node: nodes.Update
    ) -> list[Publication]:
        """The events an updater applies; all are counted, and late ones set aside if it wants."""
        counts, closed = self.task.ledger(node.name), self.task.batch.closed[node.name]
        late = [one for one in events if node.job.order == "event" and one.us < closed]
        counts["offered"] += len(events)
        counts["aggregated"] += len(events) - len(late)
        counts["late" if node.job.late == "apply" else "diverted"] += len(late)
        if not late or node.job.late == "apply":
            return events
        rows = [{"key": one.key, "value": decode_row(one.value)} for one in late]
        chunk = self._chunk(stream, rows, [one.us for one in late], [one.pos for one in late])
        self.task.push_late(node.name, chunk)
        return [one for one in events if one.us >= closed]

    def _with_key(
        self, number: int, events: list[Publication], node: nodes.Update
    ) -> list[Publication]:
        """Events without a key are dead letters."""
        for one in events:
            if one.key is None:
                counts, closed = self.task.ledger(node.name), self.task.batch.closed[node.name]
                late = node.job.order == "event" and one.us < closed
                counts["late" if late else "aggregated"] -= 1
                counts["dead"] += 1
                raw = as_json({"key": None, "value": decode_row(one.value)})
                why = "key column 'key' is null"
                self.task.control.dead.append(DeadLetter(node.name, number, one.pos, raw, why))
        return [one for one in events if one.key is not None]

    def _place(self, keys: Keys, node: nodes.Update) -> None:
        """Let the updater's partition say where published events belong."""
        bad = keys.place(node.job.partition, self.task.batch.shards)
        for why in bad.values():  # there is no record to set aside: its cause was applied already
            raise RunError(f"{node.name}: {why}; this batch was not committed")

    # -- events that go to updaters -------------------------------------------------------------

    def deliver(
        self,
        node: nodes.Update,
        keys: Keys,
        ts: Int64,
        src: int,
        pos: Int64,
        values: pa.Array,
        behind: Int64 | None = None,
    ) -> None:
        """Events for an updater: into the exchange, around the cycle, or into partial slates.

        `ts` is when they are applied; `behind`: by how much the time of late ones is before that.
        """
        group = self.task.plan.group_of(node.name)
        to = group.number(node.name)
        if self.arrivals is not None and node.name in self.cycle:
            columns = (keys.hashes.tolist(), keys.checks.tolist(), keys.packed.to_pylist())
            for us, at, key_hash, check, packed, value in zip(
                ts.tolist(), pos.tolist(), *columns, values.to_pylist(), strict=True
            ):
                self.arrivals.append(Arrival(to, us, src, at, key_hash, check, packed, value))
        elif group.jobs[0].merge is not None:
            self._fold(group, keys, ts if behind is None else ts - behind, src, pos, values)
        else:
            shards = None if group.cyclic else self.task.batch.shards
            rows = event_rows(keys, ts, src, pos, values, to, shards, behind=behind)
            self.task.events.setdefault(group.name, []).append(rows)

    def _fold(
        self, group: UpdateGroup, keys: Keys, ts: Int64, src: int, pos: Int64, values: pa.Array
    ) -> None:
        """Events of an update whose order does not matter, into partial slates."""
        job = group.jobs[0]
        if job.name not in self.partials:
            plan, batch = self.task.plan, self.task.batch
            names = {plan.number(node): node.name for node in plan.origins()}
            machine = Machine(
                job, closed=-(2**61), limit=2**62, now=batch.now, latest=None, names=names
            )
            self.partials[job.name] = (machine, {})
        machine, cells = self.partials[job.name]
        columns = (keys.hashes.tolist(), keys.checks.tolist(), keys.packed.to_pylist())
        for key_hash, check, packed, us, at, value in zip(
            *columns, ts.tolist(), pos.tolist(), values.to_pylist(), strict=True
        ):
            cell = cells.get((key_hash, check))
            if cell is None:
                cell = cells[key_hash, check] = Cell(packed, key_hash, check)
            cell.events += 1
            machine.call(cell, us, src, at, value)

    def finish(self) -> None:
        """Partial slates as rows for the exchange."""
        for name, (machine, cells) in self.partials.items():
            control, counts = self.task.control, self.task.ledger(name)
            for failure in machine.out.failures:
                control.dead.append(
                    DeadLetter(name, failure.src, failure.pos, failure.raw, failure.error)
                )
                counts["aggregated"] -= 1
                counts["dead"] += 1
            made = [cell for cell in cells.values() if cell.data is not None]
            if made:
                group = self.task.plan.group_of(name)
                keys = Keys(
                    np.array([cell.hash for cell in made], np.uint64),
                    np.array([cell.check for cell in made], np.uint64),
                    pa.array([cell.packed for cell in made], pa.binary()),
                )
                keys.place(machine.job.partition, self.task.batch.shards)
                rows = event_rows(
                    keys,
                    [cell.ts for cell in made],
                    0,
                    [0] * len(made),
                    pa.array([cell.data for cell in made], pa.binary()),
                    0,
                    self.task.batch.shards,
                    [min(cell.events, 2**31 - 1) for cell in made],
                )
                self.task.events.setdefault(group.name, []).append(rows)
        self.partials = {}


def _by_key(consumer: nodes.Node, stream: nodes.Node) -> bool:
    """Whether an updater takes a published stream by its key."""
    return isinstance(consumer, nodes.Update) and all(
        keys == ("key",) for keys, one in _inputs(consumer) if one is stream
    )


def _inputs(node: nodes.Update) -> Iterator[tuple[tuple[str, ...], nodes.Node]]:
    yield from zip(node.keys, node.inputs, strict=True)
